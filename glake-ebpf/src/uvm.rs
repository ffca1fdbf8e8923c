//! UVM page faults and page migrations: functions of NVIDIA's nvidia-uvm module, read at offsets that user space found.
//!
//! The module's structures have no types that the verifier knows, so every field is read by `bpf_probe_read_kernel`,
//! and every value is held against what it can be: a driver with another layout is noticed, not believed.

use crate::{
    atomic::Word,
    context::{Kernel, now, param, shard},
    maps::{
        STATS, UVM_CELLS, UVM_FREE, UVM_GPU_CELLS, UVM_GPU_KEYS, UVM_GPUS, UVM_INDEX, UVM_INFO, UVM_RUNS,
        UVM_SPACES, UVM_THROTTLES, add, below, count, emit, file, place,
    },
};
use aya_ebpf::{
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid,
        generated::{self, bpf_get_current_cgroup_id},
    },
    programs::{ProbeContext, RetProbeContext},
};
use core::ptr::read_volatile;
use glake_common::{
    NONE, member::*, param, record::kind, stat,
    uvm::{
        CPU, CellKey, MANY, PROCESSORS, Run, Space, ThrottleKey, access_word, batch_slot, cause, event, gpu,
        layout::{self, *},
        moves, way, word,
    },
};

/// Offsets; user space fills them in before the load.
#[unsafe(no_mangle)]
static UVM_LAYOUT: [u32; layout::COUNT] = [NONE; layout::COUNT];

/// The largest migration that is believed: blocks are 2 MiB, ranges of pageable memory may be more.
const LARGEST: u64 = 1 << 30;
/// The largest batch that is believed; the driver's own limit is a module parameter, 256 by default.
const LARGEST_BATCH: u32 = 1 << 16;
/// `UVM_FD_VA_SPACE` of the driver, in the lowest bits of an open file's private pointer (2 bits up to 575, 3 since).
const FD_VA_SPACE: u64 = 2;
const FD_TYPE: u64 = 7;

/// An offset. The verifier knows its value.
#[inline(always)]
fn at(index: usize) -> u32 {
    // SAFETY: an initialised static of that many words; volatile, since user space overwrites it before the load.
    unsafe { read_volatile(&raw const UVM_LAYOUT[index]) }
}

/// A field of a structure of the driver. `None`: this release is not known to have it, or the address is bad.
#[inline(always)]
fn read<T: Default + Copy>(base: u64, field: usize) -> Option<T> {
    let offset = at(field);
    if offset == NONE || base == 0 {
        return None;
    }
    load(base.wrapping_add(u64::from(offset)))
}

#[inline(always)]
fn load<T: Default + Copy>(address: u64) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the destination is that long; a bad source is an error, not a fault.
    let failed = unsafe {
        generated::bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, address as *const _)
    };
    if failed == 0 { Some(value) } else { None }
}

/// `uvm_perf_event_notify(events, event, data)`: one call a fault or migrated range.
#[inline(always)]
pub fn notify(ctx: &ProbeContext) {
    let (Some(events), Some(what), Some(data)) =
        (ctx.arg::<u64>(0), ctx.arg::<u32>(1), ctx.arg::<u64>(2))
    else {
        return;
    };
    let understood = match what {
        event::FAULT => fault(events, data),
        event::MIGRATION => migration(events, data),
        _ => return,
    };
    count(if understood.is_some() { stat::UVM_SEEN } else { stat::UVM_IMPLAUSIBLE });
}

