//! Test doubles of real memory that can refuse, lie, lag and drop.

pub mod gpu;
mod gpu_memory;
mod gpu_stream;
