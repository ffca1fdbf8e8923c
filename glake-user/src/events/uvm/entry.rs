//! One entry of the driver's event queue, from bytes. Pure and total: any 64 or 72 bytes give an [`Entry`] or a
//! named refusal, never a panic.
//!
//! Offsets: `UvmEvent*Info` of `uvm_types.h`, compiled and printed for 535.43.02, 550.163.01, 555.58, 560.35.03,
//! 565.57.01, 580.142 and 595.45.04. Times are CLOCK_MONOTONIC_RAW in ns; GPU times are the GPU's own.

use super::release::Layout;
use serde::Serialize;

pub use super::words::{Access, Cause, FatalReason, Processor, fault_type_word};

/// One thing the driver reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[allow(missing_docs, reason = "the fields are the driver's own; the variants say what they belong to")]
pub enum Entry {
    /// The CPU touched managed memory that was not mapped for it.
    CpuFault { access: Access, address: u64, at: u64, pid: u32, tid: u32, pc: u64, cpu: Option<u32> },
    /// Pages moved. `end` is 0 when the driver does not tell.
    Migration {
        cause: Cause,
        source: Processor,
        target: Processor,
        /// NUMA nodes, V2 only; -1 for a GPU without one.
        source_node: Option<i32>,
        target_node: Option<i32>,
        address: u64,
        bytes: u64,
        begin: u64,
        end: u64,
        gpu_begin: u64,
        gpu_end: u64,
    },
    /// A GPU touched managed memory that was not mapped for it.
    GpuFault {
        gpu: Processor,
        fault_type: u8,
        access: Access,
        address: u64,
        at: u64,
        gpu_at: u64,
        batch: u32,
        /// From a GPC, thus replayable; otherwise from the hub.
        replayable: bool,
        /// GPC when replayable, channel when not.
        unit: u16,
        client: u16,
    },
    /// The GPU was told to retry a batch.
    Replay { gpu: Processor, batch: u32, at: u64, gpu_at: u64 },
    /// The fault buffer ran over. Linux drivers of these releases never send it.
    FaultBufferOverflow,
    /// A fault that the driver could not service.
    FatalFault {
        processor: Processor,
        fault_type: u8,
        access: Access,
        reason: FatalReason,
        address: u64,
        at: u64,
    },
    /// A range became readable in several places at once.
    ReadDuplicate { address: u64, bytes: u64, at: u64, processors: u64 },
    /// That ended.
    ReadDuplicateInvalidate { resident: Processor, address: u64, bytes: u64, at: u64 },
    /// The page size changed. Linux drivers of these releases never send it.
    PageSizeChange { processor: Processor, size: u32, address: u64, at: u64 },
    /// Processors fight for a range. `processors`: the first 64 of the mask.
    Thrashing { address: u64, bytes: u64, at: u64, processors: u64 },
    /// The driver holds a processor back because of thrashing.
    ThrottlingStart { processor: Processor, address: u64, at: u64 },
    /// It lets it go on.
    ThrottlingEnd { processor: Processor, address: u64, at: u64 },
    /// A range was mapped from afar instead of moved.
    MapRemote { cause: u8, source: Processor, target: Processor, address: u64, bytes: u64, at: u64 },
    /// Memory was pushed out. Linux drivers of these releases never send it: see [`Cause::Eviction`].
    Eviction { source: Processor, target: Processor, address_out: u64, address_in: u64, bytes: u64, at: u64 },
    /// A type of the driver's own tests (62, 63).
    Test { kind: u8 },
}

/// Why bytes are no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Fewer bytes than an entry of this layout has.
    Short,
    /// A type that no release known here sends.
    UnknownType(u8),
}

/// Event types, as bit numbers of the mask given to the driver.
pub mod kind {
    /// [`super::Entry::CpuFault`].
    pub const CPU_FAULT: u8 = 1;
    /// [`super::Entry::Migration`].
    pub const MIGRATION: u8 = 2;
    /// [`super::Entry::GpuFault`].
    pub const GPU_FAULT: u8 = 3;
    /// [`super::Entry::Replay`].
    pub const REPLAY: u8 = 4;
    /// [`super::Entry::FaultBufferOverflow`].
    pub const OVERFLOW: u8 = 5;
    /// [`super::Entry::FatalFault`].
    pub const FATAL: u8 = 6;
    /// [`super::Entry::ReadDuplicate`].
    pub const READ_DUPLICATE: u8 = 7;
    /// [`super::Entry::ReadDuplicateInvalidate`].
    pub const READ_DUPLICATE_INVALIDATE: u8 = 8;
    /// [`super::Entry::PageSizeChange`].
    pub const PAGE_SIZE: u8 = 9;
    /// [`super::Entry::Thrashing`].
    pub const THRASHING: u8 = 10;
    /// [`super::Entry::ThrottlingStart`].
    pub const THROTTLING_START: u8 = 11;
    /// [`super::Entry::ThrottlingEnd`].
    pub const THROTTLING_END: u8 = 12;
    /// [`super::Entry::MapRemote`].
    pub const MAP_REMOTE: u8 = 13;
    /// [`super::Entry::Eviction`].
    pub const EVICTION: u8 = 14;
    /// Types with a place in the driver's table of dropped events.
    pub const SLOTS: usize = 64;

