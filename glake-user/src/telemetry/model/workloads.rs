//! Owners of block I/O, gathered into workloads.

use super::{View, count};
use crate::{
    events::sample::{Operation, Owner, OwnerIo},
    host::{inventory::Inventory, workload::Workload},
    telemetry::state::{Attribution, WorkloadIo},
};
use std::collections::BTreeMap;

/// Commands and processes shown per workload.
const COMMANDS: usize = 4;
const PIDS: usize = 8;

/// What an owner is to the metrics: a workload, or nobody that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IsWorkload {
    /// It belongs to this workload.
    Named(Workload),
    /// A task outside of any unit, pod or job.
    Unnamed,
    /// Requests of several owners at once.
    Shared,
    /// Nobody could be told.
    Unknown,
}

/// The workload of an owner.
pub fn workload_of(owner: &OwnerIo, host: &Inventory) -> IsWorkload {
    match (&owner.owner, &owner.cgroup_path) {
        (Owner::Shared, _) => IsWorkload::Shared,
        (Owner::Unknown, _) | (Owner::Writeback { .. }, None) => IsWorkload::Unknown,
        (Owner::Task { .. } | Owner::Writeback { .. }, path) => workload_at(path.as_deref(), true, host),
    }
}

/// The workload of a process by the path of its cgroup. `known`: whether it could be told which process it is.
pub fn workload_at(cgroup_path: Option<&str>, known: bool, host: &Inventory) -> IsWorkload {
    let Some(path) = cgroup_path else {
        return if known { IsWorkload::Unnamed } else { IsWorkload::Unknown };
    };
    let workload = Workload::of_cgroup(path, &host.containers);
    if workload == Workload::OTHER { IsWorkload::Unnamed } else { IsWorkload::Named(workload) }
}

#[derive(Default)]
struct Sum {
    attribution: Option<Attribution>,
    commands: Vec<String>,
    pids: Vec<u32>,
    cgroup: Option<String>,
    devices: Vec<String>,
    read: (u64, u64),
    write: (u64, u64),
    requests: (u64, u64),
    wait_ns: u64,
}

impl View<'_> {
    pub(super) fn workloads(&self) -> Option<Vec<WorkloadIo>> {
        let (newer, grown) = (self.newer.owners.as_ref()?, self.grown.owners.as_ref()?);
        let mut sums: BTreeMap<(IsWorkload, String), Sum> = BTreeMap::new();
        for (total, growth) in newer.iter().zip(grown) {
            let workload = workload_of(total, self.host);
            // Tasks without a unit are told apart by command on screens, and are all `other` in the metrics.
            let name = match (&workload, &total.owner) {
                (IsWorkload::Named(workload), _) => workload.title(),
                (IsWorkload::Unnamed, Owner::Task { comm, .. }) => comm.clone(),
                (IsWorkload::Unnamed, _) => "written back, no unit".to_owned(),
                (IsWorkload::Shared, _) => "shared".to_owned(),
                (IsWorkload::Unknown, Owner::Writeback { .. }) => "unknown (writeback)".to_owned(),
                (IsWorkload::Unknown, _) => "unknown".to_owned(),
            };
            sums.entry((workload, name)).or_default().take(total, growth);
        }
        let seconds = self.seconds(self.older.owners.is_some(), "owners");
        let mut items: Vec<WorkloadIo> =
            sums.into_iter().map(|((workload, name), sum)| sum.finish(workload, name, seconds)).collect();
        // Busiest first; the total decides where there is no rate yet.
        let rate = |w: &WorkloadIo| w.read.per_second.unwrap_or(0.0) + w.write.per_second.unwrap_or(0.0);
        let total = |w: &WorkloadIo| w.read.total.saturating_add(w.write.total);
        items.sort_by(|a, b| {
            rate(b).total_cmp(&rate(a)).then(total(b).cmp(&total(a))).then(a.name.cmp(&b.name))
        });
        Some(items)
    }
}

impl Sum {
    fn take(&mut self, total: &OwnerIo, growth: &OwnerIo) {
        let attribution = match total.owner {
            Owner::Task { .. } => Attribution::Task,
            Owner::Writeback { .. } if total.cgroup_path.is_some() => Attribution::Writeback,
            Owner::Shared => Attribution::Shared,
            Owner::Writeback { .. } | Owner::Unknown => Attribution::Unknown,
        };
        self.attribution = match self.attribution {
            Some(known) if known != attribution => Some(Attribution::Mixed),
            _ => Some(attribution),
        };
        if let Owner::Task { tgid, comm, .. } = &total.owner {
            insert(&mut self.commands, comm.clone(), COMMANDS);
            insert(&mut self.pids, *tgid, PIDS);
        }
        self.cgroup = self.cgroup.take().or_else(|| total.cgroup_path.clone());
        for (total, growth) in total.io.iter().zip(&growth.io) {
            let pair = match total.operation {
                Operation::Read => Some(&mut self.read),
                Operation::Write => Some(&mut self.write),
                Operation::Flush | Operation::Discard | Operation::Other => None,
            };
            if let Some(pair) = pair {
                *pair = (pair.0 + total.bytes, pair.1 + growth.bytes);
            }
            self.requests = (self.requests.0 + total.completed, self.requests.1 + growth.completed);
            self.wait_ns += growth.wait_ns;
            if growth.completed > 0 {
                insert(&mut self.devices, total.device.clone(), usize::MAX);
            }
        }
    }

    fn finish(self, workload: IsWorkload, name: String, seconds: Option<f64>) -> WorkloadIo {
        let of = |(total, growth)| count(total, growth, seconds);
        let waited = self.requests.1 > 0 && seconds.is_some();
        WorkloadIo {
            name,
            workload: if let IsWorkload::Named(workload) = workload { workload } else { Workload::OTHER },
            attribution: self.attribution.unwrap_or(Attribution::Unknown),
            commands: self.commands,
            pids: self.pids,
            cgroup: self.cgroup,
            devices: self.devices,
            read: of(self.read),
            write: of(self.write),
            requests: of(self.requests),
            mean_wait_ns: waited.then(|| self.wait_ns as f64 / self.requests.1 as f64),
        }
    }
}

/// Keeps a list sorted, without doubles and short.
fn insert<T: Ord>(list: &mut Vec<T>, item: T, most: usize) {
    if list.len() < most
        && let Err(at) = list.binary_search(&item)
    {
        list.insert(at, item);
    }
}