/// `None`: it does not look like a fault.
#[inline(always)]
fn fault(events: u64, data: u64) -> Option<()> {
    let space = space_of(events)?;
    let processor = read::<u32>(data, FAULT_PROCESSOR)?;
    if processor == CPU {
        let write = read::<u8>(data, CPU_WRITE)?;
        if write > 1 {
            return None;
        }
        // The fault is serviced in the thread that made it, so who that is is known.
        if let Some(counters) = counters(space, CPU, true) {
            bump(counters, word::CPU_FAULTS + write as usize, 1);
        }
        return Some(());
    }
    if processor >= PROCESSORS {
        return None;
    }
    let entry = read::<u64>(data, FAULT_ENTRY)?;
    let access = read::<u32>(entry, ENTRY_WORD)? >> (at(ENTRY_ACCESS_BIT) & 31) & 0xf;
    let which = access_word(access)?;
    // The driver handles equal faults of a batch as one and keeps how many there were.
    let instances = read::<u16>(entry, ENTRY_INSTANCES).unwrap_or(1);
    let duplicate = read::<u8>(data, FAULT_DUPLICATE).unwrap_or(0);
    if let Some(counters) = counters(space, processor, false) {
        let n = if instances == 0 { 1 } else { u64::from(instances) };
        bump(counters, which, n);
        if duplicate == 1 {
            bump(counters, word::DUPLICATES, n);
        }
    }
    Some(())
}

/// `None`: it does not look like a migration.
#[inline(always)]
fn migration(events: u64, data: u64) -> Option<()> {
    let space = space_of(events)?;
    let target = read::<u32>(data, MIGRATION_TARGET)?;
    let source = read::<u32>(data, MIGRATION_SOURCE)?;
    let bytes = read::<u64>(data, MIGRATION_BYTES)?;
    let cause = cause::of(read::<u32>(data, MIGRATION_CAUSE)?)?;
    if target >= PROCESSORS || source >= PROCESSORS || bytes == 0 || bytes > LARGEST || bytes & 4095 != 0 {
        return None;
    }
    let processor = if target == CPU { source } else { target };
    if let Some(counters) = counters(space, processor, false) {
        let which = moves(cause, way::of(source, target));
        bump(counters, which, 1);
        bump(counters, which + 1, bytes);
    }
    Some(())
}

/// The address space that a list of callbacks belongs to. A pointer into the upper half, or it is none.
#[inline(always)]
fn space_of(events: u64) -> Option<u64> {
    let space = read::<u64>(events, EVENTS_SPACE)?;
    if space >> 47 == (1 << 17) - 1 { Some(space) } else { None }
}

#[inline(always)]
fn bump(counters: *mut u64, which: usize, n: u64) {
    let which = below(which as u64, word::COUNT as u64) as usize;
    // SAFETY: below the length of a map value.
    add(unsafe { counters.add(which) }, n);
}

/// This CPU's counters of an address space and a processor. `here`: the current process is the space's own.
#[inline(always)]
fn counters(space: u64, processor: u32, here: bool) -> Option<*mut u64> {
    let serial = match UVM_SPACES.get_ptr_mut(&space) {
        Some(known) => {
            // SAFETY: fields of a map value; whoever fills them in at the same time writes the same.
            unsafe {
                if here && (*known).tgid == 0 {
                    fill(&mut *known);
                }
                (*known).serial
            }
        }
        None => enter(space, here)?,
    };
    let key = CellKey { serial, processor, spare: 0 };
    // SAFETY: the value is a word that never changes after its insertion.
    let cell = match unsafe { UVM_INDEX.get(key) } {
        Some(cell) => *cell,
        None => claim(&key, space)?,
    };
    Some(UVM_CELLS.get_ptr_mut(shard(cell))?.cast())
}

/// The current process as the maker of an address space.
#[inline(always)]
fn fill(space: &mut Space) {
    // SAFETY: no arguments.
    space.cgroup = unsafe { bpf_get_current_cgroup_id() };
    space.comm = bpf_get_current_comm().unwrap_or([0; 16]);
    space.tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
}

