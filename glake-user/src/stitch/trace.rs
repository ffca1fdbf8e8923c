//! A recorded run of an allocator as plain events, and the driver that plays it into anything that allocates:
//! the heap itself on any device, or a model of another allocator.

use std::collections::HashMap;

use crate::error::{Error, Kind, Result};

/// Which pool an allocation came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pool {
    /// The allocator's own pool.
    #[default]
    Default,
    /// A private pool: a CUDA graph's, or a MemPool of the user. Not remappable.
    Private,
}

/// One allocation as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alloc {
    /// Names the block in later events. Unique over the whole trace (an address is not: it is used again).
    pub id: u64,
    /// Bytes requested, before any rounding.
    pub size: u64,
    /// The stream it belongs to; 0 is the default stream.
    pub stream: u64,
    /// The pool it came from.
    pub pool: Pool,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A block was allocated.
    Alloc(Alloc),
    /// A block was freed on its own stream: later work of that stream may have the memory at once.
    Free {
        /// The block.
        id: u64,
    },
    /// The program let go of a block that other streams may still use; [`What::FreeCompleted`] follows.
    FreeRequested {
        /// The block.
        id: u64,
    },
    /// All streams are done with a block whose free was requested before.
    FreeCompleted {
        /// The block.
        id: u64,
    },
    /// A training step or request began.
    Step,
}

/// One event of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Host time in nanoseconds, from any start; never falls within a trace.
    pub at_ns: u64,
    /// What happened.
    pub what: What,
}

/// What a target holds at one moment, and what it has cost so far. Counters never fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes in allocated blocks as the allocator rounds them.
    pub allocated: u64,
    /// Bytes of those blocks as they were requested.
    pub requested: u64,
    /// Bytes of GPU memory held from the driver: used, idle, made ahead and waiting to be unmapped.
    pub reserved: u64,
    /// Driver calls made.
    pub driver_calls: u64,
    /// Driver time spent while an allocation or free waited for it, in nanoseconds.
    pub foreground_ns: u64,
    /// Driver time spent beside the program, in nanoseconds.
    pub background_ns: u64,
}

/// Anything a trace can be played into.
pub trait Target {
    /// The name in tables and in JSON: `default`, `expandable_segments`, `glake`.
    fn name(&self) -> &str;

    /// Host time has come to `at_ns`; background work may run.
    fn advance(&mut self, at_ns: u64) -> Result<()> {
        let _ = at_ns;
        Ok(())
    }

    /// Allocates. [`Kind::Exhausted`] means that the memory does not suffice: the play ends there.
    fn allocate(&mut self, alloc: &Alloc) -> Result<()>;

    /// The program let go, other streams may still use the block.
    fn free_requested(&mut self, id: u64) -> Result<()> {
        let _ = id;
        Ok(())
    }

    /// The block is free for its own stream.
    fn free(&mut self, id: u64) -> Result<()>;

    /// What is held and what it has cost so far.
    fn usage(&self) -> Usage;
}

/// The result of playing a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Largest bytes allocated (rounded).
    pub peak_allocated: u64,
    /// Largest bytes requested.
    pub peak_requested: u64,
    /// Largest bytes held from the driver.
    pub peak_reserved: u64,
    /// Everything counted, as it stood at the end.
    pub end: Usage,
    /// Driver time, foreground, in the warm-up (the first [`WARM_UP`] of the trace's time).
    pub warm_up_foreground_ns: u64,
    /// Driver time after the warm-up, foreground and background.
    pub late_driver_ns: u64,
    /// The trace's own time after the warm-up.
    pub late_span_ns: u64,
    /// The largest foreground driver time of a single event.
    pub largest_stall_ns: u64,
    /// The largest foreground driver time of a single event after the warm-up.
    pub largest_late_stall_ns: u64,
    /// Driver calls made in each step; one entry where no step was marked.
    pub calls_by_step: Vec<u64>,
    /// Frees of blocks that the trace never allocated (torch's ring buffer forgets old events). They are skipped.
    pub unknown_frees: u64,
    /// The allocation that did not fit, where one did not: the play ended there.
    pub failed: Option<(u64, Alloc)>,
}

impl Outcome {
    /// Peak requested over peak reserved; `None` where nothing was held.
    pub fn allocated_to_reserved_ratio(&self) -> Option<f64> {
        (self.peak_reserved > 0).then(|| self.peak_requested as f64 / self.peak_reserved as f64)
    }

    /// Late driver time as a share of late time; `None` for a trace without times.
    pub fn late_driver_share(&self) -> Option<f64> {
        (self.late_span_ns > 0).then(|| self.late_driver_ns as f64 / self.late_span_ns as f64)
    }
}

/// The share of a trace's time that counts as warm-up.
pub const WARM_UP: f64 = 0.3;

/// Plays `events` into `target`. `observe` sees every event with the usage after it.
///
/// Ends early, without an error, at an allocation that the target has no memory for: [`Outcome::failed`].
pub fn play(
    events: &[TraceEvent],
    target: &mut dyn Target,
    observe: &mut dyn FnMut(&TraceEvent, &Usage),
) -> Result<Outcome> {
    let (first, last) = match (events.first(), events.last()) {
        (Some(a), Some(b)) => (a.at_ns, b.at_ns),
        _ => return Ok(Outcome::default()),
    };
    let warm = first + ((last - first) as f64 * WARM_UP) as u64;
    let mut out = Outcome { late_span_ns: last - warm, ..Outcome::default() };
    let mut live = HashMap::new();
    let mut before = target.usage();
    let mut step_calls = before.driver_calls;
    for event in events {
        target.advance(event.at_ns)?;
        let done = apply(event, target, &mut live, &mut out)?;
        let now = target.usage();
        note(&mut out, &before, &now, event.at_ns > warm);
        if event.what == What::Step {
            out.calls_by_step.push(now.driver_calls - step_calls);
            step_calls = now.driver_calls;
        }
        observe(event, &now);
        before = now;
        if !done {
            break;
        }
    }
    out.calls_by_step.push(before.driver_calls - step_calls);
    out.end = before;
    Ok(out)
}

