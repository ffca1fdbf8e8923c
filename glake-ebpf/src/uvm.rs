//! UVM page faults and page migrations: functions of NVIDIA's nvidia-uvm module, read at offsets that user space found.
//!
//! The module's structures have no types that the verifier knows, so every field is read by `bpf_probe_read_kernel`,
//! and every value is held against what it can be: a driver with another layout is noticed, not believed.

use crate::{
    atomic::Word,
    context::{Kernel, now, param, shard},
    maps::{
        Place, STATS, UVM_CELLS, UVM_EVICTING, UVM_FREE, UVM_GPU_CELLS, UVM_GPU_KEYS, UVM_GPUS, UVM_INDEX,
        UVM_INFO, UVM_RUNS, UVM_SPACES, UVM_THROTTLES, add, below, count, emit, file, place,
    },
};
use aya_ebpf::helpers::{
    bpf_get_current_comm, bpf_get_current_pid_tgid,
    generated::{self, bpf_get_current_cgroup_id},
};
use core::ptr::null_mut;
use glake_common::{
    NONE,
    member::*,
    param,
    record::kind,
    stat,
    uvm::{
        BATCH_SLOTS, CPU, CellKey, LAST_ACCESS, MANY, PROCESSORS, Run, Space, ThrottleKey, access_word,
        batch_slot,
        cause::{self, LAST_CAUSE},
        event, gpu,
        layout::*,
        moves, way, word,
    },
};

mod read;

use read::{Call, NOTHING, arg, arg32, at, load, read};

/// The largest migration that is believed: blocks are 2 MiB, ranges of pageable memory may be more.
const LARGEST: u64 = 1 << 30;
/// The largest batch that is believed; the driver's own limit is a module parameter, 256 by default.
const LARGEST_BATCH: u64 = 1 << 16;
/// `UVM_FD_VA_SPACE` of the driver, in the lowest bits of an open file's private pointer (2 bits up to 575, 3 since).
const FD_VA_SPACE: u64 = 2;
const FD_TYPE: u64 = 7;

/// `uvm_perf_event_notify(events, event, data)`: one call a fault or migrated range.
#[inline(always)]
pub fn notify(ctx: &impl Call) {
    let (events, what, data) = (arg(ctx, 0), arg32(ctx, 1) as u32, arg(ctx, 2));
    if what != event::FAULT && what != event::MIGRATION {
        return;
    }
    let space = space_of(events);
    let understood =
        space != 0 && if what == event::FAULT { fault(space, data) } else { migration(space, data) };
    count(if understood { stat::UVM_SEEN } else { stat::UVM_IMPLAUSIBLE });
}

/// Whether it looks like a fault.
#[inline(always)]
fn fault(space: u64, data: u64) -> bool {
    let processor = read::<u32>(data, FAULT_PROCESSOR);
    if processor == u64::from(CPU) {
        let write = read::<u8>(data, CPU_WRITE);
        if write > 1 {
            return false;
        }
        // The fault is serviced in the thread that made it, so who that is is known.
        bump(counters(space, CPU, true), word::CPU_FAULTS + write as usize, 1);
        return true;
    }
    if processor >= u64::from(PROCESSORS) {
        return false;
    }
    let entry = read::<u64>(data, FAULT_ENTRY);
    let word = read::<u32>(entry, ENTRY_WORD);
    let access = (word >> (at(ENTRY_ACCESS_BIT) & 31) & 0xf) as u32;
    if word == NOTHING || access > LAST_ACCESS {
        return false;
    }
    // The driver handles equal faults of a batch as one and keeps how many there were.
    let mut n = read::<u16>(entry, ENTRY_INSTANCES);
    if n == 0 || n == NOTHING {
        n = 1;
    }
    let counters = counters(space, processor as u32, false);
    bump(counters, access_word(access), n);
    if read::<u8>(data, FAULT_DUPLICATE) == 1 {
        bump(counters, word::DUPLICATES, n);
    }
    true
}

/// Whether it looks like a migration.
#[inline(always)]
fn migration(space: u64, data: u64) -> bool {
    let target = read::<u32>(data, MIGRATION_TARGET);
    let source = read::<u32>(data, MIGRATION_SOURCE);
    let bytes = read::<u64>(data, MIGRATION_BYTES);
    let cause = read::<u32>(data, MIGRATION_CAUSE);
    if target >= u64::from(PROCESSORS) || source >= u64::from(PROCESSORS) || cause > u64::from(LAST_CAUSE) {
        return false;
    }
    if bytes == 0 || bytes > LARGEST || bytes & 4095 != 0 {
        return false;
    }
    let (source, target) = (source as u32, target as u32);
    let counters = counters(space, if target == CPU { source } else { target }, false);
    let why = cause::of(cause as u32);
    // The chunk's first page that moves tells whose it was.
    if why == cause::EVICTION && UVM_EVICTING.remove(bpf_get_current_pid_tgid()).is_ok() {
        bump(counters, word::EVICTIONS, 1);
    }
    let which = moves(why, way::of(source, target));
    bump(counters, which, 1);
    bump(counters, which + 1, bytes);
    true
}

