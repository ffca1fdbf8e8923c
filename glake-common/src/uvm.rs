//! UVM page faults and page migrations: where the driver's structures hold what, and what is counted of them.

use crate::shared;

/// Offsets into structures of NVIDIA's nvidia-uvm module, in bytes unless it says otherwise. User space fills them in
/// from the module's BTF or from a table by driver release; [`crate::NONE`] where this release is not known to have it.
pub mod layout {
    /// Name of the global.
    pub const GLOBAL: &str = "UVM_LAYOUT";
    /// `uvm_perf_va_space_events_t.va_space`.
    pub const EVENTS_SPACE: usize = 0;
    /// `uvm_perf_event_data_t.fault.proc_id`.
    pub const FAULT_PROCESSOR: usize = 1;
    /// `.fault.gpu.buffer_entry`.
    pub const FAULT_ENTRY: usize = 2;
    /// `.fault.gpu.is_duplicate`.
    pub const FAULT_DUPLICATE: usize = 3;
    /// `.fault.cpu.is_write`.
    pub const CPU_WRITE: usize = 4;
    /// `.migration.dst`.
    pub const MIGRATION_TARGET: usize = 5;
    /// `.migration.src`.
    pub const MIGRATION_SOURCE: usize = 6;
    /// `.migration.bytes`.
    pub const MIGRATION_BYTES: usize = 7;
    /// `.migration.cause`.
    pub const MIGRATION_CAUSE: usize = 8;
    /// `uvm_fault_buffer_entry_t`: the 32-bit word with the access type.
    pub const ENTRY_WORD: usize = 9;
    /// The bit of that word where the access type (4 bits) starts.
    pub const ENTRY_ACCESS_BIT: usize = 10;
    /// `uvm_fault_buffer_entry_t.num_instances`: 16 bits.
    pub const ENTRY_INSTANCES: usize = 11;
    /// `uvm_gpu_t.parent`.
    pub const GPU_PARENT: usize = 12;
    /// `uvm_gpu_t.id`.
    pub const GPU_ID: usize = 13;
    /// `uvm_gpu_t.pmm`.
    pub const GPU_PMM: usize = 14;
    /// `uvm_parent_gpu_t.uuid`.
    pub const PARENT_UUID: usize = 15;
    /// `uvm_fault_service_batch_context_t.num_cached_faults`.
    pub const BATCH_CACHED: usize = 16;
    /// 1: the fault service is called with a `uvm_gpu_t`; 0: with a `uvm_parent_gpu_t`.
    pub const SERVICE_TAKES_GPU: usize = 17;
    /// How many words there are.
    pub const COUNT: usize = 18;
}

/// Processors as the driver numbers them: 0 is the CPU, then the GPUs.
pub const CPU: u32 = 0;
/// Above every number of a processor: 32 GPUs of 8 instances, and the CPU (`UVM_ID_MAX_PROCESSORS`).
pub const PROCESSORS: u32 = 257;

/// The members of `uvm_perf_event_t` that are looked at; the same numbers from 535 to 595.
pub mod event {
    /// A page fault.
    pub const FAULT: u32 = 6;
    /// A page migration.
    pub const MIGRATION: u32 = 7;
}

/// What a cell counts, as word indices.
pub mod word {
    /// GPU faults: prefetch, read, write, atomic.
    pub const GPU_FAULTS: usize = 0;
    /// CPU faults: read, write.
    pub const CPU_FAULTS: usize = 4;
    /// GPU faults that the driver had serviced already.
    pub const DUPLICATES: usize = 6;
    /// Ranges marked as thrashing.
    pub const THRASHING: usize = 7;
    /// Times that a processor was held back.
    pub const THROTTLED: usize = 8;
    /// For how long, ns.
    pub const THROTTLED_NS: usize = 9;
    /// Fatal faults by `UvmEventFatalReason` (1 to 6; 0 and 7: others).
    pub const FATAL: usize = 10;
    /// Root chunks of this GPU that were pushed out and held pages of this address space.
    pub const EVICTIONS: usize = FATAL + 8;
    /// Migrations: [`super::CAUSES`] x [`super::WAYS`] pairs of count and bytes.
    pub const MOVES: usize = EVICTIONS + 1;
    /// How many there are.
    pub const COUNT: usize = MOVES + super::CAUSES * super::WAYS * 2;
}