/// One event; false where the memory did not suffice.
fn apply(
    event: &TraceEvent,
    target: &mut dyn Target,
    live: &mut HashMap<u64, bool>,
    out: &mut Outcome,
) -> Result<bool> {
    match event.what {
        What::Alloc(alloc) => {
            if live.insert(alloc.id, false).is_some() {
                let doing = format!("playing a trace: block {} is allocated twice", alloc.id);
                return Err(Error::new(Kind::BadInput, doing));
            }
            match target.allocate(&alloc) {
                Ok(()) => {}
                Err(e) if e.kind() == Kind::Exhausted => {
                    out.failed = Some((event.at_ns, alloc));
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        What::FreeRequested { id } => match live.get_mut(&id) {
            Some(requested) => {
                *requested = true;
                target.free_requested(id)?;
            }
            None => out.unknown_frees += 1,
        },
        What::Free { id } | What::FreeCompleted { id } => match live.remove(&id) {
            Some(_) => target.free(id)?,
            None => out.unknown_frees += 1,
        },
        What::Step => {}
    }
    Ok(true)
}

fn note(out: &mut Outcome, before: &Usage, now: &Usage, late: bool) {
    out.peak_allocated = out.peak_allocated.max(now.allocated);
    out.peak_requested = out.peak_requested.max(now.requested);
    out.peak_reserved = out.peak_reserved.max(now.reserved);
    let foreground = now.foreground_ns - before.foreground_ns;
    let background = now.background_ns - before.background_ns;
    out.largest_stall_ns = out.largest_stall_ns.max(foreground);
    if late {
        out.late_driver_ns += foreground + background;
        out.largest_late_stall_ns = out.largest_late_stall_ns.max(foreground);
    } else {
        out.warm_up_foreground_ns += foreground;
    }
}

/// The same run with every size multiplied by `factor` (at least one byte stays).
pub fn scaled(events: &[TraceEvent], factor: f64) -> Vec<TraceEvent> {
    let scale = |size: u64| ((size as f64 * factor).round() as u64).max(1);
    let one = |event: &TraceEvent| match event.what {
        What::Alloc(a) => {
            TraceEvent { at_ns: event.at_ns, what: What::Alloc(Alloc { size: scale(a.size), ..a }) }
        }
        _ => *event,
    };
    events.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds exactly what is asked for, out of `capacity`.
    struct Exact {
        sizes: HashMap<u64, u64>,
        held: u64,
        capacity: u64,
    }

    impl Target for Exact {
        fn name(&self) -> &str {
            "exact"
        }
        fn allocate(&mut self, alloc: &Alloc) -> Result<()> {
            if self.held + alloc.size > self.capacity {
                return Err(Error::new(Kind::Exhausted, "allocating"));
            }
            self.held += alloc.size;
            self.sizes.insert(alloc.id, alloc.size);
            Ok(())
        }
        fn free(&mut self, id: u64) -> Result<()> {
            self.held -= self.sizes.remove(&id).unwrap();
            Ok(())
        }
        fn usage(&self) -> Usage {
            Usage { allocated: self.held, requested: self.held, reserved: self.held, ..Usage::default() }
        }
    }

    fn alloc(at_ns: u64, id: u64, size: u64) -> TraceEvent {
        TraceEvent { at_ns, what: What::Alloc(Alloc { id, size, stream: 0, pool: Pool::Default }) }
    }

    fn exact(capacity: u64) -> Exact {
        Exact { sizes: HashMap::new(), held: 0, capacity }
    }

    #[test]
    fn the_peak_is_the_largest_sum_of_what_was_allocated_together() {
        let free = |at_ns, id| TraceEvent { at_ns, what: What::Free { id } };
        let events = [alloc(0, 1, 10), alloc(1, 2, 20), free(2, 1), alloc(3, 3, 5), free(4, 9)];
        let out = play(&events, &mut exact(1000), &mut |_, _| {}).unwrap();
        assert_eq!((out.peak_allocated, out.peak_reserved, out.unknown_frees), (30, 30, 1));
        assert_eq!(out.allocated_to_reserved_ratio(), Some(1.0));
    }

    #[test]
    fn a_run_that_does_not_fit_ends_at_the_block_that_failed() {
        let events = [alloc(0, 1, 10), alloc(7, 2, 20), alloc(8, 3, 1)];
        let out = play(&events, &mut exact(25), &mut |_, _| {}).unwrap();
        assert_eq!(out.failed.map(|(at, a)| (at, a.id)), Some((7, 2)));
        assert_eq!(out.peak_reserved, 10);
    }

    #[test]
    fn a_block_allocated_twice_is_a_broken_trace() {
        let events = [alloc(0, 1, 10), alloc(1, 1, 10)];
        let e = play(&events, &mut exact(100), &mut |_, _| {}).unwrap_err();
        assert_eq!(e.kind(), Kind::BadInput);
    }
}
