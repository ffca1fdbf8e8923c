//! One trace, several allocators: peaks, curves, the smallest GPU each would have run on, and the honest answer.

use crate::error::Result;
use crate::stitch::trace::{Outcome, TraceEvent, Usage};

/// Points of a curve.
pub const POINTS: usize = 800;
/// Sizes GPUs are sold with, in GiB.
pub const GPU_SIZES: [u64; 11] = [8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192];
/// What a GPU has less than its name: the context, the driver, ECC.
pub const OVERHEAD: u64 = 1 << 30;
/// A difference below this share of the larger number, or below [`LEAST_GAIN`], is no gain.
const GAIN_SHARE: f64 = 0.03;
/// Two large segments; below that a snapshot says nothing about a whole run.
const LEAST_GAIN: u64 = 64 << 20;
/// Events played in search of the smallest GPU, over all attempts: more would make people wait.
const SEARCH_EVENTS: u64 = 12_000_000;

/// Sees every event with the usage after it.
pub type Observe<'a> = &'a mut dyn FnMut(&TraceEvent, &Usage);

/// Plays the trace on a device of so many bytes.
pub type Play<'a> = Box<dyn Fn(u64, Observe<'_>) -> Result<Outcome> + 'a>;

/// An allocator to play into.
pub struct Contestant<'a> {
    /// Its name in tables and JSON.
    pub name: &'static str,
    /// How to play.
    pub play: Play<'a>,
}

/// One moment of a curve: the largest values of its stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// Asked for by live tensors.
    pub requested: u64,
    /// Held from the driver.
    pub reserved: u64,
}

/// How the events lie in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Events at the start that only rebuild what was there before: they cost nothing.
    pub prelude: usize,
    /// Nanoseconds from the first to the last event.
    pub span_ns: u64,
    /// Whether events carry times.
    pub timed: bool,
}

/// What came of one allocator.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// Its name.
    pub name: &'static str,
    /// The counts.
    pub outcome: Outcome,
    /// [`POINTS`] points over the trace.
    pub curve: Vec<Point>,
    /// The event at which the most was reserved; of several, the one at which the most was asked for.
    pub peak_event: usize,
    /// What the prelude cost; the outcome's counts hold it too.
    pub prelude_cost: Usage,
    /// The smallest memory in which the run completes, to a hundredth; `None` where the search would take too long.
    pub needs: Option<u64>,
}

impl Played {
    /// Whether a GPU sold with so many GiB suffices; `None` where that was not tried.
    pub fn fits(&self, gib: u64) -> Option<bool> {
        let usable = (gib << 30).saturating_sub(OVERHEAD);
        match self.needs {
            Some(needs) => Some(needs <= usable),
            None if self.outcome.peak_reserved <= usable => Some(true),
            None if self.outcome.peak_requested > usable => Some(false),
            None => None,
        }
    }

    /// Driver time that an allocation or free waited for, in nanoseconds.
    pub fn foreground_ns(&self) -> u64 {
        self.outcome.end.foreground_ns.saturating_sub(self.prelude_cost.foreground_ns)
    }

    /// Driver time, waited for and beside.
    pub fn driver_ns(&self) -> u64 {
        let beside = self.outcome.end.background_ns.saturating_sub(self.prelude_cost.background_ns);
        self.foreground_ns() + beside
    }

    /// Driver calls.
    pub fn driver_calls(&self) -> u64 {
        self.outcome.end.driver_calls.saturating_sub(self.prelude_cost.driver_calls)
    }
}