/// A new life of an address space; gives its number.
#[inline(never)]
fn enter(space: u64, here: bool) -> Option<u64> {
    let stats = STATS.get_ptr_mut(0)?;
    // SAFETY: the index is below the length.
    let serial = Word::of(unsafe { &raw mut (*stats)[stat::UVM_SERIALS] }).next() + 1;
    let mut new = Space { serial, cgroup: 0, tgid: 0, spare: 0, comm: [0; 16] };
    if here {
        fill(&mut new);
    }
    if UVM_SPACES.insert(space, new, 0).is_err() {
        count(stat::UVM_FULL);
        return None;
    }
    Some(serial)
}

/// Gives a cell to an address space and a processor.
#[inline(never)]
fn claim(key: &CellKey, space: u64) -> Option<u32> {
    let Ok(Some(cell)) = UVM_FREE.pop() else {
        count(stat::UVM_FULL);
        return None;
    };
    let info = UVM_INFO.get_ptr_mut(cell)?;
    // SAFETY: the cell came out of the queue of free ones, so it is ours alone until UVM_INDEX names it.
    unsafe {
        (*info).key = *key;
        (*info).space = space;
        if let Some(known) = UVM_SPACES.get_ptr_mut(&space) {
            (*info).cgroup = (*known).cgroup;
            (*info).tgid = (*known).tgid;
            (*info).comm = (*known).comm;
        }
        (&raw mut (*info).taken).write_volatile(1);
    }
    // BPF_NOEXIST: another CPU may have been quicker.
    if UVM_INDEX.insert(key, cell, 1).is_ok() {
        return Some(cell);
    }
    // SAFETY: as in `counters`; and the cell is still ours alone.
    unsafe {
        (&raw mut (*info).taken).write_volatile(0);
        let _ = UVM_FREE.push(cell, 0);
        UVM_INDEX.get(key).copied()
    }
}

/// `uvm_va_space_mm_register(va_space)`: called once for each address space, by the process that makes it.
#[inline(always)]
pub fn space_begins(ctx: &ProbeContext) {
    if let Some(space) = ctx.arg::<u64>(0) {
        enter(space, true);
    }
}

/// `uvm_va_space_destroy(va_space)`.
#[inline(always)]
pub fn space_ends(ctx: &ProbeContext) {
    if let Some(space) = ctx.arg::<u64>(0) {
        let _ = UVM_SPACES.remove(space);
    }
}

/// One open file of one task (an iterator, run once): an address space that is older than the probes.
#[inline(always)]
pub fn open_file(ctx: *const u64) {
    // struct bpf_iter__task_file of the kernel's types: meta, task, fd, file.
    let (task, open) = (Kernel::argument(ctx, 1), Kernel::argument(ctx, 3));
    if task.is_null() || open.is_null() {
        return;
    }
    if open.follow(FILE_INODE).u32(INODE_RDEV) != param(param::UVM_DEVICE) {
        return;
    }
    let private = open.u64(FILE_PRIVATE);
    if private & FD_TYPE != FD_VA_SPACE {
        return;
    }
    let space = private & !FD_TYPE;
    if UVM_SPACES.get_ptr_mut(&space).is_none() {
        enter(space, false);
    }
    let Some(known) = UVM_SPACES.get_ptr_mut(&space) else { return };
    // SAFETY: fields of a map value; nobody else knows better than an open file.
    unsafe {
        if (*known).tgid != 0 {
            return;
        }
        (*known).tgid = task.u32(TASK_TGID);
        (*known).cgroup = task.follow(TASK_CGROUPS).follow(CSS_SET_CGROUP).follow(CGROUP_KN).u64(KN_ID);
        task.text(TASK_COMM, &raw mut (*known).comm);
    }
}

/// The fault service begins: `uvm_parent_gpu_service_replayable_faults(parent_gpu)`, up to 555 `(gpu)`.
#[inline(always)]
pub fn service(ctx: &ProbeContext) {
    let Some(gpu) = ctx.arg::<u64>(0) else { return };
    let run = Run { start_ns: now(), gpu };
    if UVM_RUNS.insert(bpf_get_current_pid_tgid(), run, 0).is_err() {
        count(stat::UVM_FULL);
    }
}

