//! UVM page faults and page migrations of one process, from the driver's own event queue.
//!
//! Works on a stock driver and a locked-down kernel. "UVM page faults" are demand paging: normal, not hardware errors.

pub mod coverage;
pub mod entry;
pub mod queue;
pub mod release;
pub mod target;
mod words;
