//! The same through classic trace points, for kernels without BTF. The record names no request: device and sector pair
//! start and end. User space tells kernel threads from tasks.

use super::{End, finish, merged};
use crate::{
    context::{Kernel, now},
    device,
    format::{Format, Offsets, offsets},
    inflight,
    maps::{Place, add},
    owner,
};
use aya_ebpf::programs::TracePointContext;
use glake_common::block::{Slot, op};

offsets! {
    BLOCK_START_TP, BLOCK_ISSUE_TP, BLOCK_COMPLETE_TP, BLOCK_REQUEUE_TP, BLOCK_MERGE_TP, BLOCK_BACK_MERGE_TP, BLOCK_FRONT_MERGE_TP,
}

/// What every block record holds: dev, sector, nr_sector, rwbs; complete also error.
struct Entry {
    device: Place,
    key: u64,
    bytes: u32,
    op: u32,
    error: i32,
}

#[inline(always)]
fn read(ctx: &TracePointContext, offsets: &'static Offsets, then: impl FnOnce(Entry)) {
    let record = Format::new(ctx, offsets);
    if !record.has(0..4) {
        return;
    }
    let (dev, sector) = (record.u32(0), record.u64(1));
    let rwbs = record.u16(3).to_le_bytes();
    // MAJOR and MINOR of include/linux/kdev_t.h.
    let Some(device) = device::of_number(dev >> 20, dev & 0xf_ffff) else { return };
    // 48 bits of sector hold 2^57 bytes.
    let key = (u64::from(device.index() + 1) << 48) | (sector & 0xffff_ffff_ffff);
    let op = op::of_rwbs(rwbs[0], rwbs[1]);
    then(Entry { device, key, bytes: record.u32(2) << 9, op, error: record.u32(4).cast_signed() });
}

#[inline(always)]
pub fn start(ctx: &TracePointContext) {
    read(ctx, &BLOCK_START_TP, |entry| {
        let cell = owner::of_submitter(Kernel::NULL, entry.device, entry.op);
        let slot = Slot { key: 0, start_ns: now(), issue_ns: 0, cell, bytes: entry.bytes };
        inflight::put(entry.key, entry.key, slot);
    });
}

#[inline(always)]
pub fn issue(ctx: &TracePointContext) {
    read(ctx, &BLOCK_ISSUE_TP, |entry| {
        if let Some(slot) = inflight::find(entry.key, entry.key) {
            // SAFETY: the slot belongs to this request until it ends.
            unsafe { (*slot).issue_ns = now() };
        }
    });
}

/// A part of a request ends at the sector where the request starts, and the rest is another record at a later sector:
/// classic records cannot tell, so each part counts as a request.
#[inline(always)]
pub fn complete(ctx: &TracePointContext) {
    read(ctx, &BLOCK_COMPLETE_TP, |entry| {
        let slot = inflight::take(entry.key, entry.key);
        let end = End {
            device: entry.device,
            op: entry.op,
            bytes: u64::from(entry.bytes),
            last: true,
            status: i64::from(entry.error),
            start_ns: 0,
            issue_ns: 0,
        };
        finish(end, slot);
    });
}

#[inline(always)]
pub fn requeue(ctx: &TracePointContext) {
    read(ctx, &BLOCK_REQUEUE_TP, |entry| {
        if let Some(counters) = device::counters(entry.device, entry.op) {
            // SAFETY: a field of a map value.
            add(unsafe { &raw mut (*counters).requeues }, 1);
        }
    });
}

#[inline(always)]
pub fn merge(ctx: &TracePointContext) {
    read(ctx, &BLOCK_MERGE_TP, |entry| {
        let slot = inflight::take(entry.key, entry.key);
        let Some(counters) = device::counters(entry.device, entry.op) else { return };
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).merges }, 1);
        let bytes = if slot.key == 0 { entry.bytes } else { slot.bytes };
        merged(entry.op, slot.cell, bytes, counters);
    });
}

#[inline(always)]
pub fn back_merge(ctx: &TracePointContext) {
    bio_merge(ctx, &BLOCK_BACK_MERGE_TP);
}

#[inline(always)]
pub fn front_merge(ctx: &TracePointContext) {
    bio_merge(ctx, &BLOCK_FRONT_MERGE_TP);
}

#[inline(always)]
fn bio_merge(ctx: &TracePointContext, offsets: &'static Offsets) {
    read(ctx, offsets, |entry| {
        let Some(counters) = device::counters(entry.device, entry.op) else { return };
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).merges }, 1);
        let cell = if entry.op == op::DISCARD {
            0
        } else {
            owner::of_submitter(Kernel::NULL, entry.device, entry.op)
        };
        merged(entry.op, cell, entry.bytes, counters);
    });
}
