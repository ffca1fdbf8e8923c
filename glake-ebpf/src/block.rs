//! Block requests. Times come from the request itself where the kernel stamps it; a slot keeps who submitted it.

pub mod classic;

use crate::{
    context::{Kernel, now, param},
    device, inflight,
    maps::{Place, add, count, emit, file},
    owner,
};
use aya_ebpf::{EbpfContext, programs::BtfTracePointContext};
use glake_common::{
    block::{Counters, Slot, op},
    member::*,
    param,
    record::kind,
    stat,
};

/// What is known of a request when it ends.
struct End {
    device: Place,
    op: u32,
    bytes: u64,
    /// Nothing of it is left.
    last: bool,
    /// blk_status_t, or an errno below 0; 0 is success.
    status: i64,
    start_ns: u64,
    issue_ns: u64,
}

#[inline(always)]
fn request(ctx: &BtfTracePointContext) -> Kernel {
    Kernel::argument(ctx.as_ptr().cast(), 0)
}

#[inline(always)]
fn device_of(rq: Kernel) -> Option<Place> {
    device::of_disk(rq.follow(RQ_Q).follow(Q_DISK))
}

/// The low half of the address: enough to choose a set, and a plain number to the verifier.
#[inline(always)]
fn hash_of(rq: Kernel) -> u64 {
    u64::from(rq.low())
}

#[inline(always)]
fn stamp() -> u64 {
    if param(param::STAMP) == 1 { now() } else { 0 }
}

#[inline(always)]
pub fn start(ctx: &BtfTracePointContext) {
    begin(request(ctx), 0);
}

/// Where `block_io_start` is missing: a request that comes again (requeue) keeps its first owner.
#[inline(always)]
pub fn start_late(ctx: &BtfTracePointContext) {
    let rq = request(ctx);
    if inflight::find(rq.address(), hash_of(rq)).is_none() {
        begin(rq, stamp());
    }
}

#[inline(always)]
fn begin(rq: Kernel, issue_ns: u64) {
    let Some(device) = device_of(rq) else { return };
    let op = op::of_req_op(rq.u32(RQ_CMD_FLAGS));
    let cell = owner::of_submitter(rq.follow(RQ_BIO), device, op);
    let slot = Slot { key: 0, start_ns: stamp(), issue_ns, cell, bytes: rq.u32(RQ_DATA_LEN) };
    // Under more work than CPUs some kernels leave ends out and count no miss (6.18: 1 of 1000). The request that comes next
    // at the same address tells.
    if inflight::put(rq.address(), hash_of(rq), slot) {
        count(stat::BLOCK_UNMATCHED);
    }
}

#[inline(always)]
pub fn issue(ctx: &BtfTracePointContext) {
    let rq = request(ctx);
    if let Some(slot) = inflight::find(rq.address(), hash_of(rq)) {
        // SAFETY: the slot belongs to this request until it ends.
        unsafe { (*slot).issue_ns = now() };
    }
}

#[inline(always)]
pub fn complete(ctx: &BtfTracePointContext) {
    let rq = request(ctx);
    let args: *const u64 = ctx.as_ptr().cast();
    // SAFETY: the trace point has three arguments; user space checked its prototype.
    let (status, bytes) = unsafe { (*args.add(1) as u8, *args.add(2) as u32) };
    let Some(device) = device_of(rq) else { return };
    let end = End {
        device,
        op: op::of_req_op(rq.u32(RQ_CMD_FLAGS)),
        bytes: u64::from(bytes),
        last: bytes >= rq.u32(RQ_DATA_LEN),
        status: i64::from(status),
        start_ns: rq.u64(RQ_START),
        issue_ns: rq.u64(RQ_IO_START),
    };
    let slot = if end.last { inflight::take(rq.address(), hash_of(rq)) } else { Slot::default() };
    finish(end, slot);
}

/// Counts the end of a request, or of a part of it. `slot` is all 0 if the start was not kept.
#[inline(always)]
fn finish(mut end: End, slot: Slot) {
    // A flush machine ends the request that asked for it once more, with nothing in it (blk-flush.c, REQ_FSEQ_DONE).
    if end.bytes == 0 && (end.op == op::READ || end.op == op::WRITE) {
        return;
    }
    let Some(counters) = device::counters(end.device, end.op) else { return };
    // SAFETY: fields of a map value; `add` is atomic.
    unsafe {
        add(&raw mut (*counters).bytes, end.bytes);
        if end.status != 0 {
            failed(&end, counters);
        }
        if !end.last {
            // Its bytes are its owner's, who is booked when the rest ends.
            return;
        }
        add(&raw mut (*counters).completed, 1);
    }
    end.start_ns = if end.start_ns == 0 { slot.start_ns } else { end.start_ns };
    end.issue_ns = if end.issue_ns == 0 { slot.issue_ns } else { end.issue_ns };
    let wait = times(&end, counters);
    book(&end, slot, counters, wait);
}