/// Causes of a migration, in our order.
pub mod cause {
    /// A page was touched.
    pub const ON_DEMAND: usize = 0;
    /// The driver guessed that it would be.
    pub const PREFETCH: usize = 1;
    /// GPU memory was short.
    pub const EVICTION: usize = 2;
    /// The program asked for it.
    pub const USER: usize = 3;
    /// Access counters.
    pub const ACCESS_COUNTERS: usize = 4;

    /// The highest number of `uvm_make_resident_cause_t` (uvm_va_block_types.h; the same numbers from 535 to 595).
    pub const LAST_CAUSE: u32 = 8;

    /// From a `uvm_make_resident_cause_t` of at most [`LAST_CAUSE`].
    #[inline(always)]
    pub fn of(driver: u32) -> usize {
        match driver {
            // REPLAYABLE_FAULT, NON_REPLAYABLE_FAULT.
            0 | 1 => ON_DEMAND,
            2 => ACCESS_COUNTERS,
            3 => PREFETCH,
            4 => EVICTION,
            // API_TOOLS, API_MIGRATE, API_SET_RANGE_GROUP, API_HINT.
            _ => USER,
        }
    }
}
/// How many causes.
pub const CAUSES: usize = 5;

/// Directions of a migration.
pub mod way {
    /// CPU to GPU.
    pub const TO_GPU: usize = 0;
    /// GPU to CPU.
    pub const TO_CPU: usize = 1;
    /// GPU to GPU.
    pub const PEER: usize = 2;
    /// Between NUMA nodes of the host.
    pub const HOST: usize = 3;

    /// From the two processors.
    #[inline(always)]
    pub fn of(source: u32, target: u32) -> usize {
        match (source == super::CPU, target == super::CPU) {
            (true, true) => HOST,
            (true, false) => TO_GPU,
            (false, true) => TO_CPU,
            (false, false) => PEER,
        }
    }
}
/// How many directions.
pub const WAYS: usize = 4;

/// The word of a count of migrations; the next one holds the bytes.
#[inline(always)]
pub fn moves(cause: usize, way: usize) -> usize {
    word::MOVES + (cause * WAYS + way) * 2
}

/// The highest number of `uvm_fault_access_type_t`: PREFETCH 0, READ 1, WRITE 2, ATOMIC_WEAK 3, ATOMIC_STRONG 4.
pub const LAST_ACCESS: u32 = 4;

/// Which word counts a GPU fault of an access type of at most [`LAST_ACCESS`].
#[inline(always)]
pub fn access_word(access: u32) -> usize {
    word::GPU_FAULTS + if access < 3 { access as usize } else { 3 }
}

/// One copy of a cell's counters.
pub type Counters = [u64; word::COUNT];

/// What a cell counts for: a life of an address space, and a processor.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CellKey {
    /// [`Space::serial`].
    pub serial: u64,
    /// The processor.
    pub processor: u32,
    /// 0.
    pub spare: u32,
}

/// A UVM address space, under its address in the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Another number for each life: addresses are used again.
    pub serial: u64,
    /// The cgroup2 id of the process that made it; 0: unknown.
    pub cgroup: u64,
    /// That process; 0: unknown yet.
    pub tgid: u32,
    /// 0.
    pub spare: u32,
    /// Its comm.
    pub comm: [u8; 16],
}

