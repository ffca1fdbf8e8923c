//! GLake's allocator and copies in the host's processes.

use super::super::{
    ledger::{Labels, Ledger},
    table::{
        ALLOCATOR_ALLOCATED, ALLOCATOR_CALLS, ALLOCATOR_FALLBACKS, ALLOCATOR_OOM, ALLOCATOR_REMAPPED,
        ALLOCATOR_RESERVED, COPY_BYTES, COPY_DURATION,
    },
};
use super::xid::identity;
use crate::{
    events::{heaps::HeapProcess, sample::Sample},
    host::{inventory::Inventory, pci, workload::Workload},
    telemetry::model::{IsWorkload, workload_at},
};
use std::collections::BTreeMap;

/// The calls with a series of their own; events and waits are `other`.
const CALLS: [&str; 6] = ["create", "map", "set_access", "unmap", "release", "other"];

fn processes(grown: &Sample) -> impl Iterator<Item = &HeapProcess> {
    grown.heaps.iter().flat_map(|h| &h.processes).filter(|p| p.said.allocates())
}

fn who(process: &HeapProcess, host: &Inventory) -> IsWorkload {
    workload_at(process.cgroup_path.as_deref(), true, host)
}

/// The labels of a GPU; none where the process could not name it.
fn labels_of(pci: Option<&str>, host: &Inventory) -> Labels {
    let Some(address) = pci else { return Labels::new() };
    let unlisted = || pci::dcgm(address).map(|pci| ("pci_bus_id", pci)).into_iter().collect();
    host.gpu(address).map_or_else(unlisted, identity)
}

/// What grew. Every series of a process exists at 0 from its first reading on.
pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    for process in processes(grown) {
        let who = who(process, host);
        let fallbacks = (&ALLOCATOR_FALLBACKS, Labels::new());
        ledger.workloads.book(&who, fallbacks, process.said.fallbacks, 0);
        for heap in &process.said.gpus {
            let labels = labels_of(heap.pci.as_deref(), host);
            let with = |name, value: &str| -> Labels {
                labels.iter().cloned().chain([(name, value.to_owned())]).collect()
            };
            // Memory held makes a workload worth a name, as long as it is held.
            let held = if process.silent { 0 } else { heap.reserved_bytes };
            ledger.workloads.book(&who, (&ALLOCATOR_REMAPPED, labels.clone()), heap.remapped_bytes, held);
            for (outcome, n) in [("raised", heap.ooms), ("avoided", heap.ooms_avoided)] {
                ledger.workloads.book(&who, (&ALLOCATOR_OOM, with("outcome", outcome)), n, 0);
            }
            for call in CALLS {
                let is_it = |name: &str| call == name || call == "other" && !CALLS.contains(&name);
                let made = heap.driver_calls.iter().filter(|(name, _)| is_it(name));
                let made = made.fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
                ledger.workloads.book(&who, (&ALLOCATOR_CALLS, with("call", call)), made, 0);
            }
        }
    }
}

/// What was copied.
pub(super) fn copies(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    for copies in grown.heaps.iter().flat_map(|h| &h.copies) {
        let mut labels = labels_of(copies.pci.as_deref(), host);
        labels.push(("direction", copies.direction.name().to_owned()));
        labels.push(("route", copies.route.name().to_owned()));
        ledger.count(&COPY_BYTES, labels, copies.bytes);
        let route = vec![("route", copies.route.name().to_owned())];
        ledger.observe(&COPY_DURATION, route, &copies.duration);
    }
}

/// What is held now, once names are settled: a workload without one is in `other`.
pub(super) fn held(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    let mut sums: BTreeMap<Labels, (u64, u64)> = BTreeMap::new();
    for process in processes(grown).filter(|p| !p.silent) {
        let workload = match who(process, host) {
            IsWorkload::Named(workload) if ledger.workloads.names().any(|name| *name == workload) => workload,
            _ => Workload::OTHER,
        };
        for heap in &process.said.gpus {
            let labels = workload.labels().into_iter().chain(labels_of(heap.pci.as_deref(), host)).collect();
            let sum = sums.entry(labels).or_default();
            *sum = (sum.0.saturating_add(heap.allocated_bytes), sum.1.saturating_add(heap.reserved_bytes));
        }
    }
    for (labels, (allocated, reserved)) in sums {
        ledger.gauge(&ALLOCATOR_ALLOCATED, labels.clone(), allocated as f64);
        ledger.gauge(&ALLOCATOR_RESERVED, labels, reserved as f64);
    }
}
