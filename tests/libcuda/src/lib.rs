//! The CUDA driver's C functions over GLake's host GPU: addresses are addresses of this process, memory is real, streams run
//! at once. Enough of the driver for a program that allocates, copies, maps and captures; not enough to launch kernels.
//!
//! `GLAKE_STANDIN_GPUS` (1) and `GLAKE_STANDIN_CAPACITY` (bytes, 1 GiB) say what the machine has; `GLAKE_STANDIN_NO_VMM` takes
//! virtual memory management away. Every call of `cuMemAlloc_v2` and `cuMemFree_v2` is counted: `standin_counts`.

mod contexts;
mod lookup;
mod memory;
mod state;
mod streams;
