//! UVM page faults and page migrations: paging of managed memory, by GPU and by workload.

use super::super::{
    ledger::{Labels, Ledger},
    table::{
        UVM_BATCH_SIZE, UVM_CPU_FAULTS, UVM_EVICTIONS, UVM_FATAL, UVM_GPU_FAULTS, UVM_MIGRATED, UVM_REPLAYS,
        UVM_SERVICE, UVM_THRASHING, UVM_THROTTLED,
    },
};
use super::xid::identity;
use crate::{
    events::sample::{Histogram, Sample, Uvm, UvmGpu, UvmSpace},
    host::inventory::Inventory,
    telemetry::model::{IsWorkload, workload_at},
};

pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    let Some(uvm) = &grown.uvm else { return };
    for gpu in &uvm.gpus {
        let labels = labels_of(gpu.uuid.as_deref(), false, host);
        of_gpu(ledger, gpu, labels);
    }
    // A GPU that never faulted has its series too: an alert must tell "none" from "not watched".
    for gpu in &host.gpus {
        let (labels, of) = (identity(gpu), |f: fn(&UvmGpu) -> bool| uvm.gpus.iter().any(f));
        if of(|g| g.service.is_some()) || uvm.gpus.is_empty() {
            ledger.observe(&UVM_SERVICE, labels.clone(), &Histogram::default());
        }
        ledger.count(&UVM_REPLAYS, labels.clone(), 0);
        ledger.workloads.book(&IsWorkload::Unknown, (&UVM_EVICTIONS, labels), 0, 0);
    }
    evictions(ledger, uvm, host);
    for space in &uvm.spaces {
        let who = workload_at(space.cgroup_path.as_deref(), space.tgid.is_some(), host);
        of_space(ledger, space, &who, host);
    }
}

/// The labels of a GPU. `faulted`: the driver told its number and not its UUID, so the host's only one is meant.
fn labels_of(uuid: Option<&str>, faulted: bool, host: &Inventory) -> Labels {
    let known = uuid.and_then(|uuid| host.gpus.iter().find(|g| g.uuid.as_deref() == Some(uuid)));
    let only = if let ([only], true) = (host.gpus.as_slice(), faulted) { Some(only) } else { None };
    match (known.or(only.filter(|_| uuid.is_none())), uuid) {
        (Some(gpu), _) => identity(gpu),
        (None, Some(uuid)) => vec![("UUID", uuid.to_owned())],
        (None, None) => Labels::new(),
    }
}

fn of_gpu(ledger: &mut Ledger, gpu: &UvmGpu, labels: Labels) {
    if let Some(service) = &gpu.service {
        ledger.observe(&UVM_SERVICE, labels.clone(), service);
    }
    if let (Some(batches), Some(faults)) = (&gpu.batches, gpu.batched_faults) {
        ledger.sizes(&UVM_BATCH_SIZE, labels.clone(), batches, faults);
    }
    if let Some(replays) = gpu.replays {
        ledger.count(&UVM_REPLAYS, labels, replays);
    }
}

/// Evictions by the workload that lost the chunk. The driver counts a chunk when it begins to push it out and names its owner with
/// its first page that moves, so a reading may fall between the two: only what has no owner one reading later is nobody's.
fn evictions(ledger: &mut Ledger, uvm: &Uvm, host: &Inventory) {
    const CHUNK: u64 = 2 << 20;
    let before = std::mem::take(&mut ledger.evictions_owed);
    let mut owed = before.clone();
    for gpu in &uvm.gpus {
        *owed.entry(gpu.uuid.clone()).or_default() += signed(gpu.evictions.unwrap_or(0));
    }
    for space in &uvm.spaces {
        let Some(n) = space.evictions.filter(|n| *n > 0) else { continue };
        // Without BTF the driver's structures do not tell which GPU a chunk is of.
        let told = uvm.gpus.iter().any(|g| g.uuid == space.uuid);
        let of = if told { space.uuid.clone() } else { None };
        *owed.entry(of).or_default() -= signed(n);
        let who = workload_at(space.cgroup_path.as_deref(), space.tgid.is_some(), host);
        let labels = labels_of(space.uuid.as_deref(), space.processor > 0, host);
        ledger.workloads.book(&who, (&UVM_EVICTIONS, labels), n, n.saturating_mul(CHUNK));
    }
    for (uuid, owed) in &mut owed {
        let nobodys = before.get(uuid).copied().unwrap_or(0).min(*owed).max(0);
        *owed -= nobodys;
        let labels = labels_of(uuid.as_deref(), false, host);
        ledger.workloads.book(&IsWorkload::Unknown, (&UVM_EVICTIONS, labels), nobodys.unsigned_abs(), 0);
    }
    ledger.evictions_owed = owed;
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn of_space(ledger: &mut Ledger, space: &UvmSpace, who: &IsWorkload, host: &Inventory) {
    const PAGE: u64 = 4096;
    let gpu = labels_of(space.uuid.as_deref(), space.processor > 0, host);
    let with = |name: &'static str, value: &str| {
        let mut labels = gpu.clone();
        labels.push((name, value.to_owned()));
        labels
    };
    let faults = &space.gpu_faults;
    for (access, n) in [
        ("read", faults.read),
        ("write", faults.write),
        ("atomic", faults.atomic),
        ("prefetch", faults.prefetch),
    ] {
        if n > 0 {
            ledger.workloads.book(who, (&UVM_GPU_FAULTS, with("access", access)), n, n * PAGE);
        }
    }
    let cpu: u64 = space.cpu_faults.iter().sum();
    if cpu > 0 {
        ledger.workloads.book(who, (&UVM_CPU_FAULTS, Labels::new()), cpu, cpu * PAGE);
    }
    for moved in space.moved.iter().filter(|m| m.bytes > 0) {
        let mut labels = with("direction", &moved.direction);
        labels.push(("cause", moved.cause.clone()));
        ledger.workloads.book(who, (&UVM_MIGRATED, labels), moved.bytes, moved.bytes);
    }
    if let Some(n) = space.thrashing.filter(|n| *n > 0) {
        ledger.workloads.book(who, (&UVM_THRASHING, Labels::new()), n, 0);
    }
    if let Some(ns) = space.throttled_ns.filter(|ns| *ns > 0) {
        ledger.count(&UVM_THROTTLED, gpu.clone(), ns);
    }
    for (reason, n) in space.fatal.iter().flatten().filter(|(_, n)| *n > 0) {
        ledger.count(&UVM_FATAL, with("reason", reason), *n);
    }
}
