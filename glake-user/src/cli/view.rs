//! What every view of a [`State`] shows: devices summed up, numbers as text, and the plain line per device and interval
//! that `glake run`, `glake watch` and `glake play` print when they do not draw a screen.

use crate::events::sample::{Histogram, Operation};
use crate::telemetry::state::{Block, BlockOp, Count, Latency, Nvme, NvmeQueue, State};
use crate::units;

/// One device in numbers of the interval; unknown is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// `vda`, `nvme0`.
    pub name: String,
    /// Bytes read per second.
    pub read: Option<f64>,
    /// Bytes written per second.
    pub write: Option<f64>,
    /// Requests per second, of every operation.
    pub requests: Option<f64>,
    /// Latency of the interval's requests in the device, all operations together.
    pub latency: Histogram,
    /// Requests in flight.
    pub depth: Option<u64>,
    /// Errors since the start.
    pub errors: u64,
    /// Errors in the interval.
    pub new_errors: bool,
    /// NVMe only: what the driver had to repeat, give up on, reset.
    pub nvme: Option<NvmeTrouble>,
    /// Requests since the start.
    pub total: u64,
}

/// Trouble of one NVMe controller since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NvmeTrouble {
    /// Commands completed after a retry.
    pub retries: Option<u64>,
    /// Commands timed out.
    pub timeouts: Option<u64>,
    /// Controller resets.
    pub resets: Option<u64>,
    /// Share of the fullest submission queue, 0 to 1.
    pub fill: Option<f64>,
}

/// The block devices, in the state's order. Loop and RAM disks that were never used are left out.
pub fn block_devices(state: &State) -> Vec<Device> {
    let unused = ["loop", "ram", "zram", "nbd", "sr", "fd"];
    let all = state.block.iter().flatten().map(of_block);
    all.filter(|d| d.total > 0 || !unused.iter().any(|prefix| d.name.starts_with(prefix))).collect()
}

/// The NVMe controllers, in the state's order.
pub fn nvme_controllers(state: &State) -> Vec<Device> {
    state.nvme.iter().flatten().map(of_nvme).collect()
}

fn of_block(block: &Block) -> Device {
    let of = |operation| block.operations.iter().find(|o| o.operation == operation);
    let rate = |operation| rate_or_idle(block, of(operation).map(|o| &o.bytes));
    Device {
        name: block.device.clone(),
        read: rate(Operation::Read),
        write: rate(Operation::Write),
        requests: sum(block.operations.iter().map(|o| o.completed.per_second)),
        latency: merged(block.operations.iter().filter_map(|o| o.device.as_ref())),
        depth: block.in_flight,
        errors: block.operations.iter().map(|o| o.errors.total).sum(),
        new_errors: block.operations.iter().any(|o| grew(&o.errors)),
        nvme: None,
        total: block.operations.iter().map(|o| o.completed.total).sum(),
    }
}

/// An operation that was never seen moved nothing, if the device is counted at all.
fn rate_or_idle(block: &Block, bytes: Option<&Count>) -> Option<f64> {
    match bytes {
        Some(bytes) => bytes.per_second,
        None => {
            let known = |o: &BlockOp| o.bytes.per_second.is_some();
            (block.operations.is_empty() || block.operations.iter().any(known)).then_some(0.0)
        }
    }
}

fn of_nvme(nvme: &Nvme) -> Device {
    let of = |name: &str| nvme.operations.iter().find(|o| o.operation == name);
    let bytes = |name: &str| match of(name) {
        Some(operation) => operation.bytes.as_ref().and_then(|b| b.per_second),
        None => Some(0.0),
    };
    let io = || nvme.operations.iter().filter(|o| o.operation != "admin");
    let total = |count: &Option<Count>| count.map(|c| c.total);
    Device {
        name: nvme.controller.clone(),
        read: bytes("read"),
        write: bytes("write"),
        requests: sum(io().map(|o| o.completed.per_second)),
        latency: merged(io().map(|o| &o.latency)),
        depth: nvme.in_flight,
        errors: nvme.errors.total,
        new_errors: grew(&nvme.errors),
        nvme: Some(NvmeTrouble {
            retries: total(&nvme.retries),
            timeouts: total(&nvme.timeouts),
            resets: total(&nvme.resets),
            fill: nvme.fill_ratio,
        }),
        total: nvme.operations.iter().map(|o| o.completed.total).sum(),
    }
}

