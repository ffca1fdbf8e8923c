//! UVM page faults and page migrations of all processes, from kprobes on NVIDIA's nvidia-uvm module.

pub(crate) mod layout;
mod module;
mod read;

pub(crate) use module::Module;
pub(crate) use read::{On, Uvms};
