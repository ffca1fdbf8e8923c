//! Two readings become one [`State`]: a pure function, the same for live, recorded and tested readings.

mod devices;
mod health;
mod heaps;
mod nvme;
mod uvm;
mod workloads;

pub use health::coverage;
pub(super) use nvme::{busiest, fill_ratio};
pub use nvme::{opcode_name, operation_of};
pub use workloads::{IsWorkload, workload_at, workload_of};

use super::{
    difference::Difference,
    state::{Cost, Count, Latency, SCHEMA, State},
};
use crate::{
    events::sample::{Histogram, Sample},
    host::inventory::Inventory,
};
use glake_common::hist::{SLOTS, upper_us};

impl State {
    /// The interval from `older` to `newer`. With an empty `older` ([`Sample::default`]) it is the first reading:
    /// totals are there and every rate is unknown.
    pub fn between(older: &Sample, newer: &Sample, host: &Inventory) -> State {
        State::of(older, newer, &Difference::between(older, newer), host)
    }

    /// The same where the difference is known already.
    pub fn of(older: &Sample, newer: &Sample, difference: &Difference, host: &Inventory) -> State {
        let first = older.at.monotonic_ns == 0;
        let interval_ns =
            newer.at.monotonic_ns.checked_sub(older.at.monotonic_ns).filter(|ns| *ns > 0 && !first);
        let view = View { older, newer, grown: &difference.grown, difference, host, interval_ns };
        let mut host = host.clone();
        host.containers.clear();
        State {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").into(),
            at: newer.at,
            interval_ns,
            health: health::health(&view),
            coverage: coverage(&newer.probes),
            probes: newer.probes.clone(),
            block: view.block(),
            workloads: view.workloads(),
            nvme: view.nvme(),
            iommu: view.iommu(),
            iommu_faults: view.iommu_faults(),
            dma: view.dma(),
            swiotlb: view.swiotlb(),
            aer: newer.aer.clone(),
            io_uring_punted: view.io_uring(),
            xid: view.xid(),
            uvm: view.uvm(),
            allocators: view.allocators(),
            nvml: newer.nvml.clone(),
            findings: Vec::new(),
            dropped: view.dropped(),
            events: Vec::new(),
            cost: view.cost(),
            agent: None,
            restarted: difference.restarted.clone(),
            host,
        }
    }
}

/// What the parts of the model look at.
struct View<'a> {
    older: &'a Sample,
    newer: &'a Sample,
    grown: &'a Sample,
    difference: &'a Difference,
    host: &'a Inventory,
    interval_ns: Option<u64>,
}

impl View<'_> {
    /// The seconds that a thing's growth took. `None`: no interval, its section was not read before, or its counters fell.
    fn seconds(&self, read_before: bool, thing: &str) -> Option<f64> {
        let known = read_before && !self.difference.is_restarted(thing);
        self.interval_ns.filter(|_| known).map(|ns| ns as f64 / 1e9)
    }

    fn cost(&self) -> Cost {
        let seconds = self.seconds(self.older.cost.ebpf_run_time_ns.is_some(), "cost");
        let spent = self.grown.cost.ebpf_run_time_ns;
        Cost {
            map_bytes: self.newer.cost.map_bytes,
            ebpf_cpus: spent.zip(seconds).map(|(ns, seconds)| ns as f64 / 1e9 / seconds),
        }
    }
}

/// A total and what of it is new.
type Both = (u64, u64);

/// Adds to both. Numbers of other processes may be anything: no sum overflows.
fn plus(sum: &mut Both, total: u64, growth: u64) {
    *sum = (sum.0.saturating_add(total), sum.1.saturating_add(growth));
}

/// A counter from its total, its growth and the time that the growth took.
fn count(total: u64, growth: u64, seconds: Option<f64>) -> Count {
    Count { total, per_second: seconds.map(|s| growth as f64 / s) }
}

fn count_opt(total: Option<u64>, growth: Option<u64>, seconds: Option<f64>) -> Option<Count> {
    Some(count(total?, growth?, seconds))
}

/// A latency summary of what a histogram grew by.
fn latency(grown: &Histogram) -> Latency {
    let count = grown.count();
    let end_of_scale = upper_us(SLOTS - 2).unwrap_or(0) * 1000;
    let quantile = |q| grown.quantile_ns(q).map(|ns| ns.min(end_of_scale));
    Latency {
        count,
        mean_ns: (count > 0).then(|| grown.sum_ns as f64 / count as f64),
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        above_scale: grown.slots.get(SLOTS - 1).copied().unwrap_or(0),
        slots: grown.slots.clone(),
    }
}

#[cfg(test)]
mod tests;