/// It ends, on the same thread.
#[inline(always)]
pub fn service_ends(_ctx: &RetProbeContext) {
    let thread = bpf_get_current_pid_tgid();
    // SAFETY: the value is this thread's own.
    let Some(run) = (unsafe { UVM_RUNS.get(thread) }).copied() else { return };
    let _ = UVM_RUNS.remove(thread);
    let Some(counters) = serviced(run.gpu).and_then(of_gpu) else { return };
    let took = now().wrapping_sub(run.start_ns);
    // SAFETY: constant indices below the length of a map value.
    unsafe {
        add(counters.add(gpu::SERVICE_NS), took);
        file(counters.add(gpu::SERVICE).cast(), took);
    }
}

/// The `uvm_parent_gpu_t` of what the fault service is called with.
#[inline(always)]
fn serviced(called_with: u64) -> Option<u64> {
    if at(SERVICE_TAKES_GPU) == 1 { read::<u64>(called_with, GPU_PARENT) } else { Some(called_with) }
}

/// This CPU's counters of a GPU; 1 stands for one that cannot be told.
#[inline(always)]
fn of_gpu(parent: u64) -> Option<*mut u64> {
    let Some(index) = place(&UVM_GPU_KEYS, param(param::UVM_GPU_MASK), parent) else {
        count(stat::UVM_FULL);
        return None;
    };
    let info = UVM_GPUS.get_ptr_mut(index)?;
    // SAFETY: fields of a map value. Whoever comes first writes them; a second one at the same time writes the same.
    unsafe {
        if (&raw const (*info).taken).read_volatile() == 0 {
            (*info).uuid = if parent == 1 { [0; 2] } else { read(parent, PARENT_UUID).unwrap_or([0; 2]) };
            (&raw mut (*info).taken).write_volatile(1);
        }
    }
    Some(UVM_GPU_CELLS.get_ptr_mut(shard(index))?.cast())
}

