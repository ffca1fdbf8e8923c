//! NVMe commands through classic trace points, for kernels without BTF.
//!
//! The kernel runs no classic trace point's program where an interrupt hits any other on the same CPU (`bpf_prog_active`); what
//! that loses is counted as `recursion`.

use super::{End, ended, keep, queued, told};
use crate::{
    context::now,
    format::{Format, offsets},
    maps::NVME_SHIFTS,
};
use aya_ebpf::programs::TracePointContext;
use glake_common::nvme::{DEPTHS, Flight, NAMESPACES, flight_key, moves_blocks};

offsets! { NVME_SETUP_TP, NVME_COMPLETE_TP, NVME_SQ_TP, NVME_ASYNC_TP }

/// Fields: ctrl_id, qid, opcode, cid, nsid, cdw10.
#[inline(always)]
pub fn setup(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &NVME_SETUP_TP);
    if !entry.has(0..4) {
        return;
    }
    let (ctrl, qid, opcode, nsid) = (entry.u32(0), entry.u32(1), u32::from(entry.u8(2)), entry.u32(4));
    let mut bytes = 0;
    if qid != 0 && moves_blocks(opcode) && entry.has(5..6) {
        // Dwords 10 to 15 as bytes; NLB is the low half of dword 12, 0 for one block.
        let blocks = u64::from(entry.read::<[u32; 3]>(5)[2] & 0xffff) + 1;
        let shift = shift_of(ctrl, nsid);
        bytes = if shift == 0 { 0 } else { blocks << (shift & 31) };
    }
    let key = flight_key(ctrl, qid, entry.u16(3).into());
    keep(Flight { key, start_ns: now(), bytes, opcode, nsid });
}

#[inline(always)]
fn shift_of(ctrl: u32, nsid: u32) -> u64 {
    if ctrl >= DEPTHS || nsid >= NAMESPACES {
        return 0;
    }
    NVME_SHIFTS.get(ctrl * NAMESPACES + nsid).map_or(0, |shift| *shift)
}

/// Fields: ctrl_id, qid, cid, retries, status.
#[inline(always)]
pub fn complete(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &NVME_COMPLETE_TP);
    if entry.has(0..3) {
        ended(&End {
            ctrl: entry.u32(0),
            qid: entry.u32(1),
            cid: entry.u16(2),
            retries: entry.u8(3),
            status: entry.u16(4),
        });
    }
}

/// Fields: ctrl_id, qid, sq_head, sq_tail.
#[inline(always)]
pub fn queue(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &NVME_SQ_TP);
    if entry.has(0..4) {
        queued(entry.u32(0), entry.u32(1), entry.u16(2), entry.u16(3));
    }
}

/// Fields: ctrl_id, result.
#[inline(always)]
pub fn asynchronous(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &NVME_ASYNC_TP);
    if entry.has(0..1) {
        told(entry.u32(0), entry.u32(1));
    }
}
