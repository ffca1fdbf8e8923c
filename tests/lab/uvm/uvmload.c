// SPDX-License-Identifier: MIT OR Apache-2.0
// Managed memory with known counts, through /dev/nvidia-uvm and without a GPU. Reads commands from stdin, one a line,
// and answers each with one JSON line that says what it did. Built against the headers of the driver under test.
//
//   fault N read|write    touch one page of each of N new 2 MiB blocks: N CPU page faults
//   migrate N             N blocks, filled on node 0, moved to node 1 and back: 2 N migrations of 2 MiB
//   inject TYPE N         N events of this tools type (needs uvm_enable_builtin_tests=1)
//   notify KIND N         N calls of a function of the driver by the test module glake_uvm_lab: uvm_perf_event_notify for
//                         gpu_fault, fatal_fault, on_demand, prefetch, access_counter, eviction; others by their name
//   spaces N              N address spaces more, until the end
//   track                 from now on count events with the driver's own tools queue (the oracle)
//   counts                what the tracker has seen, by type
//   sleep MS
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "uvm_types.h"
#include "uvm_linux_ioctl.h"
#include "uvm_test_ioctl.h"

#define BLOCK (2ul << 20)
#define PAGE 4096ul
#define ENTRIES 65536u

// The CPU's own UUID, see NV_PROCESSOR_UUID_CPU_DEFAULT in the driver's nvCpuUuid.h.
static const NvProcessorUuid cpu_uuid = {
    { 0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73 }
};

static int uvm = -1;
// Addresses are taken one after another, so that every block is new.
static uintptr_t next_address = 0x600000000ul;

static struct {
    int fd;
    UvmEventEntry_V1 *queue;
    UvmToolsEventControlData_V1 *control;
} tracker = { -1, NULL, NULL };

static void fail(const char *what)
{
    printf("{\"error\":\"%s\",\"errno\":%d}\n", what, errno);
    exit(1);
}

static void check(const char *what, int result, NV_STATUS status)
{
    if (result == 0 && status == NV_OK)
        return;
    printf("{\"error\":\"%s\",\"ioctl\":%d,\"errno\":%d,\"status\":\"0x%x\"}\n", what, result, errno, status);
    exit(1);
}

static void initialize(void)
{
    UVM_INITIALIZE_PARAMS p = { 0 };
    uvm = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
    if (uvm < 0)
        fail("open /dev/nvidia-uvm");
    check("UVM_INITIALIZE", ioctl(uvm, UVM_INITIALIZE, &p), p.rmStatus);
}

static void spaces(unsigned long n)
{
    for (unsigned long i = 0; i < n; i++)
        initialize();
    printf("{\"did\":\"spaces\",\"spaces\":%lu,\"pid\":%d}\n", n, getpid());
}

// UVM wants the file offset to be the address.
static char *blocks(unsigned long n)
{
    char *p = mmap((void *)next_address, n * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, uvm, next_address);
    if (p == MAP_FAILED)
        fail("mmap");
    next_address += n * BLOCK;
    return p;
}

static void fault(unsigned long n, const char *access)
{
    volatile char *p = blocks(n);
    int write = strcmp(access, "write") == 0;
    for (unsigned long i = 0; i < n; i++) {
        // Not the block's first page, so that an address in an event shows more than the block's start.
        volatile char *page = p + i * BLOCK + (i % 512) * PAGE;
        if (write)
            *page = 1;
        else
            (void)*page;
    }
    printf("{\"did\":\"fault\",\"faults\":%lu,\"access\":\"%s\",\"address\":%lu,\"pid\":%d}\n", n,
           write ? "write" : "read", (unsigned long)p, getpid());
}

static void to_node(char *base, unsigned long n, int node)
{
    UVM_MIGRATE_PARAMS p = { 0 };
    p.base = (uintptr_t)base;
    p.length = n * BLOCK;
    p.destinationUuid = cpu_uuid;
    p.cpuNumaNode = node;
    check("UVM_MIGRATE", ioctl(uvm, UVM_MIGRATE, &p), p.rmStatus);
}

static void migrate(unsigned long n)
{
    char *p = blocks(n);
    // The first call only populates: there is nothing to copy yet.
    to_node(p, n, 0);
    memset(p, 7, n * BLOCK);
    to_node(p, n, 1);
    to_node(p, n, 0);
    int intact = 1;
    for (unsigned long i = 0; i < n * BLOCK; i++)
        intact &= p[i] == 7;
    printf("{\"did\":\"migrate\",\"migrations\":%lu,\"bytes\":%lu,\"intact\":%s,\"address\":%lu,\"pid\":%d}\n", 2 * n,
           2 * n * BLOCK, intact ? "true" : "false", (unsigned long)p, getpid());
}

