// SPDX-License-Identifier: MIT OR GPL-2.0
// Calls the driver's own notify function with structures of known content, built from the headers of the release
// under test: what a GPU would cause, without a GPU. Write "FD KIND COUNT" to the parameter `notify`, FD being this
// process's /dev/nvidia-uvm. No callback of the driver runs: the list of callbacks handed in is empty.
//
// Functions that would really work on a GPU (the fault service, a batch, pushing out a chunk) are called too, but
// return at once: a kprobe of ours, registered before anybody else's, sends them back at their first instruction. Other
// probes on them, return probes included, run as ever.
//
// But for fexit: its trampoline calls the function's body itself, past the kprobe. So with `direct=1` the fault service runs
// as it is, which does nothing with uvm_perf_fault_max_batches_per_service=0 but push a replay, and that is sent back; a
// batch and an eviction cannot be had then.
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/vmalloc.h>

#include "uvm_channel.h"
#include "uvm_gpu.h"
#include "uvm_perf_events.h"
#include "uvm_push.h"
#include "uvm_tools.h"
#include "uvm_va_block.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"

#define LAB_ADDRESS 0x700000000ull
#define LAB_BLOCK (2ull << 20)
// Faults of one batch, as many as the driver fetches at once by default.
#define LAB_BATCH 256

typedef void (*notify_fn)(uvm_perf_va_space_events_t *, uvm_perf_event_t, uvm_perf_event_data_t *);

// Everything that an event points to.
struct lab {
    notify_fn notify;
    uvm_perf_va_space_events_t events;
    uvm_va_space_t *va_space;
    uvm_va_range_t range;
    uvm_va_block_t block;
    uvm_fault_buffer_entry_t entry;
    uvm_make_resident_context_t resident;
    uvm_gpu_t gpu;
    uvm_parent_gpu_t parent;
    uvm_push_t push;
    uvm_channel_t channel;
    uvm_fault_service_batch_context_t batch;
};

typedef void (*fatal_fn)(uvm_gpu_id_t, uvm_va_space_t *, const uvm_fault_buffer_entry_t *, UvmEventFatalReason);
typedef void (*thrashing_fn)(uvm_va_space_t *, NvU64, size_t, const uvm_processor_mask_t *);
typedef void (*throttling_fn)(uvm_va_space_t *, NvU64, uvm_processor_id_t);
typedef void (*replay_fn)(uvm_gpu_t *, uvm_push_t *, NvU32, uvm_fault_client_type_t);
typedef long (*any_fn)(void *, void *, void *);

// Returns to the caller of whatever was sent here.
void lab_return(void);
asm(".pushsection .text\n.globl lab_return\n.type lab_return, @function\nlab_return:\n\t" ASM_RET
    "\n.size lab_return, . - lab_return\n.popsection\n");

static int send_back(struct kprobe *probe, struct pt_regs *regs)
{
    regs->ax = 0;
    regs->ip = (unsigned long)lab_return;
    return 1;
}

// The names of 550.
static struct kprobe sent_back[] = {
    { .symbol_name = "uvm_gpu_service_replayable_faults", .pre_handler = send_back },
    { .symbol_name = "preprocess_fault_batch", .pre_handler = send_back },
    { .symbol_name = "evict_root_chunk", .pre_handler = send_back },
    { .symbol_name = "push_replay_on_gpu", .pre_handler = send_back },
};
#define PUSH_REPLAY 3

static bool direct;
module_param(direct, bool, 0400);

// The function is not exported; a kprobe is the kernel's way to its address.
static void *address_of(const char *name)
{
    struct kprobe probe = { .symbol_name = name };
    void *address;

    if (register_kprobe(&probe))
        return NULL;
    address = probe.addr;
    unregister_kprobe(&probe);
    return address;
}

static void prepare(struct lab *lab, uvm_va_space_t *va_space)
{
    unsigned i;

    init_rwsem(&lab->events.lock.sem);
    for (i = 0; i < UVM_PERF_EVENT_COUNT; i++)
        INIT_LIST_HEAD(&lab->events.event_callbacks[i]);
    lab->events.va_space = va_space;
    lab->va_space = va_space;
    lab->range.va_space = va_space;
    lab->block.va_range = &lab->range;
    lab->block.start = LAB_ADDRESS;
    lab->block.end = LAB_ADDRESS + LAB_BLOCK - 1;
    INIT_LIST_HEAD(&lab->entry.merged_instances_list);
    lab->gpu.parent = &lab->parent;
    lab->gpu.id = uvm_gpu_id_from_value(UVM_ID_GPU0_VALUE);
    for (i = 0; i < sizeof(lab->parent.uuid.uuid); i++)
        lab->parent.uuid.uuid[i] = 0xa0 + i;
    lab->push.channel = &lab->channel;
}

