//! The maps. Sizes are set when they are created; the ones here are placeholders. Arrays that user space reads are
//! mapped into it, so that reading takes no system call and goes on without any capability.

use crate::{
    atomic::Word,
    context::{now, shard},
};
use core::num::NonZeroU32;

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    macros::map,
    maps::{Array, HashMap, LruHashMap, Queue, RingBuf},
};
use glake_common::{block, hist, named, nvme, record::Record, stat, table, uvm};

/// Block requests in flight.
#[map]
pub static SLOTS: Array<block::SlotSet> = Array::with_max_entries(1, 0);
/// Block devices seen: device numbers, plus one bit to tell 0 from none.
#[map]
pub static DEVICES: Array<table::Set> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Which histogram block a device's operation has, plus one.
#[map]
pub static DEVICE_BLOCKS: Array<u64> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Histogram blocks.
#[map]
pub static BLOCKS: Array<block::Counters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// The cell of a workload's operation on a device.
#[map]
pub static OWNERS: HashMap<block::OwnerKey, u32> = HashMap::with_max_entries(1, 0);
/// Cells free for use.
#[map]
pub static FREE_CELLS: Queue<u32> = Queue::with_max_entries(1, 0);
/// Who a cell belongs to.
#[map]
pub static CELL_INFO: Array<block::CellInfo> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Cells.
#[map]
pub static CELLS: Array<block::Cell> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// NVMe commands in flight.
#[map]
pub static FLIGHTS: Array<nvme::FlightSet> = Array::with_max_entries(1, 0);
/// NVMe cells: their keys.
#[map]
pub static NVME_KEYS: Array<table::Set> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// NVMe cells: their counters. Not sharded: a queue belongs to few CPUs.
#[map]
pub static NVME_CELLS: Array<nvme::Counters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Depth of each controller's I/O queues, by controller number; written by user space.
#[map]
pub static NVME_DEPTHS: Array<u64> = Array::with_max_entries(nvme::DEPTHS, BPF_F_MMAPABLE);
/// log2 of the block size of each namespace; written by user space.
#[map]
pub static NVME_SHIFTS: Array<u64> = Array::with_max_entries(nvme::SHIFTS, BPF_F_MMAPABLE);
/// Named things: their keys.
#[map]
pub static NAMED_KEYS: Array<table::Set> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Named things: who they are.
#[map]
pub static NAMED: Array<named::Named> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Named things: their counters.
#[map]
pub static NAMED_COUNTERS: Array<named::Counters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// UVM address spaces by their address in the kernel.
#[map]
pub static UVM_SPACES: HashMap<u64, uvm::Space> = HashMap::with_max_entries(1, 0);
/// The cell of an address space and a processor.
#[map]
pub static UVM_INDEX: HashMap<uvm::CellKey, u32> = HashMap::with_max_entries(1, 0);
/// UVM cells free for use.
#[map]
pub static UVM_FREE: Queue<u32> = Queue::with_max_entries(1, 0);
/// What a UVM cell counts for.
#[map]
pub static UVM_INFO: Array<uvm::CellInfo> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// UVM cells.
#[map]
pub static UVM_CELLS: Array<uvm::Counters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// GPUs: their keys.
#[map]
pub static UVM_GPU_KEYS: Array<table::Set> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// GPUs: who they are.
#[map]
pub static UVM_GPUS: Array<uvm::GpuInfo> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// GPUs: their counters.
#[map]
pub static UVM_GPU_CELLS: Array<uvm::GpuCounters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Runs of the fault service, by thread.
#[map]
pub static UVM_RUNS: HashMap<u64, uvm::Run> = HashMap::with_max_entries(1, 0);
/// Threads that push a root chunk out and have not moved any of its pages yet. A chunk without pages leaves its thread
/// here, so the oldest makes room.
#[map]
pub static UVM_EVICTING: LruHashMap<u64, u8> = LruHashMap::with_max_entries(1, 0);
/// When a processor was held back.
#[map]
pub static UVM_THROTTLES: HashMap<uvm::ThrottleKey, u64> = HashMap::with_max_entries(1, 0);
/// IOMMU calls.
#[map]
pub static IOMMU: Array<stat::iommu::Counters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Drops, and totals of no device.
#[map]
pub static STATS: Array<stat::Stats> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Rare and slow things.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Adds to a counter that other CPUs may share.
#[inline(always)]
pub fn add(counter: *mut u64, n: u64) {
    Word::of(counter).add(n);
}

/// Files a time in a histogram of a map value.
#[inline(always)]
pub fn file(histogram: *mut [u64; hist::SLOTS], ns: u64) {
    let slot = below::<{ hist::SLOTS }>(hist::slot(ns) as u64);
    // SAFETY: below the length.
    add(unsafe { histogram.cast::<u64>().add(slot) }, 1);
}

/// The index, or the last one if it were out of range. The verifier learns the bound of one register only, so the comparison and what
/// is used after it must be the same register: the compiler would compare a copy, or nothing.
#[inline(always)]
pub fn below<const LENGTH: usize>(mut index: u64) -> usize {
    // SAFETY: changes no register but the named one.
    unsafe {
        core::arch::asm!("if {0} <= {1} goto +1", "{0} = {1}", inout(reg) index, const LENGTH - 1, options(pure, nomem, nostack));
    }
    index as usize
}

/// Counts a drop or a total.
#[inline(always)]
pub fn count(stat: usize) {
    if let Some(stats) = STATS.get_ptr_mut(shard(0)) {
        // SAFETY: `stat` is a constant below the length.
        add(unsafe { &raw mut (*stats)[stat] }, 1);
    }
}

/// A place in a table, or a thing that is known by it.
#[derive(Clone, Copy)]
pub struct Place(NonZeroU32);

impl Place {
    /// Its index in the arrays beside the table.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// Finds or claims the place of a key. `None`: its set is full.
#[inline(always)]
pub fn place(map: &Array<table::Set>, mask: u32, key: u64) -> Option<Place> {
    let set = table::set_of(key, mask);
    let keys: *mut u64 = map.get_ptr_mut(set)?.cast();
    let mut way = 0;
    while way < table::WAYS {
        // SAFETY: `way` is below the length of a set.
        let place = Word::of(unsafe { keys.add(way) });
        let mut seen = place.load();
        if seen == 0 {
            seen = place.claim(key);
        }
        if seen == key || seen == 0 {
            return NonZeroU32::new(set * table::WAYS as u32 + way as u32 + 1).map(Place);
        }
        way += 1;
    }
    None
}

/// Puts an event into the ring, or counts its loss.
#[inline(always)]
pub fn emit(kind: u32, fill: impl FnOnce(&mut Record)) {
    let Some(mut entry) = EVENTS.reserve::<Record>(0) else {
        count(stat::RING_FULL);
        return;
    };
    // SAFETY: the reservation is as long as a record, for which all bytes 0 is a value.
    unsafe {
        let record = entry.as_mut_ptr();
        core::ptr::write_bytes(record.cast::<u64>(), 0, size_of::<Record>() / 8);
        (*record).kind = kind;
        (*record).at_ns = now();
        fill(&mut *record);
    }
    entry.submit(0);
}
