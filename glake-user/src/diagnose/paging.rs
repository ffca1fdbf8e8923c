//! What kind of paging a GPU does: too much managed memory, several programs that take turns, or CPU and GPU that take turns on
//! the same pages. Judged by what moved in the last minutes, never by how much memory was asked for: the same excess costs
//! anything between nothing and a hundredfold (case G11).

use super::finding::{Finding, Severity};
use crate::units;
use std::collections::VecDeque;

const SECOND: u64 = 1_000_000_000;
/// How much of the past is judged.
const WINDOW_NS: u64 = 300 * SECOND;
/// Nothing is judged before so much was seen.
const LEAST_NS: u64 = 30 * SECOND;
/// More intervals than the window has at the shortest interval.
const MOST: usize = 1_500;
/// Traffic below this is not worth a finding, bytes per second.
const WORTH: f64 = 50e6;
/// So many bursts are a rhythm.
const BURSTS: usize = 3;
/// Bursts that fill more of the time than this are no turns.
const MOST_BUSY: f64 = 0.5;

/// What a GPU paged in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Interval {
    /// Its end.
    pub at_ns: u64,
    /// Its length.
    pub length_ns: u64,
    /// GPU page faults.
    pub faults: f64,
    /// Bytes to the GPU.
    pub to_gpu: f64,
    /// Bytes to the CPU.
    pub to_cpu: f64,
    /// Of these, bytes pushed out because GPU memory was short.
    pub evicted: f64,
    /// Time in the fault service, where it is watched.
    pub service_ns: Option<f64>,
    /// Runs of the fault service, where they are watched.
    pub services: Option<f64>,
}

/// The last minutes of one GPU.
#[derive(Debug, Default)]
pub struct Window {
    intervals: VecDeque<Interval>,
}

/// A GPU's traffic that comes in bursts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turns {
    /// Bursts seen.
    pub bursts: usize,
    /// From the beginning of one to that of the next.
    pub period_s: f64,
    /// How long one lasts.
    pub burst_s: f64,
    /// Bytes that one moves, both ways.
    pub bytes: f64,
}

impl Turns {
    /// The share of the time that changing over takes (case G05: 2 s of every 32 are 6.3 %).
    pub fn share(&self) -> f64 {
        self.burst_s / self.period_s
    }
}

impl Window {
    /// Takes the next interval.
    pub fn push(&mut self, interval: Interval) {
        let since = interval.at_ns.saturating_sub(WINDOW_NS);
        while self.intervals.pop_front_if(|i| i.at_ns < since).is_some() {}
        if self.intervals.len() == MOST {
            self.intervals.pop_front();
        }
        self.intervals.push_back(interval);
    }

    fn sum(&self, of: impl Fn(&Interval) -> f64) -> f64 {
        self.intervals.iter().map(of).sum()
    }

    fn seconds(&self) -> f64 {
        self.sum(|i| i.length_ns as f64) / 1e9
    }

    /// The rhythm, if there is one: pushed out and brought in within short bursts, quiet between.
    pub fn turns(&self) -> Option<Turns> {
        let mut bursts: Vec<(u64, f64, f64)> = Vec::new();
        let mut inside = false;
        for interval in &self.intervals {
            let moved = interval.to_gpu + interval.to_cpu;
            let busy = moved * 1e9 / interval.length_ns.max(1) as f64 >= WORTH;
            let begin = interval.at_ns.saturating_sub(interval.length_ns);
            match bursts.last_mut() {
                Some(last) if busy && inside => {
                    last.1 += interval.length_ns as f64 / 1e9;
                    last.2 += moved;
                }
                _ if busy => bursts.push((begin, interval.length_ns as f64 / 1e9, moved)),
                _ => {}
            }
            inside = busy;
        }
        // The first may have begun before, the last may not be over.
        let whole = bursts.get(1..bursts.len().saturating_sub(1))?;
        if whole.len() < BURSTS || self.sum(|i| i.evicted) <= 0.0 {
            return None;
        }
        let (first, last) = (whole.first()?, whole.last()?);
        let mean = |of: fn(&(u64, f64, f64)) -> f64| whole.iter().map(of).sum::<f64>() / whole.len() as f64;
        let turns = Turns {
            bursts: bursts.len(),
            period_s: (last.0 - first.0) as f64 / 1e9 / (whole.len() - 1) as f64,
            burst_s: mean(|b| b.1),
            bytes: mean(|b| b.2),
        };
        (turns.share() <= MOST_BUSY).then_some(turns)
    }