// Calls of one of the functions that are sent back.
static int sent(unsigned which, void *first, void *second)
{
    void *function = sent_back[which].addr;

    if (direct && which == 0 && sent_back[PUSH_REPLAY].addr)
        function = address_of(sent_back[which].symbol_name);
    if (!function)
        return -ENOENT;
    ((any_fn)function)(first, second, NULL);
    return 0;
}

// One of the driver's own reports, to nobody: no tools queue is open, so the functions return early.
static int report(struct lab *lab, const char *kind, unsigned long i)
{
    uvm_processor_id_t gpu = uvm_gpu_id_from_value(UVM_ID_GPU0_VALUE);
    NvU64 address = LAB_ADDRESS + i * PAGE_SIZE;
    void *function;

    if (!strcmp(kind, "fatal")) {
        function = address_of("uvm_tools_record_gpu_fatal_fault");
        lab->entry.fault_address = address;
        lab->entry.fault_access_type = UVM_FAULT_ACCESS_TYPE_WRITE;
        if (function)
            ((fatal_fn)function)(gpu, lab->va_space, &lab->entry, UvmEventFatalReasonInvalidAddress);
    } else if (!strcmp(kind, "thrashing")) {
        static const uvm_processor_mask_t nobody;
        function = address_of("uvm_tools_record_thrashing");
        if (function)
            ((thrashing_fn)function)(lab->va_space, address, PAGE_SIZE, &nobody);
    } else if (!strcmp(kind, "throttling")) {
        void *end = address_of("uvm_tools_record_throttling_end");
        function = address_of("uvm_tools_record_throttling_start");
        if (function && end) {
            ((throttling_fn)function)(lab->va_space, address, gpu);
            udelay(100);
            ((throttling_fn)end)(lab->va_space, address, gpu);
        }
    } else if (!strcmp(kind, "replay")) {
        function = address_of("uvm_tools_broadcast_replay");
        if (function)
            ((replay_fn)function)(&lab->gpu, &lab->push, i, UVM_FAULT_CLIENT_TYPE_GPC);
    } else
        return -EINVAL;
    return function ? 0 : -ENOENT;
}

// Access goes round prefetch, read, write, weak atomic, strong atomic; every tenth is a duplicate.
static void gpu_fault(struct lab *lab, unsigned long i, bool fatal)
{
    uvm_perf_event_data_t data;

    memset(&data, 0, sizeof(data));
    lab->entry.fault_address = LAB_ADDRESS + i * PAGE_SIZE;
    lab->entry.timestamp = i;
    lab->entry.fault_type = fatal ? UVM_FAULT_TYPE_VA_LIMIT_VIOLATION : UVM_FAULT_TYPE_INVALID_PTE;
    lab->entry.fault_access_type = i % UVM_FAULT_ACCESS_TYPE_COUNT;
    lab->entry.access_type_mask = 1u << lab->entry.fault_access_type;
    lab->entry.va_space = lab->va_space;
    lab->entry.is_fatal = fatal;
    lab->entry.fatal_reason = fatal ? UvmEventFatalReasonInvalidAddress : UvmEventFatalReasonInvalid;
    lab->entry.is_replayable = true;
    lab->entry.is_virtual = true;
    lab->entry.num_instances = 1;
    data.fault.space = lab->va_space;
    data.fault.block = fatal ? NULL : &lab->block;
    data.fault.proc_id = uvm_gpu_id_from_value(UVM_ID_GPU0_VALUE);
    data.fault.preferred_location = UVM_ID_CPU;
    data.fault.gpu.buffer_entry = &lab->entry;
    data.fault.gpu.batch_id = i / LAB_BATCH;
    data.fault.gpu.is_duplicate = i % 10 == 9;
    lab->notify(&lab->events, UVM_PERF_EVENT_FAULT, &data);
}

// What no layout of the driver allows: a fault of a processor that cannot be.
static void garbage(struct lab *lab)
{
    uvm_perf_event_data_t data;

    memset(&data, 0, sizeof(data));
    data.fault.space = lab->va_space;
    data.fault.proc_id.val = 0x7fff0000;
    lab->notify(&lab->events, UVM_PERF_EVENT_FAULT, &data);
}

