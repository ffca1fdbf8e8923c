//! The one room with `unsafe`: thin, typed calls into the kernel and into C libraries. No policy.
#![allow(
    unsafe_code,
    reason = "this is the room where unsafe lives; every block says which promise it keeps"
)]

pub mod bpf;
pub mod btf;
pub mod buffer;
pub mod caps;
pub(crate) mod cuda;
pub mod cuda_gpu;
pub(crate) mod cuda_host;
pub mod cuda_kernels;
pub mod heap;
pub mod lockdown;
pub mod mmap;
pub mod nvml;
pub mod pagecache;
pub mod process;
pub mod tracefs;
pub mod tracing;
pub mod uring;
pub mod uvm;
