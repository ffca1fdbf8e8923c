//! What this machine is. Reads, never writes; the root of the file system is a parameter.

pub mod gpus;
pub mod holders;
pub mod inventory;
pub mod kernel;
pub use crate::pci;
pub mod process;
pub mod workload;