    /// What it amounts to; `None`: nothing worth a word, or not seen for long enough.
    pub fn judge(&self) -> Option<Finding> {
        let seconds = self.seconds();
        let moved = self.sum(|i| i.to_gpu + i.to_cpu) / seconds.max(1e-9);
        if seconds * 1e9 < LEAST_NS as f64 {
            return None;
        }
        if let Some(turns) = self.turns() {
            return Some(taking_turns(&turns));
        }
        if moved < WORTH {
            return None;
        }
        let (to_gpu, to_cpu) = (self.sum(|i| i.to_gpu), self.sum(|i| i.to_cpu));
        if self.sum(|i| i.evicted) > 0.0 {
            return Some(self.oversubscribed(seconds));
        }
        // As much goes back as comes: GPU memory is not short, both sides want the same pages.
        (to_cpu * 4.0 > to_gpu && to_gpu * 4.0 > to_cpu).then(|| self.ping_pong(seconds))
    }

    /// Cases G03 and G11.
    fn oversubscribed(&self, seconds: f64) -> Finding {
        let mut evidence = self.rates(seconds);
        evidence.push(format!(
            "pushed out of GPU memory {}",
            units::bytes_per_second(self.sum(|i| i.evicted) / seconds)
        ));
        Finding {
            rule: "uvm_oversubscribed",
            severity: Severity::Ticket,
            uuid: None,
            pci: None,
            what: "more managed memory is in use on this GPU than fits: it is pushed out and fetched back. No allocation fails, \
                   so there will be no out-of-memory error"
                .into(),
            evidence,
            do_now: "how much slower that is depends on how the program touches it, and is not told by how much it asked for. \
                     What is read in order: cudaMemPrefetchAsync ahead of it. What is touched at random: \
                     cudaMemAdviseSetPreferredLocation on the host, and let the GPU read it there. Or use less at a time"
                .into(),
        }
    }

    /// Case G07.
    fn ping_pong(&self, seconds: f64) -> Finding {
        Finding {
            rule: "uvm_ping_pong",
            severity: Severity::Info,
            uuid: None,
            pci: None,
            what: "CPU and GPU take turns on the same managed memory; GPU memory is not short".into(),
            evidence: self.rates(seconds),
            do_now: "copy explicitly, or let one side do the work: small work on data that the CPU reads next is often \
                     cheaper on the CPU"
                .into(),
        }
    }

    fn rates(&self, seconds: f64) -> Vec<String> {
        let rate = |of: fn(&Interval) -> f64| self.sum(of) / seconds;
        let mut out = vec![
            format!("GPU page faults {:.0}/s", rate(|i| i.faults)),
            format!(
                "to the GPU {}, back {}",
                units::bytes_per_second(rate(|i| i.to_gpu)),
                units::bytes_per_second(rate(|i| i.to_cpu))
            ),
        ];
        let service: Option<f64> = self.intervals.iter().map(|i| i.service_ns).sum();
        let services: Option<f64> = self.intervals.iter().map(|i| i.services).sum();
        match service.zip(services.filter(|n| *n > 0.0)) {
            Some((ns, n)) => out.push(format!(
                "{:.1} % of the time in the driver's fault service, {:.0} us a run",
                ns / 1e9 / seconds * 100.0,
                ns / n / 1e3
            )),
            None => out.push("time in the driver's fault service: not known".into()),
        }
        out
    }
}

