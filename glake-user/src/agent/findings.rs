//! Which findings hold now: what single events, the kernel's own reports and the last minutes of paging amount to.

use crate::clock::Stamp;
use crate::diagnose::finding::{self, Severity};
use crate::diagnose::link::Link;
use crate::diagnose::paging::{Interval, Window};
use crate::diagnose::xid::record::Record;
use crate::events::kmsg::trouble::Trouble;
use crate::events::xid::catalogue::Action;
use crate::telemetry::finding::Finding;
use crate::telemetry::state::{State, UvmGpu};
use crate::units;
use std::collections::BTreeMap;

/// A finding about single events holds for so long after the newest of them.
const HOLDS_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Ends when the errors do; a link that failed once stays suspect.
const RETRYING: &str = "pcie_link_retrying";

/// By rule and device.
type Key = (&'static str, Option<String>);

/// What holds.
#[derive(Debug, Default)]
pub struct Findings {
    paging: BTreeMap<Option<String>, Window>,
    links: BTreeMap<String, Link>,
    /// Each with the newest time it was seen; reports of the kernel hold until the machine is restarted.
    held: BTreeMap<Key, (Finding, Option<u64>)>,
}

impl Findings {
    /// Takes GPU events, new or complete; `now` is when.
    pub fn records(&mut self, records: &[Record]) {
        for record in records.iter().filter(|r| matches!(r.code, 13 | 31) && !r.nvswitch) {
            if record.action != Action::ContactSupport.label() {
                continue;
            }
            let finding = finding::Finding {
                rule: "xid_repeats_across_workloads",
                severity: Severity::Ticket,
                uuid: record.uuid.clone(),
                pci: record.pci.clone(),
                what: format!("Xid {} came again and again on one GPU, under different jobs", record.code),
                evidence: vec![format!(
                    "the newest at {}, {}",
                    record.at.realtime_ns / 1_000_000_000,
                    record.id
                )],
                do_now: record.do_now.clone(),
            };
            self.hold(finding, record.at, Some(record.last.realtime_ns));
        }
    }

    /// Takes what the kernel said of the managed-memory module.
    pub fn trouble(&mut self, at: Stamp, trouble: &Trouble, hmm_off: Option<bool>) {
        let found = finding::of_kernel(trouble, hmm_off);
        log::error!("{}: {}", found.rule, found.what);
        self.hold(found, at, None);
    }

    /// Takes an interval and gives what holds at its end.
    pub fn observe(&mut self, state: &State) -> Vec<Finding> {
        let now = state.at;
        for gpu in state.uvm.iter().flat_map(|uvm| &uvm.gpus) {
            let window = self.paging.entry(gpu.uuid.clone()).or_default();
            if let Some(interval) = interval(gpu, state) {
                window.push(interval);
            }
            match window.judge() {
                Some(found) => {
                    let mut found =
                        finding::Finding { uuid: gpu.uuid.clone(), pci: gpu.pci.clone(), ..found };
                    found.evidence.extend(memory(gpu, state));
                    found.evidence.extend(who(state));
                    self.drop_paging(&gpu.uuid, Some(found.rule));
                    self.hold(found, now, Some(now.realtime_ns));
                }
                None => self.drop_paging(&gpu.uuid, None),
            }
        }
        for device in state.aer.iter().flatten() {
            let link = self.links.entry(device.pci.clone()).or_default();
            let uncorrected = device.nonfatal.saturating_add(device.fatal);
            let found = link.push(now.monotonic_ns, device.corrected, uncorrected);
            if found.as_ref().is_none_or(|found| found.rule != RETRYING) {
                self.held.remove(&(RETRYING, Some(device.pci.clone())));
            }
            if let Some(found) = found {
                let found = finding::Finding { pci: Some(device.pci.clone()), ..found };
                self.hold(found, now, Some(now.realtime_ns));
            }
        }
        self.held
            .retain(|_, (_, newest)| newest.is_none_or(|at| now.realtime_ns.saturating_sub(at) <= HOLDS_NS));
        self.held.values().map(|(finding, _)| finding.clone()).collect()
    }

    /// Of one GPU's kinds of paging at most one holds.
    fn drop_paging(&mut self, uuid: &Option<String>, but: Option<&str>) {
        self.held.retain(|(rule, device), _| {
            device != uuid
                || Some(*rule) == but
                || !["uvm_oversubscribed", "uvm_taking_turns", "uvm_ping_pong"].contains(rule)
        });
    }

    fn hold(&mut self, found: finding::Finding, at: Stamp, newest: Option<u64>) {
        let key = (found.rule, found.uuid.clone().or_else(|| found.pci.clone()));
        let since = self.held.get(&key).map_or(at, |(held, _)| held.since);
        let finding = Finding {
            rule: found.rule.to_owned(),
            severity: found.severity.label().to_owned(),
            uuid: found.uuid,
            pci: found.pci,
            since,
            what: found.what,
            evidence: found.evidence,
            do_now: found.do_now,
        };
        self.held.insert(key, (finding, newest));
    }
}

/// What a GPU paged in the state's interval. `None`: a rate is not known.
fn interval(gpu: &UvmGpu, state: &State) -> Option<Interval> {
    let length_ns = state.interval_ns?;
    let seconds = length_ns as f64 / 1e9;
    let service = gpu.service.as_ref();
    Some(Interval {
        at_ns: state.at.monotonic_ns,
        length_ns,
        faults: gpu.faults.per_second? * seconds,
        to_gpu: gpu.to_gpu_bytes.per_second? * seconds,
        to_cpu: gpu.to_cpu_bytes.per_second? * seconds,
        evicted: gpu.evicted_bytes.per_second? * seconds,
        service_ns: gpu.service_share.map(|share| share * length_ns as f64),
        services: service.map(|latency| latency.count as f64),
    })
}

/// How full the GPU is, where NVML may be asked. How much managed memory there is in all, no source tells.
fn memory(gpu: &UvmGpu, state: &State) -> Option<String> {
    let (health, _) = state.nvml.as_ref()?.find(gpu.uuid.as_deref()?)?;
    let memory = health.memory.as_ref()?;
    let (used, total) = (units::bytes(memory.used_bytes), units::bytes(memory.total_bytes));
    Some(format!("GPU memory: {used} of {total} used (NVML)"))
}

/// Who moved most of late.
fn who(state: &State) -> Option<String> {
    let workloads = state.uvm.iter().flat_map(|uvm| &uvm.workloads);
    let names: Vec<&str> = workloads
        .filter(|w| w.moved_bytes.per_second.is_some_and(|rate| rate > 0.0))
        .take(4)
        .map(|w| w.name.as_str())
        .collect();
    (!names.is_empty()).then(|| format!("paging now, on any GPU: {}", names.join(", ")))
}

#[cfg(test)]
#[path = "findings_case_tests.rs"]
mod case_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::kmsg::trouble::Kind;
    use crate::events::sample::{Sample, Uvm, UvmMoved, UvmSpace};
    use crate::host::inventory::{Gpu, Inventory};

    fn at(s: u64) -> Stamp {
        Stamp { monotonic_ns: s * 1_000_000_000, realtime_ns: s * 1_000_000_000 }
    }

    fn reading(s: u64, evicted: u64, fetched: u64) -> Sample {
        let moved = |cause: &str, direction: &str, bytes| UvmMoved {
            cause: cause.into(),
            direction: direction.into(),
            count: 1,
            bytes,
        };
        let space = UvmSpace {
            serial: 1,
            tgid: Some(7),
            comm: "train".into(),
            processor: 1,
            uuid: Some("GPU-a".into()),
            moved: vec![moved("eviction", "to_cpu", evicted), moved("on_demand", "to_gpu", fetched)],
            ..UvmSpace::default()
        };
        Sample { at: at(s), uvm: Some(Uvm { spaces: vec![space], ..Uvm::default() }), ..Sample::default() }
    }

    fn host() -> Inventory {
        let gpu = Gpu { pci: "0000:3b:00.0".into(), uuid: Some("GPU-a".into()), ..Gpu::default() };
        Inventory { gpus: vec![gpu], ..Inventory::default() }
    }

    /// What holds after each of these readings, one a second.
    fn over(readings: impl Iterator<Item = Sample>) -> Vec<Vec<Finding>> {
        let (mut findings, mut before, host) = (Findings::default(), Sample::default(), host());
        readings
            .map(|sample| {
                let state = State::between(&before, &sample, &host);
                before = sample;
                findings.observe(&state)
            })
            .collect()
    }

    #[test]
    fn paging_beyond_the_gpu_is_found_by_gpu_with_who_and_ends_when_it_ends() {
        let busy = |s: u64| reading(s, s.min(60) * 2_000_000_000, s.min(60) * 2_000_000_000);
        let held = over((1..=500).map(busy));
        assert!(held[10].is_empty(), "not seen for long enough");
        let found = &held[50][0];
        assert_eq!((found.rule.as_str(), found.uuid.as_deref()), ("uvm_oversubscribed", Some("GPU-a")));
        assert_eq!(found.pci.as_deref(), Some("0000:3b:00.0"));
        assert!(found.evidence.iter().any(|e| e.contains("train")), "{:?}", found.evidence);
        assert!(found.since.monotonic_ns < at(40).monotonic_ns, "since it was found: {:?}", found.since);
        assert!(held[499].is_empty(), "{:?}", held[499]);
    }

    #[test]
    fn what_the_kernel_said_of_itself_holds_until_the_machine_is_restarted() {
        let mut findings = Findings::default();
        let trouble = Trouble {
            kind: Kind::BadPage,
            task: None,
            pid: None,
            evicting: false,
            frames: vec!["uvm_x".into()],
        };
        findings.trouble(at(5), &trouble, None);
        findings.trouble(at(9), &trouble, None);
        let state =
            State::between(&Sample::default(), &Sample { at: at(900_000), ..Sample::default() }, &host());
        let held = findings.observe(&state);
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].severity.as_str(), held[0].since), ("page", at(5)));
    }

    /// Case E09.
    #[test]
    fn an_xid_that_repeats_under_different_jobs_is_a_finding_for_a_day() {
        let record = |action: Action| Record {
            at: at(100),
            last: at(101),
            code: 31,
            pci: Some("0000:3b:00.0".into()),
            uuid: Some("GPU-a".into()),
            action: action.label().into(),
            ..Record::default()
        };
        let mut findings = Findings::default();
        let state =
            |s| State::between(&Sample::default(), &Sample { at: at(s), ..Sample::default() }, &host());
        findings.records(&[record(Action::RestartApp)]);
        assert!(findings.observe(&state(102)).is_empty(), "the program's own");
        findings.records(&[record(Action::ContactSupport)]);
        assert_eq!(findings.observe(&state(102))[0].rule, "xid_repeats_across_workloads");
        assert!(findings.observe(&state(101 + 86_401)).is_empty());
    }
}
