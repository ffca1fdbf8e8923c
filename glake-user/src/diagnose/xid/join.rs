//! Reports of one device that belong together become one record: bursts of one code, and codes that only follow.
//!
//! Driven by its inputs' times, never by a clock of its own. One record is given out twice at most: when the process
//! has had time to be named, and when it is complete.

use super::activity::{Activity, BY_READING, Rate};
use super::condition::Condition;
use super::judge::{Past, WINDOW_NS, judge};
use super::record::{Fact, Record, SCHEMA, Source, Who};
use crate::clock::Stamp;
use crate::events::xid::catalogue;
use crate::events::xid::parse::{self, Report};
use crate::host::{gpus, inventory::Inventory, pci};
use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000_000;
/// The kernel-log line that names the process comes within this time of the trace point.
pub const JOIN_NS: u64 = SECOND;
/// A record is complete when nothing came for this long (case E05: consequences 16 s after the root).
pub const QUIET_NS: u64 = 30 * SECOND;
/// How much of the past goes into BEFORE.
const BEFORE_NS: u64 = 10 * SECOND;
/// Facts remembered: a flood of them must not grow without end.
const FACTS: usize = 512;
/// Records open at once: 16 GPUs with 4 different problems each.
const OPEN: usize = 64;

/// One report, from any source.
#[derive(Debug, Clone, Default)]
pub struct Incoming {
    /// When.
    pub at: Stamp,
    /// How far off.
    pub clock_error_ns: u64,
    /// What told it, as people read it.
    pub source: String,
    /// `None`: the driver did not say which GPU.
    pub pci: Option<String>,
    /// The code; `None`: fallen off the bus without one.
    pub code: Option<u32>,
    /// An SXid.
    pub nvswitch: bool,
    /// The text after the code, with `pid=` and `name=` where the source has them.
    pub text: String,
    /// MIG: GPU instance.
    pub gpu_instance: Option<u32>,
    /// The time as a saved log spells it, where that is no Unix time.
    pub log_time: Option<String>,
}

/// What a process lookup gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// For people.
    pub workload: Option<String>,
    /// For metrics.
    pub labels: BTreeMap<String, String>,
}

/// Which families are watched. `Err`: why not.
pub type Watched = BTreeMap<String, Result<(), String>>;

/// Joins reports into records.
#[derive(Debug)]
pub struct Joiner {
    host: Inventory,
    open: Vec<Held>,
    facts: VecDeque<Fact>,
    past: Vec<Past>,
    watched: Watched,
    activity: Activity,
    /// By PCI address.
    conditions: BTreeMap<String, Condition>,
    /// Events known to be missed so far.
    dropped: u64,
}

#[derive(Debug)]
struct Held {
    record: Record,
    dropped_at_start: u64,
    given: Option<Record>,
}

