//! What GLake's allocator holds, by workload and GPU.

use super::{Both, IsWorkload, View, count, plus, workload_at};
use crate::{
    events::heaps::{HeapGpu, HeapProcess},
    host::workload::Workload,
    telemetry::state::Allocator,
};
use std::collections::BTreeMap;

/// Commands and processes shown per row.
const COMMANDS: usize = 4;
const PIDS: usize = 8;

#[derive(Default)]
struct Sum {
    processes: u64,
    pids: Vec<u32>,
    commands: Vec<String>,
    allocated: u64,
    reserved: u64,
    remapped: Both,
    driver_calls: Both,
    ooms: Both,
    avoided: Both,
    fallbacks: Both,
}

impl View<'_> {
    pub(super) fn allocators(&self) -> Option<Vec<Allocator>> {
        let (newer, grown) = (self.newer.heaps.as_ref()?, self.grown.heaps.as_ref()?);
        let mut sums: BTreeMap<(Workload, String, Option<String>), Sum> = BTreeMap::new();
        let pairs = newer.processes.iter().zip(&grown.processes);
        for (total, growth) in pairs.filter(|(p, _)| !p.silent && p.said.allocates()) {
            let (workload, name) = self.who_holds(total);
            // A process that only ever fell back has no heap; it is told all the same.
            let nothing = [HeapGpu::default()];
            let heaps =
                |p: &HeapProcess| if p.said.gpus.is_empty() { nothing.to_vec() } else { p.said.gpus.clone() };
            for (i, (heap, grown)) in heaps(total).iter().zip(&heaps(growth)).enumerate() {
                let sum = sums.entry((workload.clone(), name.clone(), heap.pci.clone())).or_default();
                sum.take(total, heap, grown);
                if i == 0 {
                    plus(&mut sum.fallbacks, total.said.fallbacks, growth.said.fallbacks);
                }
            }
        }
        let seconds = self.seconds(self.older.heaps.is_some(), "heaps");
        let row = |((workload, name, pci), sum): ((Workload, String, Option<String>), Sum)| {
            let uuid = pci.as_deref().and_then(|pci| self.host.gpu(pci)).and_then(|gpu| gpu.uuid.clone());
            sum.finish(Allocator { name, workload, pci, uuid, ..nobody() }, seconds)
        };
        let mut rows: Vec<Allocator> = sums.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.reserved_bytes.cmp(&a.reserved_bytes).then(a.name.cmp(&b.name)));
        Some(rows)
    }

    /// The workload and its name on screens: those that belong to none are told apart by command.
    fn who_holds(&self, process: &HeapProcess) -> (Workload, String) {
        match workload_at(process.cgroup_path.as_deref(), true, self.host) {
            IsWorkload::Named(workload) => (workload.clone(), workload.title()),
            _ => (Workload::OTHER, process.comm.clone()),
        }
    }
}

fn nobody() -> Allocator {
    let zero = count(0, 0, None);
    Allocator {
        name: String::new(),
        workload: Workload::OTHER,
        pci: None,
        uuid: None,
        processes: 0,
        pids: Vec::new(),
        commands: Vec::new(),
        allocated_bytes: 0,
        reserved_bytes: 0,
        allocated_to_reserved_ratio: None,
        remapped_bytes: zero,
        driver_calls: zero,
        ooms: zero,
        ooms_avoided: zero,
        fallbacks: zero,
    }
}

impl Sum {
    fn take(&mut self, process: &HeapProcess, heap: &HeapGpu, grown: &HeapGpu) {
        self.processes += 1;
        if self.pids.len() < PIDS {
            self.pids.push(process.pid);
        }
        if self.commands.len() < COMMANDS && !self.commands.contains(&process.comm) {
            self.commands.push(process.comm.clone());
        }
        self.allocated = self.allocated.saturating_add(heap.allocated_bytes);
        self.reserved = self.reserved.saturating_add(heap.reserved_bytes);
        let calls = |heap: &HeapGpu| heap.driver_calls.values().fold(0_u64, |sum, n| sum.saturating_add(*n));
        plus(&mut self.remapped, heap.remapped_bytes, grown.remapped_bytes);
        plus(&mut self.driver_calls, calls(heap), calls(grown));
        plus(&mut self.ooms, heap.ooms, grown.ooms);
        plus(&mut self.avoided, heap.ooms_avoided, grown.ooms_avoided);
    }

    fn finish(self, row: Allocator, seconds: Option<f64>) -> Allocator {
        let of = |(total, growth)| count(total, growth, seconds);
        Allocator {
            processes: self.processes,
            pids: self.pids,
            commands: self.commands,
            allocated_bytes: self.allocated,
            reserved_bytes: self.reserved,
            allocated_to_reserved_ratio: (self.reserved > 0)
                .then(|| self.allocated as f64 / self.reserved as f64),
            remapped_bytes: of(self.remapped),
            driver_calls: of(self.driver_calls),
            ooms: of(self.ooms),
            ooms_avoided: of(self.avoided),
            fallbacks: of(self.fallbacks),
            ..row
        }
    }
}
