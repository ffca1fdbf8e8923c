//! What crosses the kernel boundary: records, map names and probe settings, written once for both sides.
//!
//! Rules: `no_std`; every shared record is `repr(C)` without padding and its size is asserted at compile time;
//! nothing here allocates, panics or knows the host.
#![no_std]

pub mod hist;

/// The number of the format shared by the two sides. It rises with every change of a record, map or setting.
pub const ABI: u32 = 1;