impl Joiner {
    /// For this host, knowing `past` records of it.
    pub fn new(host: Inventory, past: Vec<Past>) -> Joiner {
        Joiner {
            host,
            open: Vec::new(),
            facts: VecDeque::new(),
            past,
            watched: Watched::new(),
            activity: Activity::default(),
            conditions: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// The host's facts were read anew.
    pub fn set_host(&mut self, host: Inventory) {
        self.host = host;
    }

    /// Which families are watched now, and how many events are known to be missed so far.
    pub fn set_coverage(&mut self, watched: Watched, dropped: u64) {
        self.watched = watched;
        self.dropped = dropped;
    }

    /// What NVML says of the GPUs now, by PCI address. One that it does not tell is not known.
    pub fn set_conditions(&mut self, conditions: BTreeMap<String, Condition>) {
        self.conditions = conditions;
    }

    fn condition(&self, pci: Option<&String>) -> Option<Condition> {
        pci.and_then(|pci| self.conditions.get(pci)).cloned()
    }

    /// What the host did in the interval that ended at `at`.
    pub fn reading(&mut self, at: Stamp, interval_ns: u64, rates: Vec<Rate>) {
        self.activity.push(at, interval_ns, rates);
    }

    /// Remembers something that happened. Equal facts in a row become one with a count (case E19).
    pub fn fact(&mut self, fact: Fact) {
        if let Some(last) = self.facts.back_mut()
            && (&last.family, &last.device, &last.text) == (&fact.family, &fact.device, &fact.text)
        {
            last.count += fact.count.max(1);
            return;
        }
        if self.facts.len() == FACTS {
            self.facts.pop_front();
        }
        self.facts.push_back(Fact { count: fact.count.max(1), ..fact });
    }

    /// Takes a report. `process` looks a pid up; it is asked at most once a record.
    pub fn report(&mut self, incoming: &Incoming, process: &dyn Fn(u32) -> Option<Process>) {
        let mut read = Report::default();
        parse::details(&mut read, &incoming.text);
        let code = incoming.code.unwrap_or(catalogue::FELL_OFF);
        let index = self.place(incoming, code, &read);
        let Some(held) = self.open.get_mut(index) else { return };
        let record = &mut held.record;
        record.last =
            if incoming.at.monotonic_ns > record.last.monotonic_ns { incoming.at } else { record.last };
        let seen = record.codes.entry(code).or_default();
        match Source::of(&incoming.source) {
            Source::Kmsg => seen.log += 1,
            Source::Tracepoint | Source::Kprobe => seen.exact += 1,
        }
        record.code_told |= incoming.code.is_some();
        record.gpu_instance = record.gpu_instance.or(incoming.gpu_instance);
        if let Some(one) = parse::sm_exception(&read.message) {
            record.sm.get_or_insert_default().add(one);
        }
        if catalogue::is_memory(code) && record.memory_site.is_none() {
            record.memory_site = parse::memory_site(&read.message);
        }
        name_process(record, incoming, &read, process);
        if code == record.code {
            describe(record, incoming, &read);
        } else if code == 154 {
            let fact = Fact {
                at: incoming.at,
                clock_error_ns: incoming.clock_error_ns,
                family: "xid".into(),
                device: incoming.pci.clone(),
                text: format!("Xid 154, {}", read.message),
                source: incoming.source.clone(),
                count: 1,
            };
            if !record.before.contains(&fact) {
                record.before.push(fact);
            }
        }
    }

    /// The open record this report belongs to: an existing one, or a new one.
    fn place(&mut self, incoming: &Incoming, code: u32, read: &Report) -> usize {
        // Instances of one GPU are different tenants' machines; a report without one concerns all.
        let same_instance =
            |r: &Record| r.gpu_instance.zip(incoming.gpu_instance).is_none_or(|(held, new)| held == new);
        let same_device = |r: &Record| {
            r.nvswitch == incoming.nvswitch && same_slot(&r.pci, &incoming.pci) && same_instance(r)
        };
        let fits = |h: &Held| {
            let r = &h.record;
            let near = incoming.at.monotonic_ns.saturating_sub(r.last.monotonic_ns) < QUIET_NS;
            near && same_device(r) && belongs(r, code, read.caused_by)
        };
        if let Some(index) = self.open.iter().rposition(fits) {
            if let Some(held) = self.open.get_mut(index) {
                promote(&mut held.record, code);
            }
            return index;
        }
        if self.open.len() == OPEN {
            // The oldest is as complete as it will get; it comes out at the next tick because it is marked so.
            if let Some(oldest) = self.open.iter_mut().min_by_key(|h| h.record.last.monotonic_ns) {
                oldest.record.closed = true;
            }
        }
        let record = self.start(incoming, code);
        self.open.push(Held { record, dropped_at_start: self.dropped, given: None });
        self.open.len() - 1
    }

    fn start(&self, incoming: &Incoming, code: u32) -> Record {
        let gpu = incoming.pci.as_deref().and_then(|p| gpus::at(&self.host.gpus, p));
        let place = incoming.pci.as_deref().and_then(pci::sysfs);
        let dcgm = incoming.pci.as_deref().and_then(pci::dcgm);
        let stamp = super::text::when(incoming.at, incoming.log_time.as_deref());
        let since = incoming.at.realtime_ns.saturating_sub(WINDOW_NS);
        let mut history = BTreeMap::new();
        for p in self.past.iter().filter(|p| p.at_ns >= since && same_slot(&p.pci, &place)) {
            *history.entry(p.code).or_default() += 1;
        }
        Record {
            schema: SCHEMA,
            id: match incoming.gpu_instance {
                None => format!("{stamp}-{}-{code}", place.as_deref().unwrap_or("unknown")),
                Some(i) => format!("{stamp}-{}-gi{i}-{code}", place.as_deref().unwrap_or("unknown")),
            },
            host: self.host.hostname.clone(),
            at: incoming.at,
            clock_error_ns: incoming.clock_error_ns,
            last: incoming.at,
            log_time: incoming.log_time.clone(),
            uuid: gpu.and_then(|(_, g)| g.uuid.clone()),
            gpu: gpu.and_then(|(i, _)| u32::try_from(i).ok()),
            condition_before: self.condition(place.as_ref()),
            pci: place,
            pci_bus_id: dcgm,
            nvswitch: incoming.nvswitch,
            code,
            before: self.before(incoming.at),
            history,
            ..Record::default()
        }
    }

    fn before(&self, at: Stamp) -> Vec<Fact> {
        let since = at.monotonic_ns.saturating_sub(BEFORE_NS);
        self.facts
            .iter()
            .filter(|f| (since..=at.monotonic_ns).contains(&f.at.monotonic_ns))
            .cloned()
            .collect()
    }

    /// Records that are due at `now`: new ones once their process could be named, complete ones when they changed.
    pub fn tick(&mut self, now: Stamp) -> Vec<Record> {
        let mut out = Vec::new();
        let mut keep = Vec::new();
        for mut held in std::mem::take(&mut self.open) {
            let age = |since: Stamp| now.monotonic_ns.saturating_sub(since.monotonic_ns);
            let closing = held.record.closed || age(held.record.last) >= QUIET_NS;
            if closing || (held.given.is_none() && age(held.record.at) >= JOIN_NS) {
                held.record.closed = closing;
                self.finish(&mut held);
                let changed = held.given.as_ref() != Some(&held.record);
                if changed {
                    held.given = Some(held.record.clone());
                    out.push(held.record.clone());
                }
            }
            if closing {
                self.past.push(Past::of(&held.record));
            } else {
                keep.push(held);
            }
        }
        self.open = keep;
        let cutoff = now.realtime_ns.saturating_sub(WINDOW_NS);
        self.past.retain(|p| p.at_ns >= cutoff);
        out
    }

    /// All open records, complete or not: the end of a log or of the agent.
    pub fn end(&mut self) -> Vec<Record> {
        for held in &mut self.open {
            held.record.closed = true;
        }
        self.tick(Stamp::default())
    }

    fn finish(&self, held: &mut Held) {
        let record = &mut held.record;
        record.dropped = self.dropped.saturating_sub(held.dropped_at_start);
        meaning(record);
        record.condition = self.condition(record.pci.as_ref()).or_else(|| record.condition.take());
        if self.activity.covers(record) {
            record.before.retain(|fact| fact.source != BY_READING);
            record.before.extend(self.activity.before(record));
            record.before.sort_by_key(|fact| fact.at.monotonic_ns);
        }
        (record.not_seen, record.cannot_tell) = self.absent(record);
        let (action, text) = judge(record, &self.past);
        action.label().clone_into(&mut record.action);
        record.do_now = text;
    }

    /// What was looked for and not seen, and what cannot be told.
    fn absent(&self, record: &Record) -> (Vec<String>, Vec<String>) {
        let (mut not_seen, mut cannot) = (Vec::new(), Vec::new());
        let families = [
            ("uvm", "UVM page faults and migrations on this GPU"),
            ("aer", "PCIe AER reports"),
            ("iommu", "IOMMU faults"),
            ("nvme", "NVMe timeouts, resets and unusual latency"),
        ];
        for (family, words) in families {
            match self.watched.get(family) {
                _ if record.before.iter().any(|f| f.family == family) => {}
                Some(Ok(())) => not_seen.push(format!("{words}: none in the 10 s before")),
                Some(Err(why)) => cannot.push(format!("{words}: not watched ({why})")),
                None => cannot.push(format!("{words}: not watched")),
            }
        }
        match self.watched.get("ecc") {
            _ if record.condition.is_some() || record.nvswitch => {}
            Some(Ok(())) => cannot.push("row remapping, ECC counts: NVML does not tell this GPU's".into()),
            Some(Err(why)) => cannot.push(format!("row remapping, ECC counts: not watched ({why})")),
            None => cannot.push("row remapping, ECC counts: not watched (NVML is off by default)".into()),
        }
        if record.who.as_ref().is_none_or(|w| w.pid.is_none()) {
            cannot.push("which process: the driver's message names none".into());
        }
        if matches!(record.code, 13 | 31) && !record.nvswitch {
            cannot.push("which thread or stack: needs CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer".into());
        }
        if record.code == 31 && record.mmu.as_ref().is_none_or(|m| m.address.is_none()) {
            cannot.push("the address: only the kernel log's text has it".into());
        }
        (not_seen, cannot)
    }
}

fn same_slot(a: &Option<String>, b: &Option<String>) -> bool {
    let slot = |p: &Option<String>| {
        p.as_deref().and_then(pci::sysfs).and_then(|p| p.rsplit_once('.').map(|(s, _)| s.to_owned()))
    };
    slot(a) == slot(b)
}

/// Does `code` belong to the open record?
fn belongs(record: &Record, code: u32, caused_by: Option<u32>) -> bool {
    record.codes.contains_key(&code)
        || (record.nvswitch)
        || caused_by.is_some_and(|c| record.codes.contains_key(&c))
        || record.codes.keys().any(|&c| catalogue::follows(code, c) || catalogue::follows(c, code))
        || (catalogue::is_memory(code) && record.codes.keys().any(|&c| catalogue::is_memory(c)))
}

/// Which of several codes explains the others: lower explains.
fn rank(code: u32) -> u32 {
    const ORDER: [u32; 12] = [79, 48, 120, 95, 140, 94, 64, 62, 119, 63, 171, 172];
    let position = ORDER.iter().position(|c| *c == code).and_then(|i| u32::try_from(i).ok());
    match code {
        154 => 102,
        43 => 103,
        45 => 104,
        _ => position.unwrap_or(50),
    }
}

/// A report that explains the record's root takes its place.
fn promote(record: &mut Record, code: u32) {
    let explains = rank(code) < rank(record.code)
        && (catalogue::follows(record.code, code)
            || (catalogue::is_memory(code) && catalogue::is_memory(record.code)));
    if explains && !record.nvswitch {
        record.code = code;
        record.message.clear();
        record.mmu = None;
    }
}

fn meaning(record: &mut Record) {
    let words = if record.nvswitch { "NVSwitch error" } else { catalogue::meaning(record.code) };
    words.clone_into(&mut record.meaning);
}

/// The root's text: the kernel log's is richer than the trace point's, which may be cut, so the fuller one stays. What is
/// read from it comes from that one text, or a cut word would be taken for a whole one.
fn describe(record: &mut Record, incoming: &Incoming, read: &Report) {
    if is_fuller(&read.message, &record.message) {
        record.message.clone_from(&read.message);
        record.message_source.clone_from(&incoming.source);
    }
    if let Some(found) = parse::mmu_fault(&record.message) {
        record.mmu = Some(found);
    } else if record.mmu.is_none() {
        record.mmu = parse::mmu_fault(&read.message);
    }
}

fn is_fuller(new: &str, old: &str) -> bool {
    match old.strip_suffix(parse::CUT) {
        Some(begin) if new.starts_with(begin) => !new.ends_with(parse::CUT),
        _ => new.len() > old.len(),
    }
}

fn name_process(
    record: &mut Record,
    incoming: &Incoming,
    read: &Report,
    process: &dyn Fn(u32) -> Option<Process>,
) {
    if read.pid.is_none() && read.name.is_none() || record.who.as_ref().is_some_and(|w| w.pid.is_some()) {
        return;
    }
    let found = read.pid.and_then(process);
    let source = if found.is_some() { "driver message + /proc" } else { "driver message" };
    let found = found.unwrap_or_default();
    record.who = Some(Who {
        pid: read.pid,
        name: read.name.clone(),
        cgroup: found.cgroup,
        workload: found.workload,
        labels: found.labels,
        source: source.into(),
        lag_ns: incoming.at.monotonic_ns.saturating_sub(record.at.monotonic_ns),
    });
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
