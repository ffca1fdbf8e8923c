// A program on the CUDA driver that finds it as the CUDA runtime does. Usage: program WAY SCENE, where WAY is how it finds the
// driver's functions: address (dlopen, dlsym, cuGetProcAddress), symbols (dlopen, dlsym) or linked. Prints name=value lines.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*get_address)(const char *, void **, int, unsigned long long, int *);
static int (*init)(unsigned), (*retain)(void **, int), (*push)(void *), (*make)(void **, unsigned, int);
static int (*alloc)(uint64_t *, size_t), (*release)(uint64_t), (*range)(uint64_t *, size_t *, uint64_t);
static int (*attribute)(void *, unsigned, uint64_t), (*begin)(void *, unsigned), (*end)(void *, void **), (*stream)(void **, unsigned);
static void (*counts)(uint64_t *);

#define MIB (1ul << 20)

#ifdef LINKED
int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxPushCurrent_v2(void *); int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(uint64_t *, size_t); int cuMemFree_v2(uint64_t); int cuMemGetAddressRange_v2(uint64_t *, size_t *, uint64_t);
int cuPointerGetAttribute(void *, unsigned, uint64_t); int cuStreamBeginCapture_v2(void *, unsigned); int cuStreamEndCapture(void *, void **);
int cuStreamCreate(void **, unsigned); void standin_counts(uint64_t *);
static void find(const char *way) {
  (void)way;
  init = cuInit; retain = cuDevicePrimaryCtxRetain; push = cuCtxPushCurrent_v2; make = cuCtxCreate_v2; alloc = cuMemAlloc_v2;
  release = cuMemFree_v2; range = cuMemGetAddressRange_v2; attribute = cuPointerGetAttribute; begin = cuStreamBeginCapture_v2;
  end = cuStreamEndCapture; stream = cuStreamCreate; counts = standin_counts;
}
#else
static void *library;
static get_address address_of;
static void *look(const char *way, const char *plain, const char *symbol) {
  void *found = NULL;
  if (!strcmp(way, "address")) address_of(plain, &found, 12000, 0, NULL);
  else found = dlsym(library, symbol);
  if (!found) { fprintf(stderr, "no %s\n", symbol); exit(3); }
  return found;
}
static void find(const char *way) {
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(3); }
  // As libcudart does: the symbol first, then the function through itself.
  get_address first = (get_address)dlsym(library, "cuGetProcAddress_v2");
  void *again = NULL;
  if (first("cuGetProcAddress", &again, 12000, 0, NULL)) exit(3);
  address_of = (get_address)again;
  init = look(way, "cuInit", "cuInit");
  retain = look(way, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
  push = look(way, "cuCtxPushCurrent", "cuCtxPushCurrent_v2");
  make = look(way, "cuCtxCreate_v2", "cuCtxCreate_v2");
  alloc = look(way, "cuMemAlloc", "cuMemAlloc_v2");
  release = look(way, "cuMemFree", "cuMemFree_v2");
  range = look(way, "cuMemGetAddressRange", "cuMemGetAddressRange_v2");
  attribute = look(way, "cuPointerGetAttribute", "cuPointerGetAttribute");
  begin = look(way, "cuStreamBeginCapture", "cuStreamBeginCapture_v2");
  end = look(way, "cuStreamEndCapture", "cuStreamEndCapture");
  stream = look(way, "cuStreamCreate", "cuStreamCreate");
  counts = dlsym(library, "standin_counts");
}
#endif

static void report(void) {
  uint64_t n[4];
  counts(n);
  printf("allocs=%lu\nfrees=%lu\nsynchronizes=%lu\ncreates=%lu\n", n[0], n[1], n[2], n[3]);
}

static uint64_t take(size_t size) {
  uint64_t block = 0;
  int code = alloc(&block, size);
  if (code) { printf("alloc_code=%d\n", code); return 0; }
  return block;
}

// Blocks of growing sizes, filled with their own number and read again after all were filled.
static void churn(void) {
  uint64_t block[8];
  int bad = 0;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 8; i++) {
      size_t size = (size_t)(4 + 4 * i + round) * MIB;
      block[i] = take(size);
      if (!block[i]) return;
      memset((void *)block[i], i + 1, size);
    }
    for (int i = 0; i < 8; i++) {
      size_t size = (size_t)(4 + 4 * i + round) * MIB;
      for (size_t at = 0; at < size; at += 4096) bad += ((uint8_t *)block[i])[at] != i + 1;
      if (release(block[i])) bad++;
    }
  }
  printf("bad=%d\n", bad);
}

static void *churn_in_thread(void *context) { push(context); churn(); return NULL; }

int main(int argc, char **argv) {
  const char *way = argc > 1 ? argv[1] : "address", *scene = argc > 2 ? argv[2] : "churn";
  if (!strcmp(scene, "nothing")) { printf("symbol=%d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL); return 0; }
  find(way);
  void *context = NULL;
  if (init(0)) { printf("init failed\n"); return 4; }
  if (!strcmp(scene, "own-context")) { if (make(&context, 0, 0)) return 4; }
  else if (retain(&context, 0) || push(context)) return 4;
  if (!strcmp(scene, "churn") || !strcmp(scene, "own-context")) churn();
  if (!strcmp(scene, "threads")) {
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, churn_in_thread, context);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  }
  if (!strcmp(scene, "small")) { uint64_t b = take(MIB); printf("free_code=%d\n", release(b)); }
  if (!strcmp(scene, "range")) {
    uint64_t b = take(100 * MIB), start = 0, attribute_start = 0;
    size_t size = 0;
    range(&start, &size, b + 70 * MIB);
    attribute(&attribute_start, 11, b + 70 * MIB);
    printf("start=%d\nsize=%zu\nattribute=%d\n", start == b, size, attribute_start == b);
    release(b);
  }
  if (!strcmp(scene, "full")) {
    uint64_t b[64];
    int n = 0;
    while (n < 64 && (b[n] = take(100 * MIB))) n++;
    printf("blocks=%d\n", n);
    for (int i = 0; i < n; i++) release(b[i]);
    b[0] = take(100 * MIB);
    printf("again=%d\n", b[0] != 0);
  }
  if (!strcmp(scene, "capture")) {
    uint64_t b = take(8 * MIB), during = 0, n[4];
    counts(n);
    printf("first_creates=%lu\n", n[3]);
    void *s, *graph;
    stream(&s, 0);
    begin(s, 0);
    printf("capture_alloc=%d\ncapture_free=%d\n", alloc(&during, 8 * MIB), release(b));
    printf("end=%d\n", end(s, &graph));
    uint64_t after = take(8 * MIB);
    printf("after=%d\n", after != 0);
  }
  if (!strcmp(scene, "fork")) {
    uint64_t b = take(8 * MIB);
    pid_t child = fork();
    if (!child) { uint64_t other = 0; alloc(&other, 8 * MIB); report(); fflush(stdout); _exit(release(b) ? 0 : 0); }
    int status;
    waitpid(child, &status, 0);
    printf("child=%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    printf("free_code=%d\n", release(b));
    return 0;
  }
  if (!strcmp(scene, "wrong")) { printf("free_code=%d\nnull_code=%d\n", release(0x1234000), alloc(NULL, 8 * MIB)); }
  report();
  return 0;
}