static void inject(unsigned type, unsigned long n)
{
    UVM_TEST_INJECT_TOOLS_EVENT_PARAMS p;
    memset(&p, 0, sizeof(p));
    p.version = UvmToolsEventQueueVersion_V1;
    p.count = n;
    p.entry_v1.eventData.eventType = type;
    check("UVM_TEST_INJECT_TOOLS_EVENT", ioctl(uvm, UVM_TEST_INJECT_TOOLS_EVENT, &p), p.rmStatus);
    printf("{\"did\":\"inject\",\"type\":%u,\"events\":%lu,\"pid\":%d}\n", type, n, getpid());
}

// The module reads the descriptor, to find this process's va_space, and what to do.
static void notify(const char *kind, unsigned long n)
{
    char line[64];
    int length = snprintf(line, sizeof(line), "%d %s %lu", uvm, kind, n);
    int fd = open("/sys/module/glake_uvm_lab/parameters/notify", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        fail("open the module's notify parameter");
    if (write(fd, line, length) != length)
        fail("write the module's notify parameter");
    close(fd);
    printf("{\"did\":\"notify\",\"kind\":\"%s\",\"calls\":%lu,\"pid\":%d}\n", kind, n, getpid());
}

static void track(void)
{
    UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS init = { 0 };
    UVM_TOOLS_SET_NOTIFICATION_THRESHOLD_PARAMS threshold = { 0 };
    UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS_PARAMS enable = { 0 };
    size_t queue = ENTRIES * sizeof(UvmEventEntry_V1), control = (sizeof(*tracker.control) + PAGE - 1) / PAGE * PAGE;
    tracker.queue = mmap(NULL, queue, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tracker.control = mmap(NULL, control, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tracker.queue == MAP_FAILED || tracker.control == MAP_FAILED)
        fail("mmap of the queue");
    tracker.fd = open("/dev/nvidia-uvm-tools", O_RDWR | O_CLOEXEC);
    if (tracker.fd < 0)
        fail("open /dev/nvidia-uvm-tools");
    init.queueBuffer = (uintptr_t)tracker.queue;
    init.queueBufferSize = ENTRIES;
    init.controlBuffer = (uintptr_t)tracker.control;
    init.allProcessors = 1;
    init.uvmFd = uvm;
    init.requestedVersion = UvmToolsEventQueueVersion_V1;
    check("UVM_TOOLS_INIT_EVENT_TRACKER", ioctl(tracker.fd, UVM_TOOLS_INIT_EVENT_TRACKER, &init), init.rmStatus);
    threshold.notificationThreshold = 1;
    check("threshold", ioctl(tracker.fd, UVM_TOOLS_SET_NOTIFICATION_THRESHOLD, &threshold), threshold.rmStatus);
    enable.eventTypeFlags = ((1ull << UvmEventNumTypes) - 1) & ~1ull;
    check("enable", ioctl(tracker.fd, UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS, &enable), enable.rmStatus);
    printf("{\"did\":\"track\"}\n");
}

static void counts(void)
{
    UVM_TOOLS_FLUSH_EVENTS_PARAMS flush = { 0 };
    unsigned by_type[256] = { 0 };
    unsigned long dropped = 0;
    check("UVM_TOOLS_FLUSH_EVENTS", ioctl(uvm, UVM_TOOLS_FLUSH_EVENTS, &flush), flush.rmStatus);
    for (unsigned i = tracker.control->get_behind; i != tracker.control->put_behind; i++)
        by_type[tracker.queue[i % ENTRIES].eventData.eventType]++;
    tracker.control->get_ahead = tracker.control->get_behind = tracker.control->put_behind;
    for (unsigned i = 0; i < UvmEventNumTypesAll; i++)
        dropped += tracker.control->dropped[i];
    printf("{\"did\":\"counts\",\"dropped\":%lu,\"types\":{", dropped);
    const char *comma = "";
    for (unsigned i = 0; i < 256; i++) {
        if (by_type[i]) {
            printf("%s\"%u\":%u", comma, i, by_type[i]);
            comma = ",";
        }
    }
    printf("}}\n");
}

int main(void)
{
    char line[256], word[32], third[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    initialize();
    printf("{\"did\":\"initialize\",\"pid\":%d}\n", getpid());
    while (fgets(line, sizeof(line), stdin)) {
        unsigned long n = 0;
        third[0] = 0;
        if (sscanf(line, "%31s %lu %31s", word, &n, third) < 1)
            continue;
        if (!strcmp(word, "fault"))
            fault(n, third);
        else if (!strcmp(word, "spaces"))
            spaces(n);
        else if (!strcmp(word, "migrate"))
            migrate(n);
        else if (!strcmp(word, "inject"))
            inject(n, strtoul(third, NULL, 10));
        else if (!strcmp(word, "notify") && sscanf(line, "%*s %31s %lu", word, &n) == 2)
            notify(word, n);
        else if (!strcmp(word, "track"))
            track();
        else if (!strcmp(word, "counts"))
            counts();
        else if (!strcmp(word, "sleep"))
            usleep(n * 1000);
        else {
            printf("{\"error\":\"unknown command\"}\n");
            return 2;
        }
    }
    return 0;
}
