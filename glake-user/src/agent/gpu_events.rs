//! GPU events in the agent: reports from the trace point and the kernel log go into the joiner, records into the store.

use crate::clock::Stamp;
use crate::diagnose::xid::activity::{Rate, Unit};
use crate::diagnose::xid::condition::Condition;
use crate::diagnose::xid::join::{Incoming, Joiner, Process, Watched};
use crate::diagnose::xid::judge::Past;
use crate::diagnose::xid::record::{Fact, Record, Source};
use crate::diagnose::{aer, xid::saved};
use crate::error::Result;
use crate::events::event::{Event, What};
use crate::events::kmsg::trouble::Trouble;
use crate::events::nvml::GpuHealth;
use crate::events::sample::{ProbeState, Sample};
use crate::events::xid::catalogue;
use crate::events::xid::kmsg::{Kmsg, raw_clock};
use crate::host::gpus;
use crate::host::inventory::Inventory;
use crate::host::workload::Workload;
use crate::telemetry::event_store::{self, EventStore, RECORD};
use crate::telemetry::state::State;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The newest time each code was seen on each device: kept over restarts by the store.
pub type Lasts = BTreeMap<(String, u32), u64>;

/// The events of this host's GPUs.
#[derive(Debug)]
pub struct GpuEvents {
    joiner: Joiner,
    store: Option<EventStore>,
    /// Why the newest records are not kept.
    not_kept: Option<String>,
    log: Option<Kmsg>,
    /// Why there is no log, for the coverage.
    log_missing: Option<String>,
    lasts: Lasts,
    root: PathBuf,
    host: Inventory,
    lost_reported: u64,
    unlogged: u64,
}

impl GpuEvents {
    /// Opens store and kernel log. What cannot be opened is said in the log and done without: reports are still joined.
    pub fn open(folder: &Path, root: &Path, host: &Inventory) -> GpuEvents {
        let past = past(folder).unwrap_or_else(|e| {
            log::warn!("the GPU events of earlier runs are not known: {}", e.chain());
            Vec::new()
        });
        let lasts = past.iter().filter_map(|r| Some((r.pci.clone()?, r))).fold(
            Lasts::new(),
            |mut lasts, (pci, r)| {
                for code in r.codes.keys() {
                    let at = lasts.entry((pci.clone(), *code)).or_default();
                    *at = (*at).max(r.last.realtime_ns);
                }
                lasts
            },
        );
        let mut not_kept = None;
        let store = if folder.as_os_str().is_empty() {
            None
        } else {
            EventStore::open(folder, event_store::DEFAULT_LIMIT)
                .inspect_err(|e| {
                    log::warn!("GPU events are not kept: {}", e.chain());
                    not_kept = Some(e.chain());
                })
                .ok()
        };
        let (log, log_missing) = match Kmsg::open(root) {
            Ok(log) => (Some(log), None),
            Err(e) => {
                log::warn!("GPU events will name no process: {}", e.chain());
                (None, Some(e.chain()))
            }
        };
        let joiner = Joiner::new(host.clone(), past.iter().map(Past::of).collect());
        GpuEvents {
            joiner,
            store,
            not_kept,
            log,
            log_missing,
            lasts,
            root: root.to_owned(),
            host: host.clone(),
            lost_reported: 0,
            unlogged: 0,
        }
    }

    /// Takes one reading's events; gives the records that are new or complete, which are then in the store too.
    pub fn take(&mut self, events: &[Event], sample: &Sample, host: &Inventory) -> Vec<Record> {
        if host != &self.host {
            self.host = host.clone();
            self.joiner.set_host(host.clone());
        }
        self.joiner.set_coverage(watched(sample), sample.dropped.iter().map(|d| d.count).sum());
        self.joiner.set_conditions(conditions(sample));
        for event in events {
            self.event(event);
        }
        self.listen(sample.at);
        let records = self.joiner.tick(sample.at);
        for record in &records {
            self.keep(record);
        }
        if self.log.is_some() {
            let complete = records.iter().filter(|r| r.closed).flat_map(|r| r.codes.values());
            self.unlogged += complete.map(|seen| seen.exact.saturating_sub(seen.log)).sum::<u64>();
        }
        records
    }

