//! What the heap holds and what it has done, in torch's words and meanings.

use std::sync::atomic::Ordering;

use super::habits::SMALL;
use super::heap::Heap;
use super::lane::{Lane, Tally};
use super::lanes::lock;
use super::space::{Space, State};
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

/// What one of the two pools holds now: small blocks (below 1 MiB), or all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct PoolStats {
    /// Blocks handed out (`allocation.small_pool`, `allocation.large_pool`).
    pub blocks: u64,
    /// Their bytes, rounded to 512 (`allocated_bytes`).
    pub allocated: u64,
    /// The same as they were asked for (`requested_bytes`).
    pub requested: u64,
    /// Bytes handed out or waiting for other streams (`active_bytes`).
    pub active: u64,
    /// Physical memory mapped for it (`reserved_bytes`); idle memory belongs to no pool.
    pub reserved: u64,
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
    /// Address space given up after failed driver calls, with the memory that may still be mapped there.
    pub lost_bytes: u64,
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
    /// The pools: small blocks, and large ones.
    pub pools: [PoolStats; 2],
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

impl Heap {
    /// The counters now.
    ///
    /// With one stream every peak is exact. With several, `allocated` and `requested` peaks are exact to a thirty-second of
    /// each stream's bytes: streams report larger changes only, so that threads do not wait for each other.
    pub fn stats(&self) -> Stats {
        self.stats_of(true)
    }

    /// The same without the pools: its time does not grow with the number of blocks.
    pub fn brief_stats(&self) -> Stats {
        self.stats_of(false)
    }

    fn stats_of(&self, pools: bool) -> Stats {
        let mut stats =
            Stats { foreground: self.front.counts(), background: self.back.counts(), ..Stats::default() };
        let lanes = self.lanes.all();
        for lane in &lanes {
            let mut lane = lock(lane);
            self.publish_now(&mut lane);
            add_lane(&mut stats, &lane, pools);
        }
        if lanes.len() > 1 {
            // A lane's own peak may date from when it was the only one.
            let own = |of: fn(&Tally) -> u64| lanes.iter().map(|l| of(&lock(l).tally)).max().unwrap_or(0);
            let (allocated, requested) = (&self.totals.allocated_peak, &self.totals.requested_peak);
            stats.allocated.peak = allocated.load(Ordering::Relaxed).max(own(|t| t.allocated_peak));
            stats.requested.peak = requested.load(Ordering::Relaxed).max(own(|t| t.requested_peak));
        }
        let reserved = self.depot.reserved();
        stats.reserved = Level { current: reserved, peak: self.depot.reserved_peak(), ..Level::default() };
        stats.waits = self.totals.waits.load(Ordering::Relaxed);
        stats.ooms = self.totals.ooms.load(Ordering::Relaxed);
        stats.ooms_avoided = self.totals.ooms_avoided.load(Ordering::Relaxed);
        stats
    }

    /// Starts the counts of everything ever allocated and freed anew: what is allocated now counts as allocated since.
    pub fn reset_accumulated(&self) {
        for lane in self.lanes.all() {
            let t = &mut lock(lane).tally;
            (t.allocated_ever, t.requested_ever, t.blocks_ever) = (t.allocated, t.requested, t.blocks);
        }
    }

    /// Starts all peaks anew from the present.
    pub fn reset_peaks(&self) {
        for lane in self.lanes.all() {
            let mut lane = lock(lane);
            self.publish_now(&mut lane);
            let t = &mut lane.tally;
            t.allocated_peak = t.allocated;
            t.requested_peak = t.requested;
            t.blocks_peak = t.blocks;
            t.active_peak = t.allocated + t.pending;
        }
        let totals = &self.totals;
        totals.allocated_peak.store(totals.allocated.load(Ordering::Relaxed), Ordering::Relaxed);
        totals.requested_peak.store(totals.requested.load(Ordering::Relaxed), Ordering::Relaxed);
        self.depot.reset_peak();
    }

    /// Bytes allocated and requested now, over all streams.
    pub fn in_use(&self) -> (u64, u64) {
        self.lanes.all().into_iter().fold((0, 0), |sum, lane| {
            let lane = lock(lane);
            (sum.0 + lane.tally.allocated, sum.1 + lane.tally.requested)
        })
    }

    /// Bytes held from the driver now.
    pub fn reserved(&self) -> u64 {
        self.depot.reserved()
    }
}

fn add_lane(stats: &mut Stats, lane: &Lane, pools: bool) {
    let t = &lane.tally;
    let add = |level: &mut Level, current: u64, peak: u64, ever: u64| {
        level.current += current;
        level.peak += peak;
        level.allocated += ever;
        level.freed += ever - current;
    };
    add(&mut stats.allocated, t.allocated, t.allocated_peak, t.allocated_ever);
    add(&mut stats.requested, t.requested, t.requested_peak, t.requested_ever);
    add(&mut stats.blocks, t.blocks, t.blocks_peak, t.blocks_ever);
    stats.active.current += t.allocated + t.pending;
    stats.active.peak += t.active_peak;
    stats.remapped_bytes += t.remapped;
    stats.zombie_bytes += t.zombie;
    stats.lost_bytes += t.lost;
    stats.free += lane.kept.bytes();
    for (index, space) in lane.spaces.iter().enumerate() {
        if pools {
            add_pool(&mut stats.pools[usize::from(index != SMALL)], space);
        }
        stats.free += space.free_bytes;
        stats.largest_free = stats.largest_free.max(space.free.largest(&space.nodes));
    }
}

fn add_pool(pool: &mut PoolStats, space: &Space) {
    pool.reserved += space.mappings.values().map(|m| m.size).sum::<u64>();
    for node in space.in_order().map(|at| space.node(at)) {
        if matches!(node.state, State::Used | State::Pending) {
            pool.active += node.size;
        }
        if node.state == State::Used {
            pool.blocks += 1;
            pool.allocated += node.size;
            pool.requested += node.requested;
        }
    }
}