#[inline(always)]
unsafe fn failed(end: &End, counters: *mut Counters) {
    // SAFETY: the caller's pointer is a map value.
    unsafe { add(&raw mut (*counters).errors, 1) };
    if param(param::IO_ERRORS) == 1 {
        emit(kind::IO_ERROR, |record| {
            record.a = end.device.index();
            record.b = end.op;
            record.value = end.status as u64;
        });
    }
}

/// Files the times; gives their sum, or 0.
#[inline(always)]
fn times(end: &End, counters: *mut Counters) -> u64 {
    if end.start_ns == 0 || end.issue_ns == 0 {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).untimed }, 1);
        return 0;
    }
    // A plug lends its requests one cached time (blk_time_get_ns), so a start may read later than the issue: that is 0.
    let queue = end.issue_ns.saturating_sub(end.start_ns);
    let device = now().saturating_sub(end.issue_ns);
    // SAFETY: fields of a map value.
    unsafe {
        add(&raw mut (*counters).queue_sum_ns, queue);
        file(&raw mut (*counters).queue, queue);
        add(&raw mut (*counters).device_sum_ns, device);
        file(&raw mut (*counters).device, device);
    }
    let slow_us = param(param::SLOW_IO_US);
    if slow_us != 0 && queue + device > u64::from(slow_us) * 1000 {
        emit(kind::SLOW_IO, |record| {
            record.a = end.device.index();
            record.b = end.op;
            record.value = queue + device;
        });
    }
    queue + device
}

/// Books the request to its workload. What was merged into it was booked at the merge, except for discards, which merge
/// without a trace point (bio_attempt_discard_merge).
#[inline(always)]
fn book(end: &End, slot: Slot, counters: *mut Counters, wait: u64) {
    let mut bytes = u64::from(slot.bytes);
    // SAFETY (all blocks): fields of a map value; `add` is atomic.
    if slot.cell != 0 {
        owner::book(slot.cell, 1, bytes, wait);
        if end.op == op::DISCARD && end.bytes > bytes {
            unsafe { add(&raw mut (*counters).shared_bytes, end.bytes - bytes) };
        }
        return;
    }
    if slot.key == 0 {
        if end.op == op::FLUSH {
            unsafe {
                add(&raw mut (*counters).shared_completed, 1);
                add(&raw mut (*counters).shared_wait_ns, wait);
            }
            return;
        }
        count(stat::BLOCK_UNMATCHED);
        bytes = end.bytes;
    }
    unsafe {
        add(&raw mut (*counters).unknown_completed, 1);
        add(&raw mut (*counters).unknown_bytes, bytes);
        add(&raw mut (*counters).unknown_wait_ns, wait);
    }
}

#[inline(always)]
pub fn requeue(ctx: &BtfTracePointContext) {
    let rq = request(ctx);
    let Some(device) = device_of(rq) else { return };
    if let Some(counters) = device::counters(device, op::of_req_op(rq.u32(RQ_CMD_FLAGS))) {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).requeues }, 1);
    }
}

/// A whole request goes into another: its bytes are booked to its own workload now.
#[inline(always)]
pub fn merge(ctx: &BtfTracePointContext) {
    let rq = request(ctx);
    let Some(device) = device_of(rq) else { return };
    let op = op::of_req_op(rq.u32(RQ_CMD_FLAGS));
    let slot = inflight::take(rq.address(), hash_of(rq));
    if let Some(counters) = device::counters(device, op) {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).merges }, 1);
        let bytes = if slot.key == 0 { rq.u32(RQ_DATA_LEN) } else { slot.bytes };
        merged(op, slot.cell, bytes, counters);
    }
}

/// A bio joins a request that waits: its bytes are its submitter's, who runs now.
#[inline(always)]
pub fn bio_merge(ctx: &BtfTracePointContext) {
    let bio = request(ctx);
    let Some(device) = device::of_disk(bio.follow(BIO_BDEV).follow(BDEV_DISK)) else { return };
    let op = op::of_req_op(bio.u32(BIO_OPF));
    let Some(counters) = device::counters(device, op) else { return };
    // SAFETY: a field of a map value.
    add(unsafe { &raw mut (*counters).merges }, 1);
    let cell = if op == op::DISCARD { 0 } else { owner::of_submitter(bio, device, op) };
    merged(op, cell, bio.u32(BIO_SIZE), counters);
}

#[inline(always)]
fn merged(op: u32, cell: u32, bytes: u32, counters: *mut Counters) {
    if op == op::DISCARD {
        // Booked as shared when the request ends.
        return;
    }
    if cell != 0 {
        owner::book(cell, 0, u64::from(bytes), 0);
    } else {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*counters).unknown_bytes }, u64::from(bytes));
    }
}