static void migration(struct lab *lab, unsigned long i, bool to_gpu, uvm_make_resident_cause_t cause)
{
    uvm_processor_id_t gpu = uvm_gpu_id_from_value(UVM_ID_GPU0_VALUE);
    uvm_perf_event_data_t data;

    memset(&data, 0, sizeof(data));
    lab->resident.cause = cause;
    data.migration.block = &lab->block;
    data.migration.dst = to_gpu ? gpu : UVM_ID_CPU;
    data.migration.src = to_gpu ? UVM_ID_CPU : gpu;
    data.migration.address = LAB_ADDRESS + i * 16 * PAGE_SIZE;
    data.migration.bytes = 16 * PAGE_SIZE;
    data.migration.transfer_mode = UVM_VA_BLOCK_TRANSFER_MODE_MOVE;
    data.migration.cause = cause;
    data.migration.make_resident_context = &lab->resident;
    lab->notify(&lab->events, UVM_PERF_EVENT_MIGRATION, &data);
}

static int one(struct lab *lab, const char *kind, unsigned long i)
{
    if (!strcmp(kind, "gpu_fault"))
        gpu_fault(lab, i, false);
    else if (!strcmp(kind, "fatal_fault"))
        gpu_fault(lab, i, true);
    else if (!strcmp(kind, "garbage"))
        garbage(lab);
    else if (!strcmp(kind, "on_demand"))
        migration(lab, i, true, UVM_MAKE_RESIDENT_CAUSE_REPLAYABLE_FAULT);
    else if (!strcmp(kind, "prefetch"))
        migration(lab, i, true, UVM_MAKE_RESIDENT_CAUSE_PREFETCH);
    else if (!strcmp(kind, "access_counter"))
        migration(lab, i, true, UVM_MAKE_RESIDENT_CAUSE_ACCESS_COUNTER);
    else if (!strcmp(kind, "eviction"))
        migration(lab, i, false, UVM_MAKE_RESIDENT_CAUSE_EVICTION);
    else if (!strcmp(kind, "service"))
        return sent(0, &lab->gpu, NULL);
    else if (!strcmp(kind, "batch")) {
        // 1, 2, ... faults.
        lab->batch.num_cached_faults = i + 1;
        return sent(1, &lab->gpu, &lab->batch);
    } else if (!strcmp(kind, "evict"))
        return sent(2, &lab->gpu.pmm, NULL);
    else if (!strcmp(kind, "push_out")) {
        // As the driver does it: the chunk's pages move on the thread that pushes it out.
        int error = sent(2, &lab->gpu.pmm, NULL);
        migration(lab, i, false, UVM_MAKE_RESIDENT_CAUSE_EVICTION);
        return error;
    }
    else
        return report(lab, kind, i);
    return 0;
}

static int run(uvm_va_space_t *va_space, const char *kind, unsigned long count)
{
    struct lab *lab;
    unsigned long i;
    int error = 0;

    lab = vzalloc(sizeof(*lab));
    if (!lab)
        return -ENOMEM;
    lab->notify = address_of("uvm_perf_event_notify");
    if (!lab->notify)
        error = -ENOENT;
    prepare(lab, va_space);
    for (i = 0; i < count && !error; i++)
        error = one(lab, kind, i);
    vfree(lab);
    return error;
}

static int notify_set(const char *value, const struct kernel_param *param)
{
    char kind[32];
    unsigned long count;
    struct file *file;
    void *va_space;
    int fd, error;

    if (sscanf(value, "%d %31s %lu", &fd, kind, &count) != 3)
        return -EINVAL;
    file = fget(fd);
    if (!file)
        return -EBADF;
    // An initialized descriptor holds its va_space, with the kind of descriptor in the lowest bits.
    va_space = (void *)((unsigned long)file->private_data & ~UVM_FD_TYPE_MASK);
    error = va_space ? run(va_space, kind, count) : -EBADF;
    fput(file);
    return error;
}

static const struct kernel_param_ops notify_ops = { .set = notify_set };
module_param_cb(notify, &notify_ops, NULL, 0200);

// A function that this build of the driver does not have cannot be called; asking for it is then an error.
static int __init lab_init(void)
{
    unsigned i;

    for (i = 0; i < ARRAY_SIZE(sent_back); i++)
        if ((direct && i != PUSH_REPLAY) || register_kprobe(&sent_back[i]))
            sent_back[i].addr = NULL;
    return 0;
}
module_init(lab_init);

static void __exit lab_exit(void)
{
    unsigned i;

    for (i = 0; i < ARRAY_SIZE(sent_back); i++)
        if (sent_back[i].addr)
            unregister_kprobe(&sent_back[i]);
}
module_exit(lab_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Calls nvidia-uvm's notify function with known structures");
