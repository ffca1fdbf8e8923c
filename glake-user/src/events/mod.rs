//! Bytes from the kernel become typed readings and events.

pub mod ebpf;
pub mod event;
pub mod heaps;
pub mod histogram;
pub mod kmsg;
pub mod nvml;
pub mod recording;
pub mod sample;
pub mod source;
pub mod uvm;
pub mod xid;