    /// Reports of complete records that were counted exactly and that the log, which is rate-limited, does not have. `None`: there
    /// is no log.
    pub fn unlogged(&self) -> Option<u64> {
        self.log.as_ref().map(|_| self.unlogged)
    }

    /// What the host did in the interval that the state is about: the seconds before a later report, and before one that came in
    /// it.
    pub fn observe(&mut self, state: &State) {
        if let Some(interval_ns) = state.interval_ns {
            self.joiner.reading(state.at, interval_ns, rates(state));
        }
    }

    /// The open records, complete or not: the agent ends.
    pub fn end(&mut self) -> Vec<Record> {
        let records = self.joiner.end();
        for record in &records {
            self.keep(record);
        }
        records
    }

    /// The newest time each code was seen on each device, Unix ns, earlier runs included.
    pub fn lasts(&self) -> &Lasts {
        &self.lasts
    }

    /// Why GPU events are not kept, for the health. `None`: they are, or need not be.
    pub fn not_kept(&self) -> Option<String> {
        self.not_kept.as_ref().map(|why| format!("GPU events are not kept: {why}"))
    }

    /// Lines of the kernel log that were lost before they were read, and why there is no log at all.
    pub fn log_state(&self) -> (u64, Option<&str>) {
        (self.log.as_ref().map_or(0, Kmsg::lost), self.log_missing.as_deref())
    }

    /// What the kernel said of the managed-memory module since the last call, and whether HMM is switched off.
    pub fn troubles(&mut self) -> (Vec<(Stamp, Trouble)>, Option<bool>) {
        let found = self.log.as_mut().map(Kmsg::troubles).unwrap_or_default();
        (found, gpus::hmm_off(&self.root))
    }

    fn event(&mut self, event: &Event) {
        if let What::Xid { pci, nvswitch, code, message } = &event.what {
            // The kernel log is read here, with its process names: not twice.
            if Source::of(&event.source) == Source::Kmsg && self.log.is_some() {
                return;
            }
            self.report(&Incoming {
                at: event.at,
                clock_error_ns: event.clock_error_ns,
                source: event.source.clone(),
                pci: Some(pci.clone()),
                code: Some(*code),
                nvswitch: *nvswitch,
                text: message.clone(),
                ..Incoming::default()
            });
        } else if let Some((family, device, text)) = fact(&event.what) {
            self.joiner.fact(Fact {
                at: event.at,
                clock_error_ns: event.clock_error_ns,
                family: family.into(),
                device,
                text,
                source: event.source.clone(),
                count: 1,
            });
        }
    }

    fn listen(&mut self, now: Stamp) {
        let Some(log) = &mut self.log else { return };
        match log.read(now, raw_clock()) {
            Ok(heard) => {
                for h in heard {
                    let mut incoming = saved::incoming(h.said, h.at);
                    incoming.clock_error_ns = h.clock_error_ns;
                    self.report(&incoming);
                }
            }
            Err(e) => {
                log::warn!("the kernel log ended, GPU events will name no process: {}", e.chain());
                self.log_missing = Some(e.chain());
                self.log = None;
            }
        }
        let lost = self.log.as_ref().map_or(0, Kmsg::lost);
        if lost > self.lost_reported {
            log::warn!("the kernel log lost {} lines before they were read", lost - self.lost_reported);
            self.lost_reported = lost;
        }
    }

    fn report(&mut self, incoming: &Incoming) {
        if let Some(pci) = &incoming.pci {
            let code = incoming.code.unwrap_or(catalogue::FELL_OFF);
            let pci = crate::host::pci::sysfs(pci).unwrap_or_else(|| pci.clone());
            let at = self.lasts.entry((pci, code)).or_default();
            *at = (*at).max(incoming.at.realtime_ns);
        }
        let (root, host) = (&self.root, &self.host);
        self.joiner.report(incoming, &|pid| process(root, host, pid));
    }

    fn keep(&mut self, record: &Record) {
        let Some(store) = &mut self.store else { return };
        let written = match serde_json::to_vec(record) {
            Ok(bytes) => store.append(RECORD, &bytes),
            Err(e) => {
                Err(crate::error::Error::new(crate::error::Kind::BadInput, "an event as JSON").because(e))
            }
        };
        self.not_kept = written.err().map(|e| e.chain());
        if let Some(why) = &self.not_kept {
            log::warn!("a GPU event is not kept: {why}");
        }
    }
}

