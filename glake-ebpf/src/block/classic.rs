//! The same through classic trace points, for kernels without BTF. The record names no request: device and sector pair
//! start and end. User space tells kernel threads from tasks.

use super::{End, finish, merged};
use crate::{
    context::now,
    device,
    format::{Format, Offsets, offsets},
    inflight,
    maps::add,
    owner,
};
use aya_ebpf::programs::TracePointContext;
use glake_common::block::{Slot, op};

offsets! {
    BLOCK_START_TP, BLOCK_ISSUE_TP, BLOCK_COMPLETE_TP, BLOCK_REQUEUE_TP, BLOCK_MERGE_TP, BLOCK_BACK_MERGE_TP, BLOCK_FRONT_MERGE_TP,
}

/// What every block record holds: dev, sector, nr_sector, rwbs; complete also error.
struct Entry {
    device: u32,
    key: u64,
    bytes: u32,
    op: u32,
    error: i32,
}

#[inline(always)]
fn read(ctx: &TracePointContext, offsets: &'static Offsets) -> Option<Entry> {
    let record = Format::new(ctx, offsets);
    let dev = record.u32(0)?;
    let sector = record.u64(1)?;
    let sectors = record.u32(2)?;
    let rwbs = record.u16(3)?.to_le_bytes();
    // MAJOR and MINOR of include/linux/kdev_t.h.
    let device = device::of_number(dev >> 20, dev & 0xf_ffff)?;
    // 48 bits of sector hold 2^57 bytes.
    let key = (u64::from(device + 1) << 48) | (sector & 0xffff_ffff_ffff);
    let op = op::of_rwbs(rwbs[0], rwbs[1]);
    Some(Entry { device, key, bytes: sectors << 9, op, error: record.u32(4).unwrap_or(0) as i32 })
}

#[inline(always)]
pub fn start(ctx: &TracePointContext) {
    let Some(entry) = read(ctx, &BLOCK_START_TP) else { return };
    let cell = owner::of_submitter(None, entry.device, entry.op);
    let slot = Slot { key: 0, start_ns: now(), issue_ns: 0, cell, bytes: entry.bytes };
    inflight::put(entry.key, entry.key, slot);
}

#[inline(always)]
pub fn issue(ctx: &TracePointContext) {
    let Some(entry) = read(ctx, &BLOCK_ISSUE_TP) else { return };
    if let Some(slot) = inflight::find(entry.key, entry.key) {
        // SAFETY: the slot belongs to this request until it ends.
        unsafe { (*slot).issue_ns = now() };
    }
}

/// A part of a request ends at the sector where the request starts, and the rest is another record at a later sector:
/// classic records cannot tell, so each part counts as a request.
#[inline(always)]
pub fn complete(ctx: &TracePointContext) {
    let Some(entry) = read(ctx, &BLOCK_COMPLETE_TP) else { return };
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
}

#[inline(always)]
pub fn requeue(ctx: &TracePointContext) {
    let Some(entry) = read(ctx, &BLOCK_REQUEUE_TP) else { return };
    if let Some(counters) = device::counters(entry.device, entry.op) {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).requeues }, 1);
    }
}

#[inline(always)]
pub fn merge(ctx: &TracePointContext) {
    let Some(entry) = read(ctx, &BLOCK_MERGE_TP) else { return };
    let slot = inflight::take(entry.key, entry.key);
    let Some(counters) = device::counters(entry.device, entry.op) else { return };
    // SAFETY: a field of a map value.
    add(unsafe { &raw mut (*counters).merges }, 1);
    // One match: asked twice, the compiler keeps what a missing slot does not hold, and the verifier refuses that.
    let (cell, bytes) = match slot {
        Some(slot) => (slot.cell, slot.bytes),
        None => (0, entry.bytes),
    };
    merged(entry.op, cell, bytes, counters);
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
    let Some(entry) = read(ctx, offsets) else { return };
    let Some(counters) = device::counters(entry.device, entry.op) else { return };
    // SAFETY: a field of a map value.
    add(unsafe { &raw mut (*counters).merges }, 1);
    let cell = if entry.op == op::DISCARD { 0 } else { owner::of_submitter(None, entry.device, entry.op) };
    merged(entry.op, cell, entry.bytes, counters);
}
