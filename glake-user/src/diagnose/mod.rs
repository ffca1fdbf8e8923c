//! Numbers and events become findings: what, evidence, likely cause, what to do. Pure: no file, no clock of its own.

pub mod aer;
pub mod finding;
pub mod link;
pub mod paging;
pub mod xid;