/// The newest version of each stored record.
fn past(folder: &Path) -> Result<Vec<Record>> {
    if folder.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    let found = event_store::read(folder)?;
    if found.damaged_bytes > 0 {
        log::warn!(
            "{}: {} bytes are damaged, their GPU events are lost",
            folder.display(),
            found.damaged_bytes
        );
    }
    let mut by_id = BTreeMap::new();
    for record in found.records.iter().filter_map(|p| serde_json::from_slice::<Record>(p).ok()) {
        by_id.insert(record.id.clone(), record);
    }
    Ok(by_id.into_values().collect())
}

/// Rates that say something about a GPU's trouble. What is not known is left out, not zero.
fn rates(state: &State) -> Vec<Rate> {
    let mut out = Vec::new();
    let mut add =
        |family, device: &Option<String>, workload: Option<&str>, what, value: Option<f64>, unit| {
            if let Some(value) = value {
                let (device, workload) = (device.clone(), workload.map(str::to_owned));
                out.push(Rate { family, device, workload, what, value, unit });
            }
        };
    let uvm = state.uvm.iter();
    for gpu in uvm.clone().flat_map(|u| &u.gpus) {
        add("uvm", &gpu.uuid, None, "GPU page faults", gpu.faults.per_second, Unit::PerSecond);
        add(
            "uvm",
            &gpu.uuid,
            None,
            "page migration to the GPU",
            gpu.to_gpu_bytes.per_second,
            Unit::BytesPerSecond,
        );
        add(
            "uvm",
            &gpu.uuid,
            None,
            "page migration to the CPU",
            gpu.to_cpu_bytes.per_second,
            Unit::BytesPerSecond,
        );
        add("uvm", &gpu.uuid, None, "UVM eviction", gpu.evicted_bytes.per_second, Unit::BytesPerSecond);
    }
    for work in uvm.flat_map(|u| &u.workloads) {
        add("uvm", &None, Some(&work.name), "GPU page faults", work.gpu_faults.per_second, Unit::PerSecond);
        add(
            "uvm",
            &None,
            Some(&work.name),
            "page migration",
            work.moved_bytes.per_second,
            Unit::BytesPerSecond,
        );
        add(
            "uvm",
            &None,
            Some(&work.name),
            "UVM eviction",
            work.evicted_bytes.per_second,
            Unit::BytesPerSecond,
        );
    }
    for drive in state.nvme.iter().flatten() {
        for (operation, what) in [("read", "read p99"), ("write", "write p99")] {
            let found = drive.operations.iter().find(|o| o.operation == operation);
            let p99 = found.and_then(|o| o.latency.p99_ns).map(|ns| ns as f64);
            add("nvme", &Some(drive.controller.clone()), None, what, p99, Unit::Nanoseconds);
        }
    }
    out
}

/// Looks a process up while it still lives.
fn process(root: &Path, host: &Inventory, pid: u32) -> Option<Process> {
    let text = std::fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).ok()?;
    // cgroup 2 is the line of hierarchy 0; on a mixed host the systemd hierarchy names the unit as well.
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("0::"))
        .or_else(|| text.lines().find_map(|l| l.split_once(":name=systemd:").map(|(_, path)| path)))?;
    let workload = Workload::of_cgroup(line, &host.containers);
    Some(Process {
        cgroup: Some(line.to_owned()),
        workload: Some(workload.title()).filter(|t| t != "other"),
        labels: workload.labels().into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
    })
}

/// Families of probes and whether they watch. A family with no probe at all on this host is not watched.
fn watched(sample: &Sample) -> Watched {
    let mut out = Watched::new();
    for probe in &sample.probes {
        let on = probe.state == ProbeState::On;
        let reason = || probe.reason.clone().unwrap_or_else(|| "its probe is off".into());
        let state =
            out.entry(probe.family.clone()).or_insert_with(|| if on { Ok(()) } else { Err(reason()) });
        if on {
            *state = Ok(());
        }
    }
    out
}

/// What NVML tells of each GPU's memory.
fn conditions(sample: &Sample) -> BTreeMap<String, Condition> {
    let Some((nvml, read_at)) = sample.nvml.as_ref().and_then(|n| Some((n, n.read_at?))) else {
        return BTreeMap::new();
    };
    let of = |gpu: &GpuHealth| Some((gpu.pci.clone()?, Condition::of(gpu, read_at)));
    nvml.gpus.iter().filter_map(of).filter(|(_, condition)| !condition.is_empty()).collect()
}

