//! Xid errors: the GPU driver's error reports, as the kernel log spells them, and what each code means.
//!
//! An Xid is an error report. UVM page faults are not: see [`super::uvm`].

pub mod assemble;
pub mod catalogue;
pub mod kmsg;
pub mod log;
pub mod parse;
