//! Block requests: what is kept while one is in flight, and what is counted when it ends.

use crate::{hist::SLOTS, shared};

/// Operations, as indices. The order is that of `events::sample::Operation`.
pub mod op {
    /// Read.
    pub const READ: u32 = 0;
    /// Write, write zeroes and append.
    pub const WRITE: u32 = 1;
    /// Cache flush.
    pub const FLUSH: u32 = 2;
    /// Discard and secure erase.
    pub const DISCARD: u32 = 3;
    /// Everything else.
    pub const OTHER: u32 = 4;
    /// How many.
    pub const COUNT: u32 = 5;

    /// From the low byte of `cmd_flags` (`enum req_op`, include/linux/blk_types.h; the numbers have not changed since 4.10,
    /// but for write zeroes and zone append, whose old numbers were reused for nothing else).
    #[inline(always)]
    pub fn of_req_op(req_op: u32) -> u32 {
        match req_op & 0xff {
            0 => READ,
            // REQ_OP_WRITE, REQ_OP_ZONE_APPEND (7), REQ_OP_WRITE_ZEROES (9).
            1 | 7 | 9 => WRITE,
            2 => FLUSH,
            // REQ_OP_DISCARD, REQ_OP_SECURE_ERASE.
            3 | 5 => DISCARD,
            _ => OTHER,
        }
    }

    /// From the first two letters of a trace point's `rwbs` (`blk_fill_rwbs`, kernel/trace/blktrace.c): a leading `F` is
    /// a pre-flush unless the operation itself is a flush, which reads `FF`.
    #[inline(always)]
    pub fn of_rwbs(first: u8, second: u8) -> u32 {
        let letter = if first == b'F' && second != b'F' && second != 0 { second } else { first };
        match letter {
            b'R' => READ,
            b'W' => WRITE,
            b'F' => FLUSH,
            b'D' => DISCARD,
            _ => OTHER,
        }
    }
}

/// A request in flight.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot {
    /// Address of the request, or device and sector where there is no BTF. 0: free.
    pub key: u64,
    /// When it started, CLOCK_MONOTONIC ns. 0: the request itself knows.
    pub start_ns: u64,
    /// When it was issued. 0: the request itself knows.
    pub issue_ns: u64,
    /// The workload's cell, plus one. 0: none.
    pub cell: u32,
    /// Its size when it started; what is merged into it later is booked at the merge.
    pub bytes: u32,
}

/// Requests in one set.
pub const SLOT_WAYS: usize = 4;

/// Requests whose keys hash alike.
pub type SlotSet = [Slot; SLOT_WAYS];

/// Counters of one operation on one device, one copy per shard.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    /// Requests completed.
    pub completed: u64,
    /// Bytes completed.
    pub bytes: u64,
    /// Requests completed with an error.
    pub errors: u64,
    /// Bios and requests merged into one that waited.
    pub merges: u64,
    /// Requests put back by the driver.
    pub requeues: u64,
    /// Completed requests of no single workload: flushes, and what discards gained by merging.
    pub shared_completed: u64,
    /// Their bytes.
    pub shared_bytes: u64,
    /// Their wait.
    pub shared_wait_ns: u64,
    /// Completed requests whose start was not seen or not kept.
    pub unknown_completed: u64,
    /// Their bytes.
    pub unknown_bytes: u64,
    /// Their wait.
    pub unknown_wait_ns: u64,
    /// Completed requests without times.
    pub untimed: u64,
    /// Sum of the queueing times.
    pub queue_sum_ns: u64,
    /// Sum of the device times.
    pub device_sum_ns: u64,
    /// Queueing times.
    pub queue: [u64; SLOTS],
    /// Device times.
    pub device: [u64; SLOTS],
}

/// 64-bit words of [`Counters`] before the histograms.
pub const COUNTER_WORDS: usize = 14;

/// Who a cell belongs to. Also the key under which it is found.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerKey {
    /// cgroup2 id; 0: none or unknown.
    pub cgroup: u64,
    /// Thread group id; 0: the kernel, on behalf of the cgroup.
    pub tgid: u32,
    /// Index of the device times 8, plus the operation.
    pub device_op: u32,
}

/// What user space needs to know about a cell. 64 bytes, written once when the cell is taken.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CellInfo {
    /// Who.
    pub key: OwnerKey,
    /// comm of the task at its first request.
    pub comm: [u8; 16],
    /// 1: taken. Written last.
    pub taken: u64,
    /// Reserved, 0.
    pub spare: [u64; 3],
}

/// Counters of one cell, one copy per shard.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Cell {
    /// Requests completed.
    pub completed: u64,
    /// Bytes of completed requests as they started, and of bios at their merge.
    pub bytes: u64,
    /// Queueing and device time together.
    pub wait_ns: u64,
    /// Reserved, 0.
    pub spare: u64,
}

shared!(Slot = 32, Counters = 912, OwnerKey = 16, CellInfo = 64, Cell = 32);

#[cfg(test)]
mod tests {
    use super::op;

    #[test]
    fn letters_and_numbers_name_the_same_operation() {
        // As blk_fill_rwbs prints them.
        for (rwbs, req_op) in
            [("R", 0), ("RA", 0), ("WS", 1), ("WFS", 1), ("FWS", 1), ("FF", 2), ("D", 3), ("DE", 5)]
        {
            let mut b = rwbs.bytes();
            let letters = op::of_rwbs(b.next().unwrap_or(0), b.next().unwrap_or(0));
            assert_eq!(letters, op::of_req_op(req_op), "{rwbs}");
        }
    }

    #[test]
    fn flags_above_the_operation_do_not_matter() {
        assert_eq!(op::of_req_op(0x8801), op::WRITE);
        assert_eq!(op::of_req_op(34), op::OTHER);
    }
}
