//! Which probes cost too much. Pure: counters and time in, names out.

use std::collections::HashMap;

/// Costs less than this in one interval are noise: a probe is judged only after it ran for 5 ms.
const LEAST_NS: u64 = 5_000_000;

/// Remembers what each probe had cost before.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    before: HashMap<&'static str, (u64, u64)>,
}

impl Watchdog {
    /// Share of one core in percent since the last call for this probe. `None`: the first call, or no time has passed.
    pub(crate) fn percent(&mut self, probe: &'static str, now_ns: u64, run_time_ns: u64) -> Option<f64> {
        let (then, ran) = self.before.insert(probe, (now_ns, run_time_ns))?;
        let elapsed = now_ns.checked_sub(then).filter(|e| *e > 0)?;
        let spent = run_time_ns.saturating_sub(ran);
        if spent < LEAST_NS {
            return Some(0.0);
        }
        Some(spent as f64 * 100.0 / elapsed as f64)
    }

    /// Starts over with a probe that was attached anew.
    pub(crate) fn forget(&mut self, probe: &'static str) {
        self.before.remove(probe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_probe_is_judged_by_what_it_cost_since_it_was_last_seen() {
        let mut dog = Watchdog::default();
        assert_eq!(dog.percent("a", SECOND, 900_000_000), None, "what came before is not known");
        assert_eq!(dog.percent("a", 2 * SECOND, 920_000_000), Some(2.0));
        assert_eq!(dog.percent("a", 3 * SECOND, 920_000_000), Some(0.0));
    }

    #[test]
    fn a_few_microseconds_in_a_short_interval_are_no_verdict() {
        let mut dog = Watchdog::default();
        dog.percent("a", 0, 0);
        assert_eq!(dog.percent("a", 1000, 900), Some(0.0));
    }

    #[test]
    fn time_that_stands_still_is_no_verdict() {
        let mut dog = Watchdog::default();
        dog.percent("a", 5, 0);
        assert_eq!(dog.percent("a", 5, 10_000_000), None);
    }
}
