//! Totals that name no device: IOMMU calls, Intel's fault interrupts, io_uring punts.

use crate::{
    context::shard,
    format::{Format, offsets},
    maps::{IOMMU, add, below, count},
};
use aya_ebpf::programs::{ProbeContext, TracePointContext};
use glake_common::stat::{self, iommu};

offsets! { IOMMU_MAP_TP, IOMMU_UNMAP_TP }

/// Fields: size.
#[inline(always)]
pub fn map(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &IOMMU_MAP_TP);
    let size = entry.u64(0);
    tally(iommu::MAPS, iommu::MAPPED, size);
    if entry.has(0..1)
        && let Some(counters) = IOMMU.get_ptr_mut(shard(0))
    {
        let class = below::<{ iommu::CLASSES }>(iommu::class(size) as u64);
        // SAFETY: a class is below the number of classes.
        add(unsafe { counters.cast::<u64>().add(iommu::SIZES + class) }, 1);
    }
}

/// Fields: unmapped_size.
#[inline(always)]
pub fn unmap(ctx: &TracePointContext) {
    tally(iommu::UNMAPS, iommu::UNMAPPED, Format::new(ctx, &IOMMU_UNMAP_TP).u64(0));
}

#[inline(always)]
fn tally(calls: usize, bytes: usize, size: u64) {
    if let Some(counters) = IOMMU.get_ptr_mut(shard(0)) {
        // SAFETY: constant indices below the length.
        unsafe {
            add(&raw mut (*counters)[calls], 1);
            add(&raw mut (*counters)[bytes], size);
        }
    }
}

#[inline(always)]
pub fn io_uring_punt(_ctx: &TracePointContext) {
    count(stat::IO_URING_PUNTED);
}

/// One fault interrupt: a handler call, which may report several faults.
#[inline(always)]
pub fn dmar_fault(_ctx: &ProbeContext) {
    count(stat::DMAR_FAULTS);
}