/// The address space that a list of callbacks belongs to; 0: what is there is no address in the kernel.
#[inline(always)]
fn space_of(events: u64) -> u64 {
    let space = read::<u64>(events, EVENTS_SPACE);
    // Bits 63 to 56 are set in every kernel address, with 4 and with 5 levels of page tables.
    if space != NOTHING && space >> 56 == 0xff { space } else { 0 }
}

/// Adds to a word of counters; null: there was no room for them.
#[inline(always)]
fn bump(counters: *mut u64, which: usize, n: u64) {
    if counters.is_null() {
        return;
    }
    let which = below::<{ word::COUNT }>(which as u64);
    // SAFETY: below the length of a map value.
    add(unsafe { counters.add(which) }, n);
}

/// This CPU's counters of an address space and a processor; null: there is no room. `here`: the current process is the
/// space's own.
#[inline(always)]
fn counters(space: u64, processor: u32, here: bool) -> *mut u64 {
    let serial = match UVM_SPACES.get_ptr_mut(space) {
        Some(known) => {
            // SAFETY: fields of a map value; whoever fills them in at the same time writes the same.
            unsafe {
                if here && (*known).tgid == 0 {
                    fill(&mut *known);
                }
                (*known).serial
            }
        }
        None => enter(space, here),
    };
    if serial == 0 {
        return null_mut();
    }
    let key = CellKey { serial, processor, spare: 0 };
    // SAFETY: the value is a word that never changes after its insertion.
    let cell = match unsafe { UVM_INDEX.get(key) } {
        Some(cell) => *cell + 1,
        None => claim(&key, space),
    };
    if cell == 0 {
        return null_mut();
    }
    match UVM_CELLS.get_ptr_mut(shard(cell - 1)) {
        Some(cell) => cell.cast(),
        None => null_mut(),
    }
}

/// The current process as the maker of an address space.
#[inline(always)]
fn fill(space: &mut Space) {
    // SAFETY: no arguments.
    space.cgroup = unsafe { bpf_get_current_cgroup_id() };
    space.comm = bpf_get_current_comm().unwrap_or([0; 16]);
    space.tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
}

/// A new life of an address space; gives its number, 0: there is no room.
#[inline(never)]
fn enter(space: u64, here: bool) -> u64 {
    let Some(stats) = STATS.get_ptr_mut(0) else { return 0 };
    // SAFETY: the index is below the length.
    let serial = Word::of(unsafe { &raw mut (*stats)[stat::UVM_SERIALS] }).next() + 1;
    let mut new = Space { serial, cgroup: 0, tgid: 0, spare: 0, comm: [0; 16] };
    if here {
        fill(&mut new);
    }
    if UVM_SPACES.insert(space, new, 0).is_err() {
        count(stat::UVM_FULL);
        return 0;
    }
    serial
}

/// Gives a cell to an address space and a processor: its number plus 1, 0: none is free.
#[inline(never)]
fn claim(key: &CellKey, space: u64) -> u32 {
    let Ok(Some(cell)) = UVM_FREE.pop() else {
        count(stat::UVM_FULL);
        return 0;
    };
    let Some(info) = UVM_INFO.get_ptr_mut(cell) else { return 0 };
    // SAFETY: the cell came out of the queue of free ones, so it is ours alone until UVM_INDEX names it.
    unsafe {
        (*info).key = *key;
        (*info).space = space;
        if let Some(known) = UVM_SPACES.get_ptr_mut(space) {
            (*info).cgroup = (*known).cgroup;
            (*info).tgid = (*known).tgid;
            (*info).comm = (*known).comm;
        }
        (&raw mut (*info).taken).write_volatile(1);
    }
    // BPF_NOEXIST: another CPU may have been quicker.
    if UVM_INDEX.insert(key, cell, 1).is_ok() {
        return cell + 1;
    }
    // SAFETY: as in `counters`; and the cell is still ours alone.
    unsafe {
        (&raw mut (*info).taken).write_volatile(0);
        let _ = UVM_FREE.push(cell, 0);
        match UVM_INDEX.get(key) {
            Some(other) => *other + 1,
            None => 0,
        }
    }
}

