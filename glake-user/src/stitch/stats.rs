//! What the heap holds and what it has done, in torch's words and meanings.

use crate::gpu::Call;

/// A quantity with its peak since the last reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Level {
    /// Now.
    pub current: u64,
    /// The largest value since the peaks were reset.
    pub peak: u64,
    /// Everything ever added.
    pub allocated: u64,
    /// Everything ever taken away.
    pub freed: u64,
}

/// Driver calls of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct CallCount {
    /// Calls made.
    pub calls: u64,
    /// Nanoseconds spent in them.
    pub ns: u64,
}

/// A snapshot of the heap's counters.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Stats {
    /// Bytes of blocks handed out, rounded to 512 (`allocated_bytes.all`).
    pub allocated: Level,
    /// Bytes asked for (`requested_bytes.all`).
    pub requested: Level,
    /// Blocks handed out (`allocation.all`).
    pub blocks: Level,
    /// Bytes handed out or waiting for other streams (`active_bytes.all`).
    pub active: Level,
    /// Physical memory held: used, idle, ahead (`reserved_bytes.all`).
    pub reserved: Level,
    /// Bytes of physical memory moved by remapping, ever.
    pub remapped_bytes: u64,
    /// Address space that is mapped twice and waits to be unmapped.
    pub zombie_bytes: u64,
    /// Driver calls made while an allocation or free waited, by [`Call`].
    pub foreground: [CallCount; Call::ALL.len()],
    /// Driver calls made by the reclaimer, by [`Call`].
    pub background: [CallCount; Call::ALL.len()],
    /// Times an allocation waited for a stream.
    pub waits: u64,
    /// Allocations that failed for want of memory.
    pub ooms: u64,
    /// Allocations that would have failed without remapping.
    pub ooms_avoided: u64,
    /// The largest free mapped range of any stream.
    pub largest_free: u64,
    /// Free mapped bytes.
    pub free: u64,
}

impl Stats {
    /// `1 - largest free range / free bytes`: 0 when all free memory is one range, or there is none.
    pub fn fragmentation(&self) -> f64 {
        if self.free == 0 { 0.0 } else { 1.0 - self.largest_free as f64 / self.free as f64 }
    }

    /// Driver calls and their nanoseconds, foreground.
    pub fn foreground_total(&self) -> CallCount {
        total(&self.foreground)
    }

    /// Driver calls and their nanoseconds, reclaimer.
    pub fn background_total(&self) -> CallCount {
        total(&self.background)
    }
}

fn total(calls: &[CallCount]) -> CallCount {
    calls.iter().fold(CallCount::default(), |a, c| CallCount { calls: a.calls + c.calls, ns: a.ns + c.ns })
}
