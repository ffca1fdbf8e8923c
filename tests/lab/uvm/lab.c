// SPDX-License-Identifier: MIT OR GPL-2.0
// Calls the driver's own notify function with structures of known content, built from the headers of the release
// under test: what a GPU would cause, without a GPU. Write "FD KIND COUNT" to the parameter `notify`, FD being this
// process's /dev/nvidia-uvm. No callback of the driver runs: the list of callbacks handed in is empty.
#include <linux/file.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/vmalloc.h>

#include "uvm_gpu.h"
#include "uvm_perf_events.h"
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
};

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
    else if (!strcmp(kind, "on_demand"))
        migration(lab, i, true, UVM_MAKE_RESIDENT_CAUSE_REPLAYABLE_FAULT);
    else if (!strcmp(kind, "prefetch"))
        migration(lab, i, true, UVM_MAKE_RESIDENT_CAUSE_PREFETCH);
    else if (!strcmp(kind, "access_counter"))
        migration(lab, i, true, UVM_MAKE_RESIDENT_CAUSE_ACCESS_COUNTER);
    else if (!strcmp(kind, "eviction"))
        migration(lab, i, false, UVM_MAKE_RESIDENT_CAUSE_EVICTION);
    else
        return -EINVAL;
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

// The kernel wants one, for a module without devices too.
static int __init lab_init(void)
{
    return 0;
}
module_init(lab_init);

static void __exit lab_exit(void)
{
}
module_exit(lab_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Calls nvidia-uvm's notify function with known structures");