/// What user space needs to know about a cell; written once, when it is taken.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CellInfo {
    /// Of what.
    pub key: CellKey,
    /// Address of the space in the kernel, to look it up again.
    pub space: u64,
    /// Who made it, as known when the cell was taken; see [`Space`].
    pub cgroup: u64,
    /// Process.
    pub tgid: u32,
    /// 0.
    pub spare: u32,
    /// Its comm.
    pub comm: [u8; 16],
    /// 1: taken. Written last.
    pub taken: u64,
}

/// A GPU, under the address of its `uvm_parent_gpu_t`. Written when it is first seen.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuInfo {
    /// 1: taken. Written last.
    pub taken: u64,
    /// Its UUID.
    pub uuid: [u64; 2],
    /// The number by which faults and migrations name it, plus 1; 0: not seen yet. [`MANY`]: it has several (MIG).
    pub processor: u64,
}

/// See [`GpuInfo::processor`].
pub const MANY: u64 = u64::MAX;

/// Batch sizes: slot `i` counts sizes of at most `1 << i`, the last one all larger.
pub const BATCH_SLOTS: usize = 12;

/// Counters of one GPU, as word indices.
pub mod gpu {
    use crate::hist::SLOTS;
    /// Time in the replayable fault service, ns.
    pub const SERVICE_NS: usize = 0;
    /// Runs of it, as a histogram.
    pub const SERVICE: usize = 1;
    /// Faults in batches.
    pub const BATCHED: usize = SERVICE + SLOTS;
    /// Batches by size.
    pub const BATCHES: usize = BATCHED + 1;
    /// Replays sent.
    pub const REPLAYS: usize = BATCHES + super::BATCH_SLOTS;
    /// Root chunks pushed out.
    pub const EVICTIONS: usize = REPLAYS + 1;
    /// How many words there are.
    pub const COUNT: usize = EVICTIONS + 1;
}

/// One copy of a GPU's counters.
pub type GpuCounters = [u64; gpu::COUNT];

/// Where a batch of this size is counted.
#[inline(always)]
pub fn batch_slot(faults: u32) -> usize {
    let slot = (32 - faults.saturating_sub(1).leading_zeros()) as usize;
    if slot < BATCH_SLOTS { slot } else { BATCH_SLOTS - 1 }
}

/// A run of the fault service in progress, under its thread.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// When it began.
    pub start_ns: u64,
    /// The driver's structure that it was called with.
    pub gpu: u64,
}

/// A processor held back, under space, address and processor.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleKey {
    /// Address of the space.
    pub space: u64,
    /// What it wanted to touch.
    pub address: u64,
    /// The processor.
    pub processor: u64,
}

shared!(CellKey = 16, Space = 40, CellInfo = 64, GpuInfo = 32, Run = 16, ThrottleKey = 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_move_has_two_words_of_its_own() {
        let mut seen = [0u8; word::COUNT];
        for cause in 0..CAUSES {
            for way in 0..WAYS {
                let at = moves(cause, way);
                seen[at] += 1;
                seen[at + 1] += 1;
            }
        }
        assert!(seen[word::MOVES..].iter().all(|n| *n == 1));
        assert!(seen[..word::MOVES].iter().all(|n| *n == 0));
    }

    #[test]
    fn batch_sizes_fall_into_powers_of_two() {
        for (size, slot) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (256, 8), (257, 9), (1 << 20, 11)]
        {
            assert_eq!(batch_slot(size), slot, "{size}");
        }
    }

    #[test]
    fn every_number_of_the_driver_has_a_word() {
        assert!((0..=cause::LAST_CAUSE).all(|n| cause::of(n) < CAUSES));
        assert_eq!((cause::of(4), cause::of(cause::LAST_CAUSE)), (cause::EVICTION, cause::USER));
        assert_eq!((access_word(0), access_word(3), access_word(LAST_ACCESS)), (0, 3, 3));
        assert_eq!((way::of(0, 0), way::of(0, 1), way::of(1, 0), way::of(1, 2)), (3, 0, 1, 2));
    }
}
