//! Entry points of the eBPF programs. Each is thin; one file per event family.
//!
//! Three kinds of hooks: BTF trace points, whose arguments are typed pointers into kernel structures; raw trace points of modules,
//! whose arguments are addresses of such (the offsets of both come from the running kernel's BTF); and classic trace points, whose records are read at the offsets of tracefs `format` files.
//!
//! One rule of style: no `Option` of a plain number or struct. Its `None` leaves the value undefined, which LLVM may still move about,
//! and the verifier refuses a register that was never written; whether it comes to that changes with every build. A function gives 0
//! for nothing, or an `Option` whose `None` is itself a value (a pointer, a `NonZero`, a [`maps::Place`]).
#![no_std]
#![no_main]
#![feature(core_intrinsics, asm_experimental_arch)]
#![allow(internal_features, reason = "atomic read-modify-write, see atomic.rs")]

mod atomic;
mod block;
mod context;
mod device;
mod format;
mod inflight;
mod iommu;
mod maps;
mod named;
mod nvme;
mod owner;
mod uvm;

use aya_ebpf::{
    macros::{btf_tracepoint, fentry, fexit, kprobe, kretprobe, raw_tracepoint, tracepoint},
    programs::{
        BtfTracePointContext, FEntryContext, FExitContext, ProbeContext, RawTracePointContext,
        RetProbeContext, TracePointContext,
    },
};

#[btf_tracepoint(function = "block_io_start")]
fn block_start(ctx: BtfTracePointContext) -> i32 {
    block::start(&ctx);
    0
}

#[btf_tracepoint(function = "block_rq_issue")]
fn block_issue(ctx: BtfTracePointContext) -> i32 {
    block::issue(&ctx);
    0
}

/// For kernels without `block_io_start`: the issue is the first that is seen of a request.
#[btf_tracepoint(function = "block_rq_issue")]
fn block_start_late(ctx: BtfTracePointContext) -> i32 {
    block::start_late(&ctx);
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
fn block_complete(ctx: BtfTracePointContext) -> i32 {
    block::complete(&ctx);
    0
}

#[btf_tracepoint(function = "block_rq_requeue")]
fn block_requeue(ctx: BtfTracePointContext) -> i32 {
    block::requeue(&ctx);
    0
}

#[btf_tracepoint(function = "block_rq_merge")]
fn block_merge(ctx: BtfTracePointContext) -> i32 {
    block::merge(&ctx);
    0
}

#[btf_tracepoint(function = "block_bio_backmerge")]
fn block_back_merge(ctx: BtfTracePointContext) -> i32 {
    block::bio_merge(&ctx);
    0
}

#[btf_tracepoint(function = "block_bio_frontmerge")]
fn block_front_merge(ctx: BtfTracePointContext) -> i32 {
    block::bio_merge(&ctx);
    0
}

/// Classic trace points: one program each, its body in the family's file, its offsets in the global of the same name.
macro_rules! classic {
    ($($name:ident => $body:path),* $(,)?) => { $(
        #[tracepoint]
        fn $name(ctx: TracePointContext) -> u32 {
            $body(&ctx);
            0
        }
    )* };
}

classic! {
    block_start_tp => block::classic::start,
    block_issue_tp => block::classic::issue,
    block_complete_tp => block::classic::complete,
    block_merge_tp => block::classic::merge,
    block_requeue_tp => block::classic::requeue,
    block_back_merge_tp => block::classic::back_merge,
    block_front_merge_tp => block::classic::front_merge,
    nvme_setup_tp => nvme::classic::setup,
    nvme_complete_tp => nvme::classic::complete,
    nvme_sq_tp => nvme::classic::queue,
    nvme_async_tp => nvme::classic::asynchronous,
    iommu_map_tp => iommu::map,
    iommu_unmap_tp => iommu::unmap,
    iommu_fault_tp => named::iommu_fault,
    dma_map_tp => named::dma_map,
    dma_map_sg_tp => named::dma_map_sg,
    dma_map_sg_err_tp => named::dma_map_sg_error,
    swiotlb_tp => named::swiotlb,
    aer_tp => named::aer,
    io_uring_punt_tp => iommu::io_uring_punt,
    xid_tp => named::xid,
    sxid_tp => named::sxid,
}

/// Raw trace points of modules.
macro_rules! raw {
    ($($name:ident => $body:path),* $(,)?) => { $(
        #[raw_tracepoint]
        fn $name(ctx: RawTracePointContext) -> i32 {
            $body(&ctx);
            0
        }
    )* };
}

raw! {
    nvme_setup => nvme::raw::setup,
    nvme_complete => nvme::raw::complete,
    nvme_sq => nvme::raw::queue,
    nvme_async => nvme::raw::asynchronous,
}

/// Kernel functions: one program each.
macro_rules! functions {
    ($($name:ident => $body:path),* $(,)?) => { $(
        #[kprobe]
        fn $name(ctx: ProbeContext) -> u32 {
            $body(&ctx);
            0
        }
    )* };
}

functions! {
    dmar_fault => iommu::dmar_fault,
    viommu_fault => iommu::dmar_fault,
    xid_call => named::xid_call,
}

/// Functions of nvidia-uvm, with two programs each: by the first a kprobe calls, by the second (fentry) the function itself.
macro_rules! uvm_functions {
    ($($name:ident, $direct:ident => $body:path),* $(,)?) => {
        functions! { $($name => $body),* }
        $(
            #[fentry]
            fn $direct(ctx: FEntryContext) -> i32 {
                $body(&ctx);
                0
            }
        )*
    };
}

uvm_functions! {
    uvm_notify, uvm_notify_direct => uvm::notify,
    uvm_service, uvm_service_direct => uvm::service,
    uvm_batch, uvm_batch_direct => uvm::batch,
    uvm_replay, uvm_replay_direct => uvm::replay,
    uvm_evict, uvm_evict_direct => uvm::evict,
    uvm_thrashing, uvm_thrashing_direct => uvm::thrashing,
    uvm_throttling, uvm_throttling_direct => uvm::throttling,
    uvm_throttling_end, uvm_throttling_end_direct => uvm::throttling_ends,
    uvm_fatal, uvm_fatal_direct => uvm::fatal,
    uvm_space, uvm_space_direct => uvm::space_begins,
    uvm_space_end, uvm_space_end_direct => uvm::space_ends,
}

#[kretprobe]
fn uvm_service_end(_ctx: RetProbeContext) -> u32 {
    uvm::service_ends();
    0
}

#[fexit]
fn uvm_service_end_direct(_ctx: FExitContext) -> i32 {
    uvm::service_ends();
    0
}

/// aya has no macro for iterators. User space runs it once, over the open files of all tasks.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
extern "C" fn uvm_files(ctx: *mut core::ffi::c_void) -> i32 {
    uvm::open_file(ctx.cast());
    0
}

/// bpf_probe_read_kernel and bpf_get_current_task_btf are for GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