    /// The words by which masks and drops are named, by type number.
    pub const NAMES: [(&str, u8); 14] = [
        ("cpu-fault", CPU_FAULT),
        ("migration", MIGRATION),
        ("gpu-fault", GPU_FAULT),
        ("replay", REPLAY),
        ("overflow", OVERFLOW),
        ("fatal", FATAL),
        ("read-duplicate", READ_DUPLICATE),
        ("read-duplicate-end", READ_DUPLICATE_INVALIDATE),
        ("page-size", PAGE_SIZE),
        ("thrashing", THRASHING),
        ("throttling", THROTTLING_START),
        ("throttling-end", THROTTLING_END),
        ("map-remote", MAP_REMOTE),
        ("eviction", EVICTION),
    ];
}

/// Reads fields at fixed offsets of a slice whose length was checked once.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        if let Some(found) = self.0.get(at..at + N) {
            out.copy_from_slice(found);
        }
        out
    }
    fn u8(&self, at: usize) -> u8 {
        self.bytes::<1>(at)[0]
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(at))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }
    fn i32(&self, at: usize) -> i32 {
        i32::from_ne_bytes(self.bytes(at))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }
    /// V1 names processors by one byte.
    fn small(&self, at: usize) -> Processor {
        Processor(u16::from(self.u8(at)))
    }
    fn wide(&self, at: usize) -> Processor {
        Processor(self.u16(at))
    }
}

/// Decodes one entry. `cpu_number`: does this release tell the CPU's number in a CPU fault?
///
/// # Errors
/// [`Refused`] when the bytes are too few or the type is not one of the driver's.
pub fn decode(layout: Layout, cpu_number: bool, bytes: &[u8]) -> Result<Entry, Refused> {
    if bytes.len() < layout.entry_size() {
        return Err(Refused::Short);
    }
    let f = Fields(bytes);
    match (f.u8(0), layout) {
        (kind::CPU_FAULT, _) => Ok(cpu_fault(&f, cpu_number)),
        (kind::FATAL, Layout::V1) => Ok(fatal(&f, f.small(3), f.u8(4))),
        (kind::FATAL, Layout::V2) => Ok(fatal(&f, f.wide(4), f.u8(3))),
        (kind::OVERFLOW, _) => Ok(Entry::FaultBufferOverflow),
        (n @ (62 | 63), _) => Ok(Entry::Test { kind: n }),
        (_, Layout::V1) => v1(&f),
        (_, Layout::V2) => v2(&f),
    }
}

fn cpu_fault(f: &Fields, cpu_number: bool) -> Entry {
    Entry::CpuFault {
        access: Access::of(f.u8(1)),
        address: f.u64(8),
        at: f.u64(16),
        pid: f.u32(24),
        tid: f.u32(28),
        pc: f.u64(32),
        cpu: cpu_number.then(|| f.u32(4)),
    }
}

fn fatal(f: &Fields, processor: Processor, reason: u8) -> Entry {
    Entry::FatalFault {
        processor,
        fault_type: f.u8(1),
        access: Access::of(f.u8(2)),
        reason: FatalReason::of(reason),
        address: f.u64(8),
        at: f.u64(16),
    }
}

fn gpu_fault(f: &Fields, gpu: Processor, access: u8) -> Entry {
    Entry::GpuFault {
        gpu,
        fault_type: f.u8(1),
        access: Access::of(access),
        address: f.u64(8),
        at: f.u64(16),
        gpu_at: f.u64(24),
        batch: f.u32(32),
        replayable: f.u8(36) == 1,
        unit: f.u16(4),
        client: f.u16(6),
    }
}