/// Plays one contestant: without a limit for the peaks, then for the smallest GPU.
pub fn play(contestant: &Contestant<'_>, events: &[TraceEvent], stretch: Stretch) -> Result<Played> {
    let mut curve = vec![Point::default(); POINTS];
    let mut index = 0usize;
    let mut peak = ((0u64, 0u64), 0usize);
    let mut prelude_cost = Usage::default();
    let total = events.len().max(1);
    let outcome = (contestant.play)(u64::MAX, &mut |event, usage| {
        let at = if stretch.timed && stretch.span_ns > 0 {
            (u128::from(event.at_ns) * (POINTS as u128 - 1) / u128::from(stretch.span_ns)) as usize
        } else {
            index * (POINTS - 1) / total
        };
        let point = &mut curve[at.min(POINTS - 1)];
        point.requested = point.requested.max(usage.requested);
        point.reserved = point.reserved.max(usage.reserved);
        if (usage.reserved, usage.requested) > peak.0 {
            peak = ((usage.reserved, usage.requested), index);
        }
        index += 1;
        if index == stretch.prelude {
            prelude_cost = *usage;
        }
    })?;
    fill(&mut curve);
    let needs = smallest(contestant, &outcome, events.len() as u64)?;
    Ok(Played { name: contestant.name, outcome, curve, peak_event: peak.1, prelude_cost, needs })
}

/// Stretches without an event hold what the one before held.
fn fill(curve: &mut [Point]) {
    let mut last = Point::default();
    for point in curve {
        if *point == Point::default() {
            *point = last;
        }
        last = *point;
    }
}

/// Halves the range between what was asked for and what was reserved.
fn smallest(contestant: &Contestant<'_>, whole: &Outcome, events: u64) -> Result<Option<u64>> {
    if whole.failed.is_some() {
        return Ok(None);
    }
    let (mut fails, mut works) = (whole.peak_requested.saturating_sub(1), whole.peak_reserved);
    let mut left = SEARCH_EVENTS / events.max(1);
    while works - fails.min(works) > works / 100 {
        if left == 0 {
            return Ok(None);
        }
        left -= 1;
        let middle = fails + (works - fails) / 2;
        let out = (contestant.play)(middle, &mut |_, _| {})?;
        if out.failed.is_some() { fails = middle } else { works = middle }
    }
    Ok(Some(works))
}

/// The answer to "would it help?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// GLake holds clearly less than both of torch's.
    Helps,
    /// Expandable segments get within reach of the best.
    ExpandableIsEnough,
    /// Nothing to gain: what is held is what is used.
    NoGain,
    /// There is no trace to play.
    NoTrace,
}

impl Verdict {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Helps => "helps",
            Verdict::ExpandableIsEnough => "expandable-segments-is-enough",
            Verdict::NoGain => "no-gain",
            Verdict::NoTrace => "no-trace",
        }
    }
}

/// A difference that matters.
pub fn clearly_less(less: u64, more: u64) -> bool {
    let gain = more.saturating_sub(less);
    gain >= LEAST_GAIN && gain as f64 >= GAIN_SHARE * more as f64
}

/// Judges reserved peaks: the default's, expandable segments' and, where it was played, GLake's.
pub fn judge(default: u64, expandable: u64, glake: Option<u64>) -> Verdict {
    let best = glake.map_or(expandable, |g| g.min(expandable));
    if !clearly_less(best, default) {
        return Verdict::NoGain;
    }
    match glake {
        Some(glake) if clearly_less(glake, expandable) => Verdict::Helps,
        _ => Verdict::ExpandableIsEnough,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_answer_is_no_where_there_is_nothing_to_gain() {
        assert_eq!(judge(10 * GIB, 10 * GIB, Some(10 * GIB - (10 << 20))), Verdict::NoGain);
        // Half of 20 MiB is nothing to a GPU.
        assert_eq!(judge(20 << 20, 10 << 20, Some(8 << 20)), Verdict::NoGain);
    }

    #[test]
    fn expandable_segments_are_named_where_they_suffice() {
        assert_eq!(judge(64 * GIB, 25 * GIB, Some(25 * GIB - (100 << 20))), Verdict::ExpandableIsEnough);
        assert_eq!(judge(64 * GIB, 25 * GIB, None), Verdict::ExpandableIsEnough);
        assert_eq!(judge(64 * GIB, 25 * GIB, Some(22 * GIB)), Verdict::Helps);
    }
}
