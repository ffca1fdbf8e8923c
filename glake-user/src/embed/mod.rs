//! The allocator inside a program's process: one heap per GPU, whether it may be used at all, and what it says.
//!
//! Shells stand on top of it: the Python module, the preload library. Nothing here ends the process, prints to standard output
//! or waits without an end. On any failure the caller is told to use its own allocator.

pub mod imports;
mod mode;
mod process;
mod publish;
mod say;

pub use crate::sys::process::is_forked;
pub use mode::{Mode, mode};
pub use process::{Process, owns, tell};
pub use say::{fell_back, say_once};
