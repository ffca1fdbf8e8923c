//! NVMe commands through raw trace points: the arguments are the driver's own structures, read at the offsets of its BTF. Cheaper than
//! the classic way, and an interrupt that hits another program on the same CPU loses nothing.

use super::{End, ended, keep, queued, told};
use crate::context::{Address, now};
use aya_ebpf::programs::RawTracePointContext;
use glake_common::{
    member::*,
    nvme::{Flight, flight_key, moves_blocks},
};

/// A request with the driver's part behind it (`blk_mq_rq_to_pdu`, include/linux/blk-mq.h).
#[derive(Clone, Copy)]
struct Request {
    rq: Address,
    nvme: Address,
}

impl Request {
    #[inline(always)]
    fn of(ctx: &RawTracePointContext) -> Request {
        let rq = Address(ctx.arg(0));
        Request { rq, nvme: rq.at(RQ_SIZE) }
    }

    #[inline(always)]
    fn controller(self) -> u32 {
        self.nvme.follow(NVME_CTRL).u32(CTRL_INSTANCE)
    }

    /// `nvme_req_qid` of drivers/nvme/host/nvme.h: the admin queue has no namespace behind it.
    #[inline(always)]
    fn queue(self) -> u32 {
        if self.rq.follow(RQ_Q).follow(Q_DATA).0 == 0 { 0 } else { self.rq.follow(RQ_HCTX).u32(HCTX_NUM) + 1 }
    }
}

/// Arguments: request, command. The command is the NVMe base specification's submission queue entry.
#[inline(always)]
pub fn setup(ctx: &RawTracePointContext) {
    let request = Request::of(ctx);
    let (ctrl, qid) = (request.controller(), request.queue());
    // Dword 0: opcode, flags, command id. Dword 1: namespace.
    let [first, nsid] = Address(ctx.arg(1)).read::<[u32; 2]>();
    let opcode = first & 0xff;
    let bytes = if qid != 0 && moves_blocks(opcode) { u64::from(request.rq.u32(RQ_DATA_LEN)) } else { 0 };
    keep(Flight { key: flight_key(ctrl, qid, first >> 16), start_ns: now(), bytes, opcode, nsid });
}

/// Argument: request.
#[inline(always)]
pub fn complete(ctx: &RawTracePointContext) {
    let request = Request::of(ctx);
    ended(&End {
        ctrl: request.controller(),
        qid: request.queue(),
        cid: (request.nvme.follow(NVME_CMD).read::<u32>() >> 16) as u16,
        retries: request.nvme.at(NVME_RETRIES).read(),
        status: request.nvme.at(NVME_STATUS).read(),
    });
}

/// Arguments: request, head of the submission queue, its tail.
#[inline(always)]
pub fn queue(ctx: &RawTracePointContext) {
    let request = Request::of(ctx);
    queued(request.controller(), request.queue(), ctx.arg(1), ctx.arg(2));
}

/// Arguments: controller, result.
#[inline(always)]
pub fn asynchronous(ctx: &RawTracePointContext) {
    told(Address(ctx.arg(0)).u32(CTRL_INSTANCE), ctx.arg(1));
}
