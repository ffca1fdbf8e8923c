//! What crosses the kernel boundary: records, map names and probe settings, written once for both sides.
//!
//! Rules: `no_std`; every shared record is `repr(C)` without padding and its size is asserted at compile time;
//! nothing here allocates, panics or knows the host.
#![no_std]

pub mod block;
pub mod hist;
pub mod member;
pub mod named;
pub mod nvme;
pub mod param;
pub mod record;
pub mod stat;
pub mod uvm;

/// The number of the format shared by the two sides. It rises with every change of a record, map or setting.
pub const ABI: u32 = 1;

/// An offset or a setting that this kernel or host does not have. The metric that needs it stays off.
pub const NONE: u32 = u32::MAX;

/// Says that a record may be copied to and from the kernel as bytes, and checks its size at compile time.
macro_rules! shared {
    ($($name:ty = $size:literal),* $(,)?) => { $(
        const _: () = assert!(core::mem::size_of::<$name>() == $size, "a shared record changed its size");
        // SAFETY: repr(C), only integers and arrays of integers, and the size above is the sum of the fields,
        // so there is no padding; every bit pattern is a value.
        #[cfg(feature = "user")]
        #[allow(unsafe_code, reason = "the one promise that aya's `Pod` asks for, kept by the line above")]
        unsafe impl aya::Pod for $name {}
    )* };
}
pub(crate) use shared;

/// Counting tables: a fixed number of sets of eight 64-bit keys. A key lives in one set, found by its hash; the place
/// it claims is its number for ever. There is no eviction: a full set is a counted drop.
pub mod table {
    /// Keys in a set.
    pub const WAYS: usize = 8;
    /// One set. 0 is an empty place.
    pub type Set = [u64; WAYS];

    /// The set of a key; `mask` is the number of sets less one.
    #[inline(always)]
    pub fn set_of(key: u64, mask: u32) -> u32 {
        // Fibonacci hashing: the upper half of the product depends on every bit of the key.
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32 & mask
    }
}