/// Whether a counter rose in the interval.
pub fn grew(count: &Count) -> bool {
    count.per_second.is_some_and(|rate| rate > 0.0)
}

/// A sum that is unknown when a part is.
pub fn sum(mut parts: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    // Not `sum()`: the empty sum of floats is -0.
    parts.try_fold(0.0, |all, part| Some(all + part?))
}

/// Latencies added up slot by slot.
pub fn merged<'a>(parts: impl Iterator<Item = &'a Latency>) -> Histogram {
    let mut all = Histogram::default();
    for part in parts {
        add_slots(&mut all.slots, &part.slots);
    }
    all
}

/// Adds `part` to `all`, slot by slot.
pub fn add_slots(all: &mut Vec<u64>, part: &[u64]) {
    if all.len() < part.len() {
        all.resize(part.len(), 0);
    }
    all.iter_mut().zip(part).for_each(|(a, p)| *a = a.saturating_add(*p));
}

/// Bytes per second, or a dash where unknown.
pub fn rate_text(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".into(), units::bytes_per_second)
}

/// A count per second: `12.4 k/s`, or a dash where unknown.
pub fn per_second_text(rate: Option<f64>) -> String {
    match rate {
        None => "-".into(),
        Some(r) if r >= 999_500.0 => format!("{:.1}M/s", r / 1e6),
        Some(r) if r >= 9_999.5 => format!("{:.0}k/s", r / 1e3),
        Some(r) if r > 0.0 && r < 9.95 => format!("{r:.1}/s"),
        Some(r) => format!("{r:.0}/s"),
    }
}

/// A quantile; `>16.8 s` past the end of the scale, a dash where there is none.
pub fn quantile_text(latency: &Histogram, q: f64) -> String {
    match latency.quantile_ns(q) {
        None => "-".into(),
        Some(u64::MAX) => ">16.8 s".into(),
        Some(ns) => units::duration_ns(ns),
    }
}

/// A number, or a dash where unknown.
pub fn number_text(n: Option<u64>) -> String {
    n.map_or_else(|| "-".into(), |n| n.to_string())
}

/// Wall-clock time in UTC: `12:00:01Z`. Logs of several hosts are compared, so no time zone.
pub fn clock_text(realtime_ns: u64) -> String {
    let second = realtime_ns / 1_000_000_000;
    format!("{:02}:{:02}:{:02}Z", second / 3600 % 24, second / 60 % 60, second % 60)
}

/// The plain view: a line per busy device and interval, under a heading that comes back now and then.
#[derive(Debug, Default)]
pub struct Lines {
    printed: usize,
    /// The last sentence, which is not said again.
    said: Option<String>,
    /// What was said to be not watched.
    missing: Vec<String>,
}

impl Lines {
    /// Lines after which the heading is printed again: a screenful.
    const SCREEN: usize = 22;

    /// The lines of one interval.
    pub fn of(&mut self, state: &State) -> Vec<String> {
        let mut lines = self.devices(state);
        lines.extend(iommu(state));
        lines.extend(news(state));
        lines.extend(self.newly_missing(state));
        self.printed += lines.len();
        lines
    }

    /// What stopped being watched, said once: a probe that the watchdog took off must not look like an idle disk.
    fn newly_missing(&mut self, state: &State) -> Vec<String> {
        let reasons = if is_blind(state) { &[][..] } else { &state.health.reasons[..] };
        // Events that were missed are news of every interval, and told there.
        let probes = reasons.iter().filter(|r| r.starts_with("required probe "));
        let new: Vec<String> = probes.filter(|r| !self.missing.contains(r)).cloned().collect();
        self.missing.extend(new.iter().cloned());
        let time = clock_text(state.at.realtime_ns);
        new.into_iter().map(|reason| format!("{time} not all is watched: {reason}")).collect()
    }

    fn devices(&mut self, state: &State) -> Vec<String> {
        let time = clock_text(state.at.realtime_ns);
        let disks = block_devices(state).into_iter().chain(nvme_controllers(state));
        let devices: Vec<Device> = disks.chain(state.nvme.iter().flatten().flat_map(few_queues)).collect();
        let busy: Vec<&Device> = devices.iter().filter(|d| d.requests.is_none_or(|r| r > 0.0)).collect();
        let sentence = if is_blind(state) {
            format!("nothing is watched: {}", why_blind(state))
        } else if state.interval_ns.is_none() {
            let what = if devices.is_empty() { "block I/O".into() } else { names(&devices) };
            format!("watching {what}; the first rates come after an interval")
        } else if busy.is_empty() {
            match &devices[..] {
                [] => "no I/O on any device since the start".into(),
                some => format!("no I/O on {}", names(some)),
            }
        } else {
            self.said = None;
            return self.table(&time, &busy);
        };
        // Hours of an idle or blind host are one line.
        if self.said.as_ref() == Some(&sentence) {
            return Vec::new();
        }
        let line = format!("{time} {sentence}");
        self.said = Some(sentence);
        // The next table needs its heading.
        self.printed = Self::SCREEN;
        vec![line]
    }