fn v1(f: &Fields) -> Result<Entry, Refused> {
    Ok(match f.u8(0) {
        kind::MIGRATION => Entry::Migration {
            cause: Cause::between(f.small(2), f.small(3), f.u8(1)),
            source: f.small(2),
            target: f.small(3),
            source_node: None,
            target_node: None,
            address: f.u64(8),
            bytes: f.u64(16),
            begin: f.u64(24),
            end: f.u64(32),
            gpu_begin: f.u64(48),
            gpu_end: f.u64(56),
        },
        kind::GPU_FAULT => gpu_fault(f, f.small(3), f.u8(2)),
        kind::REPLAY => Entry::Replay { gpu: f.small(1), batch: f.u32(4), at: f.u64(8), gpu_at: f.u64(16) },
        kind::READ_DUPLICATE => {
            Entry::ReadDuplicate { processors: f.u64(8), address: f.u64(16), bytes: f.u64(24), at: f.u64(32) }
        }
        kind::READ_DUPLICATE_INVALIDATE => read_duplicate_end(f, f.small(1)),
        kind::PAGE_SIZE => page_size(f, f.small(1)),
        kind::THRASHING => {
            Entry::Thrashing { processors: f.u64(8), address: f.u64(16), bytes: f.u64(24), at: f.u64(32) }
        }
        kind::THROTTLING_START => throttling(f, f.small(1), true),
        kind::THROTTLING_END => throttling(f, f.small(1), false),
        kind::MAP_REMOTE => map_remote(f, f.u8(3), f.small(1), f.small(2)),
        kind::EVICTION => eviction(f, f.small(1), f.small(2)),
        n => return Err(Refused::UnknownType(n)),
    })
}

fn v2(f: &Fields) -> Result<Entry, Refused> {
    Ok(match f.u8(0) {
        kind::MIGRATION => Entry::Migration {
            cause: Cause::between(f.wide(4), f.wide(6), f.u8(1)),
            source: f.wide(4),
            target: f.wide(6),
            source_node: Some(f.i32(8)),
            target_node: Some(f.i32(12)),
            address: f.u64(16),
            bytes: f.u64(24),
            begin: f.u64(32),
            end: f.u64(40),
            gpu_begin: f.u64(56),
            gpu_end: f.u64(64),
        },
        kind::GPU_FAULT => gpu_fault(f, f.wide(2), f.u8(37)),
        kind::REPLAY => Entry::Replay { gpu: f.wide(2), batch: f.u32(4), at: f.u64(8), gpu_at: f.u64(16) },
        kind::READ_DUPLICATE => {
            Entry::ReadDuplicate { address: f.u64(8), bytes: f.u64(16), at: f.u64(24), processors: f.u64(32) }
        }
        kind::READ_DUPLICATE_INVALIDATE => read_duplicate_end(f, f.wide(2)),
        kind::PAGE_SIZE => page_size(f, f.wide(2)),
        kind::THRASHING => {
            Entry::Thrashing { address: f.u64(8), bytes: f.u64(16), at: f.u64(24), processors: f.u64(32) }
        }
        kind::THROTTLING_START => throttling(f, f.wide(2), true),
        kind::THROTTLING_END => throttling(f, f.wide(2), false),
        kind::MAP_REMOTE => map_remote(f, f.u8(1), f.wide(4), f.wide(6)),
        kind::EVICTION => eviction(f, f.wide(4), f.wide(6)),
        n => return Err(Refused::UnknownType(n)),
    })
}

fn read_duplicate_end(f: &Fields, resident: Processor) -> Entry {
    Entry::ReadDuplicateInvalidate { resident, address: f.u64(8), bytes: f.u64(16), at: f.u64(24) }
}

fn page_size(f: &Fields, processor: Processor) -> Entry {
    Entry::PageSizeChange { processor, size: f.u32(4), address: f.u64(8), at: f.u64(16) }
}

fn throttling(f: &Fields, processor: Processor, start: bool) -> Entry {
    let (address, at) = (f.u64(8), f.u64(16));
    if start {
        Entry::ThrottlingStart { processor, address, at }
    } else {
        Entry::ThrottlingEnd { processor, address, at }
    }
}

fn map_remote(f: &Fields, cause: u8, source: Processor, target: Processor) -> Entry {
    Entry::MapRemote { cause, source, target, address: f.u64(8), bytes: f.u64(16), at: f.u64(24) }
}

fn eviction(f: &Fields, source: Processor, target: Processor) -> Entry {
    Entry::Eviction {
        source,
        target,
        address_out: f.u64(8),
        address_in: f.u64(16),
        bytes: f.u64(24),
        at: f.u64(32),
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
