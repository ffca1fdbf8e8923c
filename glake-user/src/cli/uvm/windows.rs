//! When events are on. The driver makes a watched program pay for every event type, above all for its CPU page faults
//! (see `docs/uvm.md`, "What it costs"), so by default events are on for a short window of each second only. Pure.

use std::time::Duration;

/// How much of the time events are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Length of a window.
    pub(super) on: Duration,
    /// One window in each such period.
    pub(super) every: Duration,
}

impl Share {
    /// 30 ms of each second, and a few more until they close. All events all the time cost up to 57 % on an H200
    /// (docs/benchmarks.md): 3.5 % of it is 2 %.
    pub(super) const DEFAULT: Share = Share { on: Duration::from_millis(30), every: Duration::from_secs(1) };
}

/// The windows of one process. Times are since it was attached.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    share: Option<Share>,
    /// Which window is open, or comes next.
    number: u32,
    open: bool,
    opened: Duration,
    before: Duration,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Turn events on.
    On,
    /// Turn them off.
    Off,
}

impl Windows {
    /// The first window is open at once; without a share it never closes.
    pub(super) fn new(share: Option<Share>) -> Windows {
        Windows { share, number: 0, open: true, opened: Duration::ZERO, before: Duration::ZERO }
    }

    /// When something is next to be done. `None`: never.
    pub(super) fn due(&self) -> Option<Duration> {
        let share = self.share?;
        Some(if self.open { self.opened + share.on } else { start(share, self.number) })
    }

    /// What is to be done at `now`.
    pub(super) fn turn(&self, now: Duration) -> Option<Turn> {
        let due = self.due().is_some_and(|due| now >= due);
        due.then_some(if self.open { Turn::Off } else { Turn::On })
    }

    /// It was done at `now`.
    pub(super) fn turned(&mut self, turn: Turn, now: Duration) {
        match turn {
            Turn::On => self.opened = now,
            Turn::Off => {
                self.before += now.saturating_sub(self.opened);
                self.number = self.share.map_or(0, |share| next(share, self.number, now));
            }
        }
        self.open = turn == Turn::On;
    }

    /// For how long events were on until `now`.
    pub(super) fn watched(&self, now: Duration) -> Duration {
        self.before + if self.open { now.saturating_sub(self.opened) } else { Duration::ZERO }
    }

    /// Whether events are off between windows.
    pub(super) fn sampled(&self) -> bool {
        self.share.is_some()
    }
}

/// The window after `number`, which closed at `now`. Those that a late loop slept through are not made up for.
fn next(share: Share, number: u32, now: Duration) -> u32 {
    let period = (now.as_nanos() / share.every.as_nanos().max(1)) as u32;
    let next = (number + 1).max(period);
    if start(share, next) < now { next + 1 } else { next }
}

/// Where in its period window `n` starts: at another place each time (multiples of the golden ratio, which never
/// repeat), so that a program with the same rhythm is not always caught in the same phase.
fn start(share: Share, n: u32) -> Duration {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let room = share.every.saturating_sub(share.on);
    share.every * n + room.mul_f64((f64::from(n) * GOLDEN).fract())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a loop that wakes every `step`, as the real one does, and gives the time that events were on.
    fn run(windows: &mut Windows, until: Duration, step: Duration) -> Duration {
        let mut now = Duration::ZERO;
        while now < until {
            if let Some(turn) = windows.turn(now) {
                windows.turned(turn, now);
            }
            now += step;
        }
        windows.watched(now)
    }

    #[test]
    fn without_a_share_events_are_always_on() {
        let mut w = Windows::new(None);
        let ten = Duration::from_secs(10);
        assert_eq!(run(&mut w, ten, Duration::from_millis(7)), Duration::from_millis(10_003));
        assert_eq!((w.due(), w.sampled()), (None, false));
    }

    #[test]
    fn the_first_window_is_open_at_once_and_is_as_long_as_it_says() {
        let mut w = Windows::new(Some(Share::DEFAULT));
        assert_eq!(w.due(), Some(Duration::from_millis(30)));
        assert_eq!(w.turn(Duration::from_millis(29)), None);
        assert_eq!(w.turn(Duration::from_millis(31)), Some(Turn::Off));
        w.turned(Turn::Off, Duration::from_millis(31));
        assert_eq!(w.watched(Duration::from_millis(900)), Duration::from_millis(31));
        assert!(w.due().is_some_and(|due| due >= Duration::from_secs(1)));
    }

    #[test]
    fn a_window_that_ends_with_its_period_does_not_cost_the_next_one() {
        let share = Share { on: Duration::from_millis(199), every: Duration::from_millis(200) };
        let end = Duration::from_millis(400);
        assert!(start(share, 2) > end);
        assert_eq!(next(share, 1, end), 2);
        assert_eq!(next(share, 1, Duration::from_millis(401)), 3, "its place has passed");
        assert_eq!(next(share, 1, Duration::from_secs(2)), 10, "those slept through are not made up for");
    }

    #[test]
    fn windows_start_at_another_place_of_each_period() {
        let places: Vec<u128> =
            (0..20).map(|n| (start(Share::DEFAULT, n) - Duration::from_secs(n.into())).as_millis()).collect();
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| a.abs_diff(*b) >= 20), "{places:?}");
        }
    }

    proptest! {
        #[test]
        fn a_loop_that_wakes_in_time_watches_the_share(on in 1u64..200, every in 200u64..3000, periods in 5u32..40) {
            let share = Share { on: Duration::from_millis(on), every: Duration::from_millis(every) };
            let mut w = Windows::new(Some(share));
            let watched = run(&mut w, share.every * periods, Duration::from_millis(1));
            // Each window closes at most one step late.
            let most = (share.on + Duration::from_millis(1)) * periods;
            prop_assert!(watched <= most, "{watched:?} of at most {most:?}");
            prop_assert!(watched >= share.on * (periods - 1));
        }

        #[test]
        fn a_loop_that_comes_late_never_watches_two_windows_of_a_period(step in 1u64..5000, periods in 5u32..40) {
            let mut w = Windows::new(Some(Share::DEFAULT));
            let mut now = Duration::ZERO;
            let mut ons = 1;
            while now < Share::DEFAULT.every * periods {
                if let Some(turn) = w.turn(now) {
                    ons += u32::from(turn == Turn::On);
                    w.turned(turn, now);
                }
                now += Duration::from_millis(step);
            }
            prop_assert!(ons <= periods + 1);
        }
    }
}
