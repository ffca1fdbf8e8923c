//! `libglake_cuda.so`: GLake's allocator under programs that call `cudaMalloc`, loaded by `LD_PRELOAD` with an absolute path.
//!
//! One call's way: the CUDA runtime finds the driver by `dlopen` and `dlsym` (`dlsym`), asks `cuGetProcAddress` for each
//! function (`lookup`), and is given our functions for the few names of `hooks`. Those take what GLake can serve
//! (`serve`) and pass everything else to the driver (`driver`).
//!
//! On any doubt the driver's own function is called: an unknown driver, a context that is not the primary one, a capture, a
//! failure of ours. Nothing here panics into, ends or prints to stdout of the program.

mod capture;
mod dlsym;
mod driver;
mod hooks;
mod lookup;
mod serve;
mod start;
