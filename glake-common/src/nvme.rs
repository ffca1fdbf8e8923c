//! NVMe commands: what is kept while one is in flight, and what is counted when it ends.

use crate::{hist::SLOTS, shared};

/// A command in flight.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Flight {
    /// [`flight_key`]; 0: free.
    pub key: u64,
    /// When it was set up, CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// Data bytes.
    pub bytes: u64,
    /// Opcode.
    pub opcode: u32,
    /// Namespace.
    pub nsid: u32,
}

/// In an error event: the command's start was not seen, so its opcode is not known.
pub const NO_OPCODE: u32 = 0xffff;

/// Commands in one set.
pub const FLIGHT_WAYS: usize = 4;
/// Commands whose keys hash alike.
pub type FlightSet = [Flight; FLIGHT_WAYS];

/// Controller, queue and command id as one key, never 0.
#[inline(always)]
pub fn flight_key(ctrl: u32, qid: u32, cid: u32) -> u64 {
    ((ctrl as u64 & 0xffff) << 33) | ((qid as u64 & 0xffff) << 17) | ((cid as u64 & 0xffff) << 1) | 1
}

/// What a cell of the NVMe table counts.
pub mod kind {
    /// Commands of one opcode on one queue.
    pub const COMMANDS: u64 = 1;
    /// Completions with one error status; no latency.
    pub const STATUS: u64 = 2;
    /// Fill of one submission queue; no latency.
    pub const QUEUE: u64 = 3;
    /// Asynchronous events of one controller; no latency.
    pub const ASYNC: u64 = 4;
}

/// The key of a cell: kind, controller, queue and a value that depends on the kind (opcode; status without its upper bits).
#[inline(always)]
pub fn cell_key(kind: u64, ctrl: u32, qid: u32, value: u32) -> u64 {
    (kind << 60) | ((ctrl as u64 & 0xffff) << 32) | ((qid as u64 & 0xffff) << 16) | (value as u64 & 0xffff)
}

/// Takes a key apart again: kind, controller, queue, value.
pub fn split_key(key: u64) -> (u64, u32, u16, u16) {
    (key >> 60, (key >> 32) as u32 & 0xffff, (key >> 16) as u16, key as u16)
}

/// Counters of one cell.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    /// Commands completed, or events.
    pub completed: u64,
    /// Data bytes; for [`kind::QUEUE`] the largest fill since user space last set it to 0.
    pub bytes: u64,
    /// Completed after at least one retry.
    pub retries: u64,
    /// Commands with data whose namespace's block size is not known: their bytes are not in `bytes`.
    pub untold: u64,
    /// Sum of the latencies.
    pub sum_ns: u64,
    /// Latencies.
    pub latency: [u64; SLOTS],
}

/// 64-bit words of [`Counters`] before the histogram.
pub const COUNTER_WORDS: usize = 5;

/// Entries of the array of queue depths, by controller number.
pub const DEPTHS: u32 = 256;
/// Namespaces per controller whose block size is told.
pub const NAMESPACES: u32 = 32;
/// Entries of the array of block sizes: controller number times [`NAMESPACES`] plus namespace id.
pub const SHIFTS: u32 = DEPTHS * NAMESPACES;

/// Whether a command of this opcode on an I/O queue moves NLB + 1 blocks: write, read, compare, zone append.
#[inline(always)]
pub fn moves_blocks(opcode: u32) -> bool {
    matches!(opcode, 0x01 | 0x02 | 0x05 | 0x7d)
}

shared!(Flight = 32, Counters = 440);

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_key_comes_apart_into_what_it_was_made_of(kind in 1u64..5, ctrl in 0u32..65536, qid: u16, value: u16) {
            let key = cell_key(kind, ctrl, u32::from(qid), u32::from(value));
            proptest::prop_assert_eq!(split_key(key), (kind, ctrl, qid, value));
        }

        #[test]
        fn no_two_commands_in_flight_share_a_key(a: (u16, u16, u16), b: (u16, u16, u16)) {
            let key = |(c, q, i): (u16, u16, u16)| flight_key(c.into(), q.into(), i.into());
            proptest::prop_assert_eq!(key(a) == key(b), a == b);
            proptest::prop_assert_ne!(key(a), 0);
        }
    }
}
