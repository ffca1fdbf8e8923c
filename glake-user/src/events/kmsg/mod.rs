//! The live kernel log, for what no trace point tells: timeouts and resets of NVMe controllers, and device, address and
//! reason of faults of Intel's IOMMU. [`super::xid`] reads its lines with the same reader.
//!
//! The log is rate-limited and its buffer wraps: what is counted here is a lower bound.

pub mod aer;
pub mod parse;
pub mod reader;
pub mod tally;
pub mod trouble;