/// Case G05.
fn taking_turns(turns: &Turns) -> Finding {
    Finding {
        rule: "uvm_taking_turns",
        severity: Severity::Info,
        uuid: None,
        pci: None,
        what: format!(
            "programs take turns on this GPU: every {:.0} s one's memory goes out and another's comes in. Planned, no thrashing",
            turns.period_s
        ),
        evidence: vec![format!(
            "{} bursts, each {:.1} s and {}: {:.1} % of the time goes into changing over",
            turns.bursts,
            turns.burst_s,
            units::bytes(turns.bytes as u64),
            turns.share() * 100.0
        )],
        do_now:
            "nothing is wrong. Longer turns cost less; or give each program less memory than half the GPU"
                .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two minutes or more of intervals of a second, each with what it moved.
    fn window(seconds: u64, of: impl Fn(u64) -> Interval) -> Window {
        let mut window = Window::default();
        for s in 1..=seconds {
            window.push(Interval { at_ns: s * SECOND, length_ns: SECOND, ..of(s) });
        }
        window
    }

    /// Case G05: 32 GB each way over a link of 32 GB/s, every 30 s.
    #[test]
    fn two_programs_that_take_turns_are_planned_traffic_and_cost_two_seconds_of_thirty_two() {
        let gb = 1e9;
        let window = window(290, |s| match s % 32 {
            0 => Interval { to_cpu: 32.0 * gb, evicted: 32.0 * gb, ..Interval::default() },
            1 => Interval { to_gpu: 32.0 * gb, faults: 9e4, ..Interval::default() },
            _ => Interval::default(),
        });
        let turns = window.turns().expect("a rhythm");
        assert!((turns.burst_s - 2.0).abs() < 1e-9 && (turns.period_s - 32.0).abs() < 1e-9, "{turns:?}");
        assert!((turns.share() - 2.0 / 32.0).abs() < 1e-9, "{turns:?}");
        assert!((turns.bytes - 64.0 * gb).abs() < 1.0, "{turns:?}");
        let found = window.judge().expect("a finding");
        assert_eq!((found.rule, found.severity), ("uvm_taking_turns", Severity::Info));
        assert!(found.what.contains("no thrashing") && found.what.contains("every 32 s"), "{}", found.what);
        assert!(
            found.evidence[0].contains("6.2 %") || found.evidence[0].contains("6.3 %"),
            "{:?}",
            found.evidence
        );
    }

    #[test]
    fn the_same_bytes_spread_over_all_the_time_are_no_turns() {
        let even =
            window(290, |_| Interval { to_cpu: 1e9, to_gpu: 1e9, evicted: 1e9, ..Interval::default() });
        assert_eq!(even.turns(), None);
        assert_eq!(even.judge().map(|f| f.rule), Some("uvm_oversubscribed"));
    }

    /// Case G03: managed allocations never fail.
    #[test]
    fn too_much_managed_memory_is_told_by_what_is_pushed_out_and_not_by_a_failed_allocation() {
        let window = window(60, |_| Interval {
            faults: 12_000.0,
            to_gpu: 2e9,
            to_cpu: 2e9,
            evicted: 2e9,
            service_ns: Some(4.1e8),
            services: Some(50.0),
            ..Interval::default()
        });
        let found = window.judge().expect("a finding");
        assert_eq!(found.rule, "uvm_oversubscribed");
        assert!(found.what.contains("no out-of-memory error"), "{}", found.what);
        let evidence = found.evidence.join("; ");
        assert!(
            evidence.contains("12000/s") && evidence.contains("2.00 GB/s") && evidence.contains("41.0 %"),
            "{evidence}"
        );
    }

    /// Case G11: streaming and random access at the same excess.
    #[test]
    fn how_slow_it_gets_is_measured_and_never_predicted_from_the_excess() {
        let at = |faults: f64, bytes: f64| {
            let interval =
                Interval { faults, to_gpu: bytes, to_cpu: bytes, evicted: bytes, ..Interval::default() };
            window(60, |_| interval).judge().expect("a finding")
        };
        let (streaming, random) = (at(500.0, 8e9), at(90_000.0, 4e8));
        assert_ne!(streaming.evidence, random.evidence, "what was measured is told");
        for found in [streaming, random] {
            assert!(
                found.do_now.contains("cudaMemPrefetchAsync") && found.do_now.contains("PreferredLocation")
            );
            assert!(found.do_now.contains("not told by how much it asked for"), "{}", found.do_now);
            let text = format!("{} {} {:?}", found.what, found.do_now, found.evidence);
            assert!(!text.contains("x slower") && !text.contains("times slower"), "{text}");
        }
    }

    /// Case G07: thirty faults of 60 us at each switch, memory far below capacity.
    #[test]
    fn small_buffers_that_go_to_and_fro_are_ping_pong_and_not_too_much_memory() {
        let window = window(60, |_| Interval {
            faults: 3_000.0,
            to_gpu: 1e8,
            to_cpu: 1e8,
            service_ns: Some(3_000.0 * 60e3),
            services: Some(3_000.0),
            ..Interval::default()
        });
        let found = window.judge().expect("a finding");
        assert_eq!(found.rule, "uvm_ping_pong");
        assert!(
            found.evidence.iter().any(|e| e.contains("18.0 % of the time") && e.contains("60 us a run")),
            "{found:?}"
        );
        assert!(found.do_now.contains("copy explicitly"));
    }

    #[test]
    fn little_traffic_a_short_look_and_a_first_touch_are_no_finding() {
        let quiet =
            window(120, |_| Interval { to_gpu: 1e6, to_cpu: 1e6, evicted: 1e6, ..Interval::default() });
        assert_eq!(quiet.judge(), None);
        let short =
            window(20, |_| Interval { to_gpu: 1e9, to_cpu: 1e9, evicted: 1e9, ..Interval::default() });
        assert_eq!(short.judge(), None);
        let filling = window(60, |_| Interval { to_gpu: 5e9, ..Interval::default() });
        assert_eq!(filling.judge(), None, "data that comes and stays is what managed memory is for");
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let mut window =
            window(60, |_| Interval { to_gpu: 1e9, to_cpu: 1e9, evicted: 1e9, ..Interval::default() });
        for s in 61..=400 {
            window.push(Interval { at_ns: s * SECOND, length_ns: SECOND, ..Interval::default() });
        }
        assert_eq!(window.judge(), None);
    }
}
