//! What the host did in the seconds before: rates of each reading, and what is usual here, so that a record can say what was
//! not.

use super::record::{Fact, Record};
use crate::clock::Stamp;
use crate::units;
use std::collections::{BTreeMap, VecDeque};

/// The source of facts made here. One per key and record, replaced when more is known.
pub const BY_READING: &str = "probes, mean of a reading";

const SECOND: u64 = 1_000_000_000;
/// How far back readings are told one by one; older ones only say what is usual.
const RECENT_NS: u64 = 12 * SECOND;
/// What of the past goes into a record.
const BEFORE_NS: u64 = 10 * SECOND;
/// The usual value forgets with this time constant.
const USUAL_S: f64 = 600.0;
/// Nothing is called usual before this much was seen.
const LEARNT_S: f64 = 60.0;
/// Devices and workloads that are remembered: what pages on one host, with room.
const KEYS: usize = 1024;

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second.
    BytesPerSecond,
    /// A number per second.
    PerSecond,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Unit::BytesPerSecond => units::bytes_per_second(value),
            Unit::PerSecond => format!("{value:.0}/s"),
            // Latencies are far below 2^53 ns.
            Unit::Nanoseconds => units::duration_ns(value as u64),
        }
    }

    /// A value worth a line at all: paging is normal, and so are latencies below a millisecond.
    fn is_worth_a_line(self, value: f64) -> bool {
        match self {
            Unit::BytesPerSecond => value >= 1e6,
            Unit::PerSecond => value >= 1.0,
            Unit::Nanoseconds => value >= 1e6,
        }
    }
}

/// What one device or one workload did in a reading's interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// `uvm` or `nvme`.
    pub family: &'static str,
    /// A GPU's UUID, or an NVMe controller.
    pub device: Option<String>,
    /// The workload, where the value is a workload's.
    pub workload: Option<String>,
    /// In words: `page migration to the GPU`.
    pub what: &'static str,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

type Key = (&'static str, Option<String>, Option<String>, &'static str);