/// What other events say in one line.
fn fact(what: &What) -> Option<(&'static str, Option<String>, String)> {
    Some(match what {
        What::Aer { pci, severity, status } => {
            ("aer", Some(pci.clone()), format!("{severity}: {}", aer::words(severity, *status)))
        }
        What::IommuFault { pci, iova, detail } => {
            let at = iova.map_or(String::new(), |a| format!("at 0x{a:x} "));
            ("iommu", pci.clone(), format!("translation fault {at}{detail}"))
        }
        What::NvmeTimeout { controller, detail } => {
            ("nvme", Some(controller.clone()), format!("command timed out {detail}"))
        }
        What::NvmeReset { controller } => ("nvme", Some(controller.clone()), "controller reset".into()),
        What::IoError { device, operation, status } => {
            ("block", Some(device.clone()), format!("{operation} failed: {status}"))
        }
        What::SlowIo { device, operation, took_ns } => {
            let took = crate::units::duration_ns(*took_ns);
            ("block", Some(device.clone()), format!("{operation} took {took}"))
        }
        What::UvmFatal { tgid, uuid, address, access, reason } => {
            let access = access.as_deref().unwrap_or("access");
            let who = tgid.map_or("a process that is not known".into(), |pid| format!("pid {pid}"));
            ("uvm", uuid.clone(), format!("fatal fault: {access} at 0x{address:x} by {who}, {reason}"))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::sample::Probe;

    fn xid(ms: u64, code: u32) -> Event {
        Event {
            at: Stamp { monotonic_ns: ms * 1_000_000, realtime_ns: ms * 1_000_000 },
            clock_error_ns: 0,
            source: "nvidia:nvidia_dev_xid".into(),
            what: What::Xid { pci: "0000:3b:00.0".into(), nvswitch: false, code, message: "text".into() },
        }
    }

    fn sample(ms: u64) -> Sample {
        Sample {
            at: Stamp { monotonic_ns: ms * 1_000_000, realtime_ns: ms * 1_000_000 },
            ..Sample::default()
        }
    }

    fn open(folder: &Path) -> GpuEvents {
        // A root without /dev/kmsg: the live log of the machine that runs this test is no part of it.
        let root = folder.join("root");
        GpuEvents::open(&folder.join("store"), &root, &Inventory::default())
    }

    #[test]
    fn a_report_becomes_a_record_in_the_store_and_its_time_outlives_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut events = open(dir.path());
        assert!(events.take(&[xid(1000, 79)], &sample(1100), &Inventory::default()).is_empty());
        let records = events.take(&[], &sample(2100), &Inventory::default());
        assert_eq!(records.len(), 1);
        assert!(records[0].exact());
        drop(events);
        let again = open(dir.path());
        let want = Lasts::from([(("0000:3b:00.0".to_owned(), 79), 1_000_000_000)]);
        assert_eq!(again.lasts(), &want);
    }

    #[test]
    fn without_a_kernel_log_the_reason_is_known_and_reports_still_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut events = open(dir.path());
        assert!(events.log_state().1.expect("a reason").contains("dev/kmsg"));
        events.take(&[xid(1, 31)], &sample(2), &Inventory::default());
        let record = &events.end()[0];
        assert!(record.cannot_tell.iter().any(|t| t.contains("which process")), "{:?}", record.cannot_tell);
    }

    #[test]
    fn coverage_comes_from_the_probes() {
        let probe = |family: &str, state, reason: Option<&str>| Probe {
            family: family.into(),
            state,
            reason: reason.map(str::to_owned),
            ..Probe::default()
        };
        let sample = Sample {
            probes: vec![
                probe("aer", ProbeState::On, None),
                probe("iommu", ProbeState::Failed, Some("tracefs is not mounted")),
                probe("nvme", ProbeState::Failed, Some("x")),
                probe("nvme", ProbeState::On, None),
            ],
            ..Sample::default()
        };
        let found = watched(&sample);
        assert_eq!(found["aer"], Ok(()));
        assert_eq!(found["iommu"], Err("tracefs is not mounted".into()));
        assert_eq!(found["nvme"], Ok(()), "one of two is enough to see something");
    }
}