/// `preprocess_fault_batch(gpu, batch)`: once for each batch that is not empty.
#[inline(always)]
pub fn batch(ctx: &ProbeContext) {
    let (Some(called_with), Some(batch)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else { return };
    let Some(faults) = read::<u32>(batch, BATCH_CACHED).filter(|n| *n <= LARGEST_BATCH) else {
        count(stat::UVM_IMPLAUSIBLE);
        return;
    };
    let Some(counters) = serviced(called_with).and_then(of_gpu) else { return };
    let slot = below(batch_slot(faults) as u64, glake_common::uvm::BATCH_SLOTS as u64) as usize;
    // SAFETY: indices below the length of a map value.
    unsafe {
        add(counters.add(gpu::BATCHED), u64::from(faults));
        add(counters.add(gpu::BATCHES + slot), 1);
    }
}

/// `uvm_tools_broadcast_replay(gpu, push, batch, client)`: called for each replay, with or without a tools queue.
#[inline(always)]
pub fn replay(ctx: &ProbeContext) {
    let Some(called_with) = ctx.arg::<u64>(0) else { return };
    let Some(parent) = read::<u64>(called_with, GPU_PARENT) else {
        count(stat::UVM_IMPLAUSIBLE);
        return;
    };
    let Some(counters) = of_gpu(parent) else { return };
    // SAFETY: a constant index below the length of a map value.
    add(unsafe { counters.add(gpu::REPLAYS) }, 1);
    let id = read::<u32>(called_with, GPU_ID).filter(|id| *id != CPU && *id < PROCESSORS);
    let index = place(&UVM_GPU_KEYS, param(param::UVM_GPU_MASK), parent);
    if let (Some(id), Some(index)) = (id, index)
        && let Some(info) = UVM_GPUS.get_ptr_mut(index)
    {
        // SAFETY: a word of a map value.
        let known = Word::of(unsafe { &raw mut (*info).processor });
        match known.load() {
            0 => known.store(u64::from(id) + 1),
            same if same == u64::from(id) + 1 => {}
            _ => known.store(MANY),
        }
    }
}

/// `evict_root_chunk(pmm, chunk, context)`; the pmm lies in the GPU's structure.
#[inline(always)]
pub fn evict(ctx: &ProbeContext) {
    let Some(pmm) = ctx.arg::<u64>(0) else { return };
    let offset = at(GPU_PMM);
    let parent = if offset == NONE { None } else { read::<u64>(pmm.wrapping_sub(u64::from(offset)), GPU_PARENT) };
    if let Some(counters) = of_gpu(parent.unwrap_or(1)) {
        // SAFETY: a constant index below the length of a map value.
        add(unsafe { counters.add(gpu::EVICTIONS) }, 1);
    }
}

/// `uvm_tools_record_thrashing(va_space, address, size, processors)`.
#[inline(always)]
pub fn thrashing(ctx: &ProbeContext) {
    if let Some(space) = ctx.arg::<u64>(0)
        && let Some(counters) = counters(space, CPU, false)
    {
        bump(counters, word::THRASHING, 1);
    }
}

#[inline(always)]
fn throttled(ctx: &ProbeContext) -> Option<ThrottleKey> {
    let (space, address, processor) = (ctx.arg(0)?, ctx.arg(1)?, ctx.arg::<u32>(2)?);
    Some(ThrottleKey { space, address, processor: u64::from(processor) })
}

/// `uvm_tools_record_throttling_start(va_space, address, processor)`.
#[inline(always)]
pub fn throttling(ctx: &ProbeContext) {
    if let Some(key) = throttled(ctx)
        && UVM_THROTTLES.insert(key, now(), 0).is_err()
    {
        count(stat::UVM_FULL);
    }
}

/// `uvm_tools_record_throttling_end(va_space, address, processor)`.
#[inline(always)]
pub fn throttling_ends(ctx: &ProbeContext) {
    let Some(key) = throttled(ctx) else { return };
    // SAFETY: a word that nobody changes after its insertion.
    let Some(start) = (unsafe { UVM_THROTTLES.get(key) }).copied() else { return };
    let _ = UVM_THROTTLES.remove(key);
    if key.processor < u64::from(PROCESSORS)
        && let Some(counters) = counters(key.space, key.processor as u32, false)
    {
        bump(counters, word::THROTTLED, 1);
        bump(counters, word::THROTTLED_NS, now().wrapping_sub(start));
    }
}

/// `uvm_tools_record_gpu_fatal_fault(gpu, va_space, entry, reason)`.
#[inline(always)]
pub fn fatal(ctx: &ProbeContext) {
    let (Some(processor), Some(space), Some(entry), Some(reason)) =
        (ctx.arg::<u32>(0), ctx.arg::<u64>(1), ctx.arg::<u64>(2), ctx.arg::<u32>(3))
    else {
        return;
    };
    if processor >= PROCESSORS || space == 0 {
        count(stat::UVM_IMPLAUSIBLE);
        return;
    }
    let reason = if reason < 7 { reason } else { 7 };
    if let Some(counters) = counters(space, processor, false) {
        bump(counters, word::FATAL + reason as usize, 1);
    }
    // `fault_address` is the entry's first member in every release.
    let address = load::<u64>(entry).unwrap_or(0);
    let access = read::<u32>(entry, ENTRY_WORD).map_or(0xff, |w| w >> (at(ENTRY_ACCESS_BIT) & 31) & 0xf);
    let tgid = match UVM_SPACES.get_ptr_mut(&space) {
        // SAFETY: a word of a map value.
        Some(known) => unsafe { (*known).tgid },
        None => 0,
    };
    emit(kind::UVM_FATAL, |record| {
        record.a = tgid;
        record.b = processor << 16 | reason << 8 | access & 0xff;
        record.value = address;
    });
}
