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

impl Entry {
    /// Its type's number, see [`kind`].
    pub fn kind(&self) -> u8 {
        match self {
            Entry::CpuFault { .. } => kind::CPU_FAULT,
            Entry::Migration { .. } => kind::MIGRATION,
            Entry::GpuFault { .. } => kind::GPU_FAULT,
            Entry::Replay { .. } => kind::REPLAY,
            Entry::FaultBufferOverflow => kind::OVERFLOW,
            Entry::FatalFault { .. } => kind::FATAL,
            Entry::ReadDuplicate { .. } => kind::READ_DUPLICATE,
            Entry::ReadDuplicateInvalidate { .. } => kind::READ_DUPLICATE_INVALIDATE,
            Entry::PageSizeChange { .. } => kind::PAGE_SIZE,
            Entry::Thrashing { .. } => kind::THRASHING,
            Entry::ThrottlingStart { .. } => kind::THROTTLING_START,
            Entry::ThrottlingEnd { .. } => kind::THROTTLING_END,
            Entry::MapRemote { .. } => kind::MAP_REMOTE,
            Entry::Eviction { .. } => kind::EVICTION,
            Entry::Test { kind } => *kind,
        }
    }
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

/// The fields of an entry, whose length was checked once. Where the layouts differ both offsets are given: V1, V2.
struct Fields<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        if let Some(found) = self.bytes.get(at..at + N) {
            out.copy_from_slice(found);
        }
        out
    }
    fn u8(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }
    fn at(&self, v1: usize, v2: usize) -> usize {
        if self.layout == Layout::V1 { v1 } else { v2 }
    }
    /// V1 names processors by one byte, V2 by two.
    fn processor(&self, v1: usize, v2: usize) -> Processor {
        Processor(if self.layout == Layout::V1 { u16::from(self.u8(v1)) } else { self.u16(v2) })
    }
    /// A NUMA node; V1 does not tell.
    fn node(&self, v2: usize) -> Option<i32> {
        (self.layout == Layout::V2).then(|| i32::from_ne_bytes(self.array(v2)))
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
    let f = Fields { bytes, layout };
    Ok(match f.u8(0) {
        kind::CPU_FAULT => cpu_fault(&f, cpu_number),
        kind::MIGRATION => migration(&f),
        kind::GPU_FAULT => gpu_fault(&f),
        kind::REPLAY => {
            Entry::Replay { gpu: f.processor(1, 2), batch: f.u32(4), at: f.u64(8), gpu_at: f.u64(16) }
        }
        kind::OVERFLOW => Entry::FaultBufferOverflow,
        kind::FATAL => fatal(&f),
        kind::READ_DUPLICATE => {
            let (processors, address, bytes, at) = shared(&f);
            Entry::ReadDuplicate { address, bytes, at, processors }
        }
        kind::READ_DUPLICATE_INVALIDATE => Entry::ReadDuplicateInvalidate {
            resident: f.processor(1, 2),
            address: f.u64(8),
            bytes: f.u64(16),
            at: f.u64(24),
        },
        kind::PAGE_SIZE => Entry::PageSizeChange {
            processor: f.processor(1, 2),
            size: f.u32(4),
            address: f.u64(8),
            at: f.u64(16),
        },
        kind::THRASHING => {
            let (processors, address, bytes, at) = shared(&f);
            Entry::Thrashing { address, bytes, at, processors }
        }
        kind::THROTTLING_START => {
            Entry::ThrottlingStart { processor: f.processor(1, 2), address: f.u64(8), at: f.u64(16) }
        }
        kind::THROTTLING_END => {
            Entry::ThrottlingEnd { processor: f.processor(1, 2), address: f.u64(8), at: f.u64(16) }
        }
        kind::MAP_REMOTE => Entry::MapRemote {
            cause: f.u8(f.at(3, 1)),
            source: f.processor(1, 4),
            target: f.processor(2, 6),
            address: f.u64(8),
            bytes: f.u64(16),
            at: f.u64(24),
        },
        kind::EVICTION => Entry::Eviction {
            source: f.processor(1, 4),
            target: f.processor(2, 6),
            address_out: f.u64(8),
            address_in: f.u64(16),
            bytes: f.u64(24),
            at: f.u64(32),
        },
        n @ (62 | 63) => Entry::Test { kind: n },
        n => return Err(Refused::UnknownType(n)),
    })
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

fn migration(f: &Fields) -> Entry {
    let (source, target) = (f.processor(2, 4), f.processor(3, 6));
    Entry::Migration {
        cause: Cause::between(source, target, f.u8(1)),
        source,
        target,
        source_node: f.node(8),
        target_node: f.node(12),
        address: f.u64(f.at(8, 16)),
        bytes: f.u64(f.at(16, 24)),
        begin: f.u64(f.at(24, 32)),
        end: f.u64(f.at(32, 40)),
        gpu_begin: f.u64(f.at(48, 56)),
        gpu_end: f.u64(f.at(56, 64)),
    }
}

fn gpu_fault(f: &Fields) -> Entry {
    Entry::GpuFault {
        gpu: f.processor(3, 2),
        fault_type: f.u8(1),
        access: Access::of(f.u8(f.at(2, 37))),
        address: f.u64(8),
        at: f.u64(16),
        gpu_at: f.u64(24),
        batch: f.u32(32),
        replayable: f.u8(36) == 1,
        unit: f.u16(4),
        client: f.u16(6),
    }
}

fn fatal(f: &Fields) -> Entry {
    Entry::FatalFault {
        processor: f.processor(3, 4),
        fault_type: f.u8(1),
        access: Access::of(f.u8(2)),
        reason: FatalReason::of(f.u8(f.at(4, 3))),
        address: f.u64(8),
        at: f.u64(16),
    }
}

/// Processors, address, bytes and time of a range that several processors have.
fn shared(f: &Fields) -> (u64, u64, u64, u64) {
    (f.u64(f.at(8, 32)), f.u64(f.at(16, 8)), f.u64(f.at(24, 16)), f.u64(f.at(32, 24)))
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
