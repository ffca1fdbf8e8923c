//! Helpers of the whole-program tests: where the binary is, how to start it, how to wait with a deadline.

pub mod agent;
pub mod binary;
pub mod conformance;
pub mod copying;
pub mod nvml;
pub mod pty;
pub mod readings;
pub mod steps;
