//! Counters of things that the kernel names by text: DMA devices, PCI devices.

use crate::shared;

/// Longest name kept.
pub const NAME: usize = 32;

/// What is counted under a name.
pub mod family {
    /// DMA mappings: maps, bytes, errors.
    pub const DMA: u32 = 1;
    /// swiotlb: bounces, bytes.
    pub const SWIOTLB: u32 = 2;
    /// AER: corrected, nonfatal, fatal.
    pub const AER: u32 = 3;
    /// Xid: reports; `value` is the code.
    pub const XID: u32 = 4;
    /// SXid: reports; `value` is the code.
    pub const SXID: u32 = 5;
    /// IOMMU faults that name their device: faults.
    pub const IOMMU_FAULT: u32 = 6;
    /// Xid, by the driver's reporting function: reports; `value` is the code.
    pub const XID_CALL: u32 = 7;
}

/// Who a set of counters belongs to, written once when it is taken.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Named {
    /// One of [`family`]. 0: not taken.
    pub family: u32,
    /// Depends on the family.
    pub value: u32,
    /// The name, 0-terminated unless it fills the field.
    pub name: [u8; NAME],
    /// When the newest event came, CLOCK_MONOTONIC ns; only for rare families.
    pub last_ns: u64,
    /// Reserved, 0.
    pub spare: [u64; 2],
}

/// One shard of the counters of a name.
pub type Counters = [u64; 4];

/// A key for family, value and name; never 0. FNV-1a over words.
#[inline(always)]
pub fn key(family: u32, value: u32, name: &[u64; NAME / 8]) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325 ^ ((u64::from(family) << 32) | u64::from(value));
    let mut i = 0;
    while i < NAME / 8 {
        h = (h ^ name[i]).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 29;
        i += 1;
    }
    h | 1
}

shared!(Named = 64);
