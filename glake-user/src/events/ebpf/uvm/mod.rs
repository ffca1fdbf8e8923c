//! UVM page faults and page migrations of all processes, from probes on the functions of NVIDIA's nvidia-uvm module.

pub(crate) mod layout;
mod module;
mod read;

pub(crate) use module::{Module, holders, live_module};
pub(crate) use read::{On, Uvms};