impl Rate {
    fn key(&self) -> Key {
        (self.family, self.device.clone(), self.workload.clone(), self.what)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Usual {
    mean: f64,
    seen_s: f64,
}

#[derive(Debug)]
struct Reading {
    at: Stamp,
    interval_ns: u64,
    rates: Vec<Rate>,
}

/// The recent readings and what is usual.
#[derive(Debug, Default)]
pub struct Activity {
    recent: VecDeque<Reading>,
    usual: BTreeMap<Key, Usual>,
}

impl Activity {
    /// Takes a reading that ended at `at` after `interval_ns`.
    pub fn push(&mut self, at: Stamp, interval_ns: u64, rates: Vec<Rate>) {
        let since = at.monotonic_ns.saturating_sub(RECENT_NS);
        while let Some(old) = self.recent.pop_front_if(|r| r.at.monotonic_ns < since) {
            self.learn(&old);
        }
        self.recent.push_back(Reading { at, interval_ns, rates });
    }

    fn learn(&mut self, old: &Reading) {
        let seconds = old.interval_ns as f64 / 1e9;
        for rate in &old.rates {
            let key = rate.key();
            if !self.usual.contains_key(&key) && self.usual.len() >= KEYS {
                continue;
            }
            let usual = self.usual.entry(key).or_default();
            // A plain mean at first, later one that forgets.
            usual.seen_s += seconds;
            let weight = (seconds / usual.seen_s.min(USUAL_S)).min(1.0);
            usual.mean += (rate.value - usual.mean) * weight;
        }
    }

    /// Whether the seconds before the record are still known.
    pub fn covers(&self, record: &Record) -> bool {
        let at = record.at.monotonic_ns;
        self.recent.front().is_some_and(|r| r.at.monotonic_ns <= at.saturating_sub(BEFORE_NS) + 2 * SECOND)
            || (self.usual.is_empty() && !self.recent.is_empty())
    }

    /// What concerned the record's GPU and workload, and NVMe latencies that are not usual: of each its greatest reading,
    /// oldest first.
    pub fn before(&self, record: &Record) -> Vec<Fact> {
        let mut greatest: BTreeMap<Key, (&Reading, &Rate)> = BTreeMap::new();
        for reading in self.recent.iter().filter(|r| is_before(r, record)) {
            for rate in reading.rates.iter().filter(|r| concerns(r, record)) {
                let best = greatest.entry(rate.key()).or_insert((reading, rate));
                if rate.value > best.1.value {
                    *best = (reading, rate);
                }
            }
        }
        let mut facts: Vec<Fact> = greatest
            .into_iter()
            .filter_map(|(key, (reading, rate))| self.fact(&key, reading, rate))
            .collect();
        facts.sort_by_key(|f| f.at.monotonic_ns);
        facts
    }

    fn fact(&self, key: &Key, reading: &Reading, rate: &Rate) -> Option<Fact> {
        let usual = self.usual.get(key).filter(|u| u.seen_s >= LEARNT_S);
        // The slowness of a drive says something only against what it does otherwise.
        let odd = rate.family != "nvme" || usual.is_some_and(|u| rate.value >= 4.0 * u.mean);
        if !odd || !rate.unit.is_worth_a_line(rate.value) {
            return None;
        }
        let usually = match usual {
            Some(u) if u.mean <= 0.0 => "usually 0".to_owned(),
            Some(u) => format!("usually {}", rate.unit.text(u.mean)),
            None => "what is usual is not known yet".to_owned(),
        };
        let of = rate.workload.as_ref().map_or(String::new(), |w| format!(" of {w}"));
        Some(Fact {
            at: reading.at,
            // Anywhere in the interval.
            clock_error_ns: reading.interval_ns,
            family: rate.family.to_owned(),
            device: rate.device.clone(),
            text: format!("{}{of} {} ({usually})", rate.what, rate.unit.text(rate.value)),
            source: BY_READING.to_owned(),
            count: 1,
        })
    }
}

/// The reading in whose interval the report came counts too.
fn is_before(reading: &Reading, record: &Record) -> bool {
    let (end, at) = (reading.at.monotonic_ns, record.at.monotonic_ns);
    let begin = end.saturating_sub(reading.interval_ns);
    begin <= at && end >= at.saturating_sub(BEFORE_NS)
}

fn concerns(rate: &Rate, record: &Record) -> bool {
    if let Some(workload) = &rate.workload {
        let who = record.who.as_ref();
        return who
            .is_some_and(|w| w.workload.as_ref() == Some(workload) || w.name.as_ref() == Some(workload));
    }
    rate.family != "uvm" || rate.device.is_none() || rate.device == record.uuid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::xid::record::Who;

    fn at(s: u64) -> Stamp {
        Stamp { monotonic_ns: s * SECOND, realtime_ns: s * SECOND }
    }

    fn moved(gpu: &str, value: f64) -> Rate {
        Rate {
            family: "uvm",
            device: Some(gpu.into()),
            workload: None,
            what: "page migration to the GPU",
            value,
            unit: Unit::BytesPerSecond,
        }
    }

    fn record(s: u64) -> Record {
        Record { at: at(s), uuid: Some("GPU-a".into()), ..Record::default() }
    }

    #[test]
    fn the_greatest_reading_before_the_event_is_told_with_what_is_usual() {
        let mut activity = Activity::default();
        for s in 1..=100 {
            let value = if s == 92 { 1.1e9 } else { 0.0 };
            activity.push(at(s), SECOND, vec![moved("GPU-a", value), moved("GPU-b", 5e9)]);
        }
        let facts = activity.before(&record(100));
        assert_eq!(facts.len(), 1, "the other GPU's paging is not this one's: {facts:?}");
        assert_eq!(facts[0].at, at(92));
        assert!(
            facts[0].text.contains("1.10 GB/s") && facts[0].text.contains("usually 0"),
            "{}",
            facts[0].text
        );
    }

    #[test]
    fn what_came_after_the_event_or_long_before_is_left_out() {
        let mut activity = Activity::default();
        for s in 1..=100 {
            let value = if s == 80 || s == 97 { 1e9 } else { 0.0 };
            activity.push(at(s), SECOND, vec![moved("GPU-a", value)]);
        }
        assert!(activity.before(&record(95)).is_empty());
    }

    #[test]
    fn nothing_is_called_usual_before_a_minute_was_seen() {
        let mut activity = Activity::default();
        activity.push(at(1), SECOND, vec![moved("GPU-a", 2e9)]);
        assert!(activity.before(&record(1))[0].text.contains("not known yet"));
    }

    #[test]
    fn a_slow_drive_is_told_only_against_its_usual_latency() {
        let p99 = |value| Rate {
            family: "nvme",
            device: Some("nvme1".into()),
            what: "read p99",
            value,
            unit: Unit::Nanoseconds,
            ..moved("", 0.0)
        };
        let told = |last: f64| {
            let mut activity = Activity::default();
            for s in 1..=100 {
                activity.push(at(s), SECOND, vec![p99(if s == 98 { last } else { 4e5 })]);
            }
            activity.before(&record(100)).len()
        };
        assert_eq!((told(3.1e7), told(1.2e6), told(4e5)), (1, 0, 0));
    }

    #[test]
    fn a_workload_s_paging_is_told_to_the_workload_that_was_hit() {
        let mut activity = Activity::default();
        let faults = |name: &str| Rate {
            device: None,
            workload: Some(name.into()),
            what: "GPU page faults",
            unit: Unit::PerSecond,
            ..moved("", 12_410.0)
        };
        activity.push(at(9), SECOND, vec![faults("serve/chat-5d9"), faults("other")]);
        let mut hit = record(9);
        assert!(activity.before(&hit).is_empty(), "nobody is named yet");
        hit.who = Some(Who { workload: Some("serve/chat-5d9".into()), ..Who::default() });
        let facts = activity.before(&hit);
        assert_eq!(facts.len(), 1);
        assert!(facts[0].text.contains("of serve/chat-5d9 12410/s"), "{}", facts[0].text);
    }
}