/// `uvm_va_space_mm_register(va_space)`: called once for each address space, by the process that makes it.
#[inline(always)]
pub fn space_begins(ctx: &impl Call) {
    enter(arg(ctx, 0), true);
}

/// `uvm_va_space_destroy(va_space)`.
#[inline(always)]
pub fn space_ends(ctx: &impl Call) {
    let _ = UVM_SPACES.remove(arg(ctx, 0));
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
    if UVM_SPACES.get_ptr_mut(space).is_none() {
        enter(space, false);
    }
    let Some(known) = UVM_SPACES.get_ptr_mut(space) else { return };
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
pub fn service(ctx: &impl Call) {
    let run = Run { start_ns: now(), gpu: arg(ctx, 0) };
    if UVM_RUNS.insert(bpf_get_current_pid_tgid(), run, 0).is_err() {
        count(stat::UVM_FULL);
    }
}

/// It ends, on the same thread.
#[inline(always)]
pub fn service_ends() {
    let thread = bpf_get_current_pid_tgid();
    // SAFETY: the value is this thread's own.
    let Some(run) = (unsafe { UVM_RUNS.get(thread) }) else { return };
    let (start, called_with) = (run.start_ns, run.gpu);
    let _ = UVM_RUNS.remove(thread);
    let counters = of_gpu(serviced(called_with));
    if counters.is_null() {
        return;
    }
    let took = now().wrapping_sub(start);
    // SAFETY: constant indices below the length of a map value.
    unsafe {
        add(counters.add(gpu::SERVICE_NS), took);
        file(counters.add(gpu::SERVICE).cast(), took);
    }
}

/// The `uvm_parent_gpu_t` of what the fault service is called with.
#[inline(always)]
fn serviced(called_with: u64) -> u64 {
    if at(SERVICE_TAKES_GPU) == 1 { read::<u64>(called_with, GPU_PARENT) } else { called_with }
}

/// Stands for a GPU that cannot be told.
const UNTOLD: u64 = 1;

/// The place of a GPU.
#[inline(always)]
fn place_of(parent: u64) -> Option<Place> {
    let key = if parent == NOTHING || parent == 0 { UNTOLD } else { parent };
    place(&UVM_GPU_KEYS, param(param::UVM_GPU_MASK), key)
}

/// This CPU's counters of a GPU; null: there is no room.
#[inline(always)]
fn of_gpu(parent: u64) -> *mut u64 {
    let Some(place) = place_of(parent) else {
        count(stat::UVM_FULL);
        return null_mut();
    };
    let Some(info) = UVM_GPUS.get_ptr_mut(place.index()) else { return null_mut() };
    // SAFETY: fields of a map value. Whoever comes first writes them; a second one at the same time writes the same.
    unsafe {
        if (&raw const (*info).taken).read_volatile() == 0 {
            copy_uuid(parent, &raw mut (*info).uuid);
            (&raw mut (*info).taken).write_volatile(1);
        }
    }
    match UVM_GPU_CELLS.get_ptr_mut(shard(place.index())) {
        Some(counters) => counters.cast(),
        None => null_mut(),
    }
}

/// Copies a GPU's UUID; leaves it 0 where it cannot be told.
#[inline(always)]
fn copy_uuid(parent: u64, to: *mut [u64; 2]) {
    let offset = at(PARENT_UUID);
    if offset == NONE || parent == NOTHING || parent <= UNTOLD {
        return;
    }
    // SAFETY: the destination is that long; a bad source is an error, not a fault, and leaves zeros.
    unsafe {
        generated::bpf_probe_read_kernel(to.cast(), 16, parent.wrapping_add(u64::from(offset)) as *const _);
    }
}

/// `preprocess_fault_batch(gpu, batch)`: once for each batch that is not empty.
#[inline(always)]
pub fn batch(ctx: &impl Call) {
    let faults = read::<u32>(arg(ctx, 1), BATCH_CACHED);
    if faults > LARGEST_BATCH {
        count(stat::UVM_IMPLAUSIBLE);
        return;
    }
    let counters = of_gpu(serviced(arg(ctx, 0)));
    if counters.is_null() {
        return;
    }
    let slot = below::<{ BATCH_SLOTS }>(batch_slot(faults as u32) as u64);
    // SAFETY: indices below the length of a map value.
    unsafe {
        add(counters.add(gpu::BATCHED), faults);
        add(counters.add(gpu::BATCHES + slot), 1);
    }
}

/// `uvm_tools_broadcast_replay(gpu, push, batch, client)`: called for each replay, with or without a tools queue.
#[inline(always)]
pub fn replay(ctx: &impl Call) {
    let called_with = arg(ctx, 0);
    let parent = read::<u64>(called_with, GPU_PARENT);
    if parent == NOTHING {
        count(stat::UVM_IMPLAUSIBLE);
        return;
    }
    let counters = of_gpu(parent);
    if counters.is_null() {
        return;
    }
    // SAFETY: a constant index below the length of a map value.
    add(unsafe { counters.add(gpu::REPLAYS) }, 1);
    let id = read::<u32>(called_with, GPU_ID);
    if id == u64::from(CPU) || id >= u64::from(PROCESSORS) {
        return;
    }
    let Some(place) = place_of(parent) else { return };
    let Some(info) = UVM_GPUS.get_ptr_mut(place.index()) else { return };
    // SAFETY: a word of a map value.
    let known = Word::of(unsafe { &raw mut (*info).processor });
    let before = known.load();
    if before == 0 {
        known.store(id + 1);
    } else if before != id + 1 {
        known.store(MANY);
    }
}

/// `evict_root_chunk(pmm, chunk, context)`; the pmm lies in the GPU's structure.
#[inline(always)]
pub fn evict(ctx: &impl Call) {
    let offset = at(GPU_PMM);
    let parent = if offset == NONE {
        UNTOLD
    } else {
        read::<u64>(arg(ctx, 0).wrapping_sub(u64::from(offset)), GPU_PARENT)
    };
    let counters = of_gpu(parent);
    if !counters.is_null() {
        // SAFETY: a constant index below the length of a map value.
        add(unsafe { counters.add(gpu::EVICTIONS) }, 1);
    }
    // A refusal leaves the chunk without a workload: it counts for "other".
    let _ = UVM_EVICTING.insert(bpf_get_current_pid_tgid(), 1, 0);
}

/// `uvm_tools_record_thrashing(va_space, address, size, processors)`.
#[inline(always)]
pub fn thrashing(ctx: &impl Call) {
    bump(counters(arg(ctx, 0), CPU, false), word::THRASHING, 1);
}

#[inline(always)]
fn throttled(ctx: &impl Call) -> ThrottleKey {
    ThrottleKey { space: arg(ctx, 0), address: arg(ctx, 1), processor: arg32(ctx, 2) }
}

/// `uvm_tools_record_throttling_start(va_space, address, processor)`.
#[inline(always)]
pub fn throttling(ctx: &impl Call) {
    if UVM_THROTTLES.insert(throttled(ctx), now(), 0).is_err() {
        count(stat::UVM_FULL);
    }
}

/// `uvm_tools_record_throttling_end(va_space, address, processor)`.
#[inline(always)]
pub fn throttling_ends(ctx: &impl Call) {
    let key = throttled(ctx);
    // SAFETY: a word that nobody changes after its insertion.
    let Some(start) = (unsafe { UVM_THROTTLES.get(key) }) else { return };
    let took = now().wrapping_sub(*start);
    let _ = UVM_THROTTLES.remove(key);
    if key.processor < u64::from(PROCESSORS) {
        let counters = counters(key.space, key.processor as u32, false);
        bump(counters, word::THROTTLED, 1);
        bump(counters, word::THROTTLED_NS, took);
    }
}

/// `uvm_tools_record_gpu_fatal_fault(gpu, va_space, entry, reason)`.
#[inline(always)]
pub fn fatal(ctx: &impl Call) {
    let (processor, space, entry) = (arg32(ctx, 0), arg(ctx, 1), arg(ctx, 2));
    if processor >= u64::from(PROCESSORS) || space == 0 {
        count(stat::UVM_IMPLAUSIBLE);
        return;
    }
    let reason = arg32(ctx, 3);
    let reason = if reason < 7 { reason } else { 7 };
    bump(counters(space, processor as u32, false), word::FATAL + reason as usize, 1);
    // `fault_address` is the entry's first member in every release.
    let address = load::<u64>(entry);
    let word = read::<u32>(entry, ENTRY_WORD);
    let access = if word == NOTHING { 0xff } else { word >> (at(ENTRY_ACCESS_BIT) & 31) & 0xf };
    let tgid = match UVM_SPACES.get_ptr_mut(space) {
        // SAFETY: a word of a map value.
        Some(known) => unsafe { (*known).tgid },
        None => 0,
    };
    emit(kind::UVM_FATAL, |record| {
        record.a = tgid;
        record.b = (processor << 16 | reason << 8 | access & 0xff) as u32;
        record.value = address;
    });
}