    fn table(&mut self, time: &str, busy: &[&Device]) -> Vec<String> {
        let mut lines = Vec::new();
        if self.printed == 0 || self.printed >= Self::SCREEN {
            self.printed = 0;
            lines.push(format!(
                "{:<9} {:<12} {:>9} {:>10} {:>10} {:>8} {:>8} {:>6} {:>7}",
                "TIME", "DEVICE", "REQUESTS", "READ", "WRITE", "p50", "p99", "DEPTH", "ERRORS"
            ));
        }
        lines.extend(busy.iter().map(|d| {
            format!(
                "{time:<9} {:<12} {:>9} {:>10} {:>10} {:>8} {:>8} {:>6} {:>7}",
                d.name,
                per_second_text(d.requests),
                rate_text(d.read),
                rate_text(d.write),
                quantile_text(&d.latency, 0.5),
                quantile_text(&d.latency, 0.99),
                number_text(d.depth),
                d.errors
            )
        }));
        lines
    }
}

/// I/O queues for which there is room in the plain view.
const FEW: usize = 4;

/// The I/O queues of a controller that uses few of them.
fn few_queues(nvme: &Nvme) -> Vec<Device> {
    let used: Vec<_> = nvme.queues.iter().filter(|q| q.queue != 0 && grew(&q.completed)).collect();
    let of_queue = |q: &&NvmeQueue| Device {
        name: format!("{} q{}", nvme.controller, q.queue),
        read: None,
        write: None,
        requests: q.completed.per_second,
        latency: merged(std::iter::once(&q.latency)),
        depth: None,
        errors: 0,
        new_errors: false,
        nvme: None,
        total: q.completed.total,
    };
    if used.len() > FEW { Vec::new() } else { used.iter().map(of_queue).collect() }
}

/// The IOMMU's line, while it is watched and busy.
fn iommu(state: &State) -> Option<String> {
    let iommu = state.iommu.as_ref().filter(|i| grew(&i.maps) || grew(&i.unmaps))?;
    Some(format!(
        "{} IOMMU maps {} ({}), unmaps {} ({})",
        clock_text(state.at.realtime_ns),
        per_second_text(iommu.maps.per_second),
        rate_text(iommu.mapped_bytes.per_second),
        per_second_text(iommu.unmaps.per_second),
        rate_text(iommu.unmapped_bytes.per_second),
    ))
}

fn names(devices: &[Device]) -> String {
    devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether neither block devices nor NVMe controllers are watched.
pub fn is_blind(state: &State) -> bool {
    state.block.is_none() && state.nvme.is_none()
}

fn why_blind(state: &State) -> String {
    state.health.reasons.first().cloned().unwrap_or_else(|| "no probe is on".into())
}

/// What happened in the interval that must not be missed: Xids, IOMMU faults, dropped events.
pub fn news(state: &State) -> Vec<String> {
    let time = clock_text(state.at.realtime_ns);
    let xids = state.xid.iter().flatten().filter(|x| grew(&x.count)).map(|x| {
        let name = if x.nvswitch { "SXid" } else { "Xid" };
        format!("{time} {name} {} on {} ({} since the start)", x.code, x.pci, x.count.total)
    });
    let faults = state.iommu_faults.iter().flatten().filter(|f| grew(&f.count)).map(|f| {
        format!(
            "{time} IOMMU fault on {} ({} since the start)",
            f.pci.as_deref().unwrap_or("unknown device"),
            f.count.total
        )
    });
    let dropped = state.dropped.iter().filter(|d| grew(&d.count)).map(|d| {
        format!(
            "{time} events of {} were dropped: {} ({} since the start)",
            d.source, d.reason, d.count.total
        )
    });
    xids.chain(faults).chain(dropped).collect()
}

#[cfg(test)]
pub(crate) mod tests;
