//! UVM page faults and page migrations by GPU and by workload.

use super::{Both, IsWorkload, View, count, latency, plus, workload_at};
use crate::{
    events::sample::{Histogram, UvmSpace},
    host::workload::Workload,
    telemetry::state::{Uvm, UvmGpu, UvmWorkload},
};
use std::collections::BTreeMap;

#[derive(Default)]
struct Gpu {
    faults: Both,
    duplicates: Both,
    to_gpu: Both,
    to_cpu: Both,
    evicted: Both,
    /// What the fault service did in the interval. `None`: not watched.
    service: Option<Histogram>,
}

#[derive(Default)]
struct Work {
    gpu_faults: Both,
    cpu_faults: Both,
    moved: Both,
    evicted: Both,
    /// `None`: not watched.
    thrashing: Option<Both>,
    commands: Vec<String>,
}

impl View<'_> {
    pub(super) fn uvm(&self) -> Option<Uvm> {
        let (newer, grown) = (self.newer.uvm.as_ref()?, self.grown.uvm.as_ref()?);
        let seconds = self.seconds(self.older.uvm.is_some(), "uvm");
        let mut gpus: BTreeMap<Option<String>, Gpu> = BTreeMap::new();
        // A GPU that does not page is listed too.
        for gpu in &self.host.gpus {
            gpus.entry(gpu.uuid.clone()).or_default();
        }
        for gpu in &grown.gpus {
            let known = gpus.entry(gpu.uuid.clone()).or_default();
            if let Some(service) = &gpu.service {
                known.service.get_or_insert_default().add(service);
            }
        }
        let mut workloads: BTreeMap<String, Work> = BTreeMap::new();
        for (total, growth) in newer.spaces.iter().zip(&grown.spaces) {
            if total.processor > 0 {
                take_gpu(gpus.entry(self.uuid_of(total)).or_default(), total, growth);
            }
            take_work(workloads.entry(self.work_of(total)).or_default(), total, growth);
        }
        let cpu: (u64, u64) = newer.spaces.iter().zip(&grown.spaces).fold((0, 0), |sum, (t, g)| {
            (sum.0 + t.cpu_faults.iter().sum::<u64>(), sum.1 + g.cpu_faults.iter().sum::<u64>())
        });
        Some(Uvm {
            cpu_faults: count(cpu.0, cpu.1, seconds),
            gpus: gpus.into_iter().map(|(uuid, gpu)| self.gpu(uuid, gpu, seconds)).collect(),
            workloads: sorted(workloads, seconds),
        })
    }

    /// The UUID of the processor; on a host with one GPU it can only be that one.
    fn uuid_of(&self, space: &UvmSpace) -> Option<String> {
        match (&space.uuid, self.host.gpus.as_slice()) {
            (Some(uuid), _) => Some(uuid.clone()),
            (None, [only]) => only.uuid.clone(),
            (None, _) => None,
        }
    }

    fn work_of(&self, space: &UvmSpace) -> String {
        match workload_at(space.cgroup_path.as_deref(), space.tgid.is_some(), self.host) {
            IsWorkload::Named(workload) => workload.title(),
            IsWorkload::Unnamed if !space.comm.is_empty() => space.comm.clone(),
            IsWorkload::Unnamed => Workload::OTHER.title(),
            IsWorkload::Shared | IsWorkload::Unknown => "unknown".to_owned(),
        }
    }

    fn gpu(&self, uuid: Option<String>, gpu: Gpu, seconds: Option<f64>) -> UvmGpu {
        let of = |(total, growth)| count(total, growth, seconds);
        let found = self.host.gpus.iter().find(|g| uuid.is_some() && g.uuid == uuid);
        let share = gpu.service.as_ref().zip(seconds).map(|(h, s)| h.sum_ns as f64 / 1e9 / s);
        UvmGpu {
            pci: found.map(|g| g.pci.clone()),
            uuid,
            faults: of(gpu.faults),
            duplicates: of(gpu.duplicates),
            to_gpu_bytes: of(gpu.to_gpu),
            to_cpu_bytes: of(gpu.to_cpu),
            evicted_bytes: of(gpu.evicted),
            service: gpu.service.as_ref().map(latency),
            service_share: share,
        }
    }
}

fn take_gpu(gpu: &mut Gpu, total: &UvmSpace, growth: &UvmSpace) {
    plus(&mut gpu.faults, total.gpu_faults.total(), growth.gpu_faults.total());
    plus(&mut gpu.duplicates, total.duplicates, growth.duplicates);
    for (total, growth) in total.moved.iter().zip(&growth.moved) {
        let way = match total.direction.as_str() {
            "to_gpu" => Some(&mut gpu.to_gpu),
            "to_cpu" => Some(&mut gpu.to_cpu),
            _ => None,
        };
        if let Some(way) = way {
            plus(way, total.bytes, growth.bytes);
        }
        if total.cause == "eviction" {
            plus(&mut gpu.evicted, total.bytes, growth.bytes);
        }
    }
}

fn take_work(work: &mut Work, total: &UvmSpace, growth: &UvmSpace) {
    plus(&mut work.gpu_faults, total.gpu_faults.total(), growth.gpu_faults.total());
    plus(&mut work.cpu_faults, total.cpu_faults.iter().sum(), growth.cpu_faults.iter().sum());
    for (total, growth) in total.moved.iter().zip(&growth.moved) {
        plus(&mut work.moved, total.bytes, growth.bytes);
        if total.cause == "eviction" {
            plus(&mut work.evicted, total.bytes, growth.bytes);
        }
    }
    if let (Some(total), Some(growth)) = (total.thrashing, growth.thrashing) {
        plus(work.thrashing.get_or_insert_default(), total, growth);
    }
    const COMMANDS: usize = 4;
    if !total.comm.is_empty() && !work.commands.contains(&total.comm) && work.commands.len() < COMMANDS {
        work.commands.push(total.comm.clone());
    }
}

/// Most bytes moved in the interval first; the total decides between equals.
fn sorted(workloads: BTreeMap<String, Work>, seconds: Option<f64>) -> Vec<UvmWorkload> {
    let mut all: Vec<(String, Work)> = workloads.into_iter().collect();
    all.sort_by(|(a_name, a), (b_name, b)| {
        (b.moved.1, b.moved.0, b.gpu_faults.0, a_name).cmp(&(a.moved.1, a.moved.0, a.gpu_faults.0, b_name))
    });
    let of = |(total, growth)| count(total, growth, seconds);
    all.into_iter()
        .map(|(name, work)| UvmWorkload {
            name,
            commands: work.commands,
            gpu_faults: of(work.gpu_faults),
            cpu_faults: of(work.cpu_faults),
            moved_bytes: of(work.moved),
            evicted_bytes: of(work.evicted),
            thrashing: work.thrashing.map(of),
        })
        .collect()
}
