/* A libcudart.so.13 of host memory, with the functions that libc10_cuda.so needs: enough for torch's own allocator to run without a GPU.
 * Streams are numbers, work is done at once; a test decides when events are done and which stream is captured. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int error_t;
typedef void *stream_t;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_READY = 600 };

/* What a test turns. */
size_t stub_total = 8ull << 30, stub_used = 0;
int stub_events_ready = 1;
stream_t stub_captured = 0;
int stub_mallocs = 0;

static int device = 0;

error_t cudaGetDeviceCount(int *n) { *n = 1; return SUCCESS; }
error_t cudaGetDevice(int *d) { *d = device; return SUCCESS; }
error_t cudaSetDevice(int d) { device = d; return SUCCESS; }
error_t cudaDeviceSynchronize(void) { stub_events_ready = 1; return SUCCESS; }
error_t cudaDriverGetVersion(int *v) { *v = 13000; return SUCCESS; }
error_t cudaDeviceCanAccessPeer(int *yes, int a, int b) { (void)a; (void)b; *yes = 0; return SUCCESS; }
error_t cudaDeviceEnablePeerAccess(int d, unsigned f) { (void)d; (void)f; return SUCCESS; }
error_t cudaDeviceGetStreamPriorityRange(int *low, int *high) { *low = 0; *high = -1; return SUCCESS; }
error_t cudaGetDeviceProperties(void *p, int d) {
  enum { TOTAL_AT = 288 }; /* totalGlobalMem, after a name, a UUID, a LUID and its mask */
  (void)d;
  memset(p, 0, 900);
  memcpy((char *)p + TOTAL_AT, &stub_total, sizeof stub_total);
  return SUCCESS;
}
error_t cudaDeviceGetPCIBusId(char *text, int n, int d) { (void)text; (void)n; (void)d; return 1; }
error_t cudaGetDriverEntryPointByVersion(const char *s, void **f, unsigned v, unsigned long long fl, void *r)
{ (void)s; (void)v; (void)fl; (void)r; *f = 0; return 1; }
error_t cudaGetLastError(void) { return SUCCESS; }
const char *cudaGetErrorName(error_t e) { (void)e; return "stub"; }
const char *cudaGetErrorString(error_t e) { return e == OUT_OF_MEMORY ? "out of memory" : "stub error"; }

/* Memory: a header before each block keeps its size. */
error_t cudaMalloc(void **p, size_t n)
{
  if (stub_used + n > stub_total) return OUT_OF_MEMORY;
  char *whole = aligned_alloc(4096, (n + 8191) / 4096 * 4096);
  if (whole == 0) return OUT_OF_MEMORY;
  *(size_t *)whole = n;
  stub_used += n;
  stub_mallocs++;
  *p = whole + 4096;
  return SUCCESS;
}
error_t cudaFree(void *p)
{
  if (p == 0) return SUCCESS;
  char *whole = (char *)p - 4096;
  stub_used -= *(size_t *)whole;
  free(whole);
  return SUCCESS;
}
error_t cudaMallocAsync(void **p, size_t n, stream_t s) { (void)s; return cudaMalloc(p, n); }
error_t cudaFreeAsync(void *p, stream_t s) { (void)s; return cudaFree(p); }
error_t cudaMemGetInfo(size_t *free_bytes, size_t *total) { *total = stub_total; *free_bytes = stub_total - stub_used; return SUCCESS; }
error_t cudaMemcpy(void *to, const void *from, size_t n, int kind) { (void)kind; memcpy(to, from, n); return SUCCESS; }
error_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, stream_t s) { (void)s; return cudaMemcpy(to, from, n, kind); }
error_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, stream_t s) { (void)a; (void)b; (void)s; return cudaMemcpy(to, from, n, 0); }

error_t cudaEventCreateWithFlags(void **e, unsigned f) { (void)f; *e = malloc(1); return SUCCESS; }
error_t cudaEventDestroy(void *e) { free(e); return SUCCESS; }
error_t cudaEventRecord(void *e, stream_t s) { (void)e; (void)s; return SUCCESS; }
error_t cudaEventQuery(void *e) { (void)e; return stub_events_ready ? SUCCESS : NOT_READY; }
error_t cudaEventSynchronize(void *e) { (void)e; stub_events_ready = 1; return SUCCESS; }
error_t cudaEventElapsedTime(float *ms, void *a, void *b) { (void)a; (void)b; *ms = 0; return SUCCESS; }

error_t cudaStreamCreateWithPriority(stream_t *s, unsigned f, int p)
{ static uintptr_t next = 0x1000; (void)f; (void)p; *s = (stream_t)(next += 16); return SUCCESS; }
error_t cudaStreamQuery(stream_t s) { (void)s; return SUCCESS; }
error_t cudaStreamSynchronize(stream_t s) { (void)s; return SUCCESS; }
error_t cudaStreamWaitEvent(stream_t s, void *e, unsigned f) { (void)s; (void)e; (void)f; return SUCCESS; }
error_t cudaStreamIsCapturing(stream_t s, int *status) { *status = s != 0 && s == stub_captured; return SUCCESS; }
error_t cudaStreamGetCaptureInfo(stream_t s, int *status, unsigned long long *id)
{ *status = s != 0 && s == stub_captured; if (id) *id = 1; return SUCCESS; }
error_t cudaThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return SUCCESS; }
error_t cudaGraphNodeGetDependencies(void) { return 1; }

error_t cudaIpcGetMemHandle(void *h, void *p) { memset(h, 0, 64); memcpy(h, &p, sizeof p); return SUCCESS; }
error_t cudaIpcOpenMemHandle(void **p, ...) { *p = 0; return 1; }
error_t cudaIpcCloseMemHandle(void *p) { (void)p; return SUCCESS; }
error_t cudaDeviceGetDefaultMemPool(void) { return 1; }
error_t cudaMemPoolGetAttribute(void) { return 1; }
error_t cudaMemPoolSetAccess(void) { return 1; }
error_t cudaMemPoolSetAttribute(void) { return 1; }
error_t cudaMemPoolTrimTo(void) { return 1; }

/* What builds of torch for CUDA 12 ask for beside these. */
error_t cudaGetDeviceProperties_v2(void *p, int d) { return cudaGetDeviceProperties(p, d); }
error_t cudaStreamGetCaptureInfo_v2(stream_t s, int *status, unsigned long long *id) { return cudaStreamGetCaptureInfo(s, status, id); }
error_t cudaGetDriverEntryPoint(void) { return 1; }
error_t cudaGraphAddEmptyNode(void) { return 1; }
error_t cudaGraphNodeGetType(void) { return 1; }
error_t cudaStreamUpdateCaptureDependencies(void) { return 1; }
