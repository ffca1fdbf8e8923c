//! What happened between two readings. The one place where counters are subtracted.

use crate::events::heaps::{HeapFile, HeapProcess, Heaps};
use crate::events::sample::{
    AerDevice, BlockDevice, BlockOperation, Dropped, Histogram, Iommu, NvmeCommands, NvmeController,
    OwnerDeviceIo, OwnerIo, Sample, UvmGpu, UvmMoved, UvmSpace, trim,
};
use std::collections::BTreeMap;

/// What happened between two readings.
///
/// A counter that fell was started again: its new value is counted whole, since all of it happened after the restart,
/// and the thing it belongs to is listed in `restarted`, because what happened before the restart is unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Difference {
    /// The newer reading with every counter replaced by its growth. What is no counter is as in the newer reading.
    pub grown: Sample,
    /// Things whose counters fell: `block vda`, `nvme nvme0`, `iommu`.
    pub restarted: Vec<String>,
}

impl Difference {
    /// Subtracts `older` from `newer`. A device or section that `older` lacks counts from zero: counters are
    /// cumulative since the source started.
    pub fn between(older: &Sample, newer: &Sample) -> Difference {
        let mut by = By { restarted: Vec::new(), fell: false };
        let mut grown = newer.clone();
        by.block(older, &mut grown);
        by.owners(older, &mut grown);
        by.nvme(older, &mut grown);
        by.dma(older, &mut grown);
        by.rare(older, &mut grown);
        by.uvm(older, &mut grown);
        by.heaps(older, &mut grown);
        by.dropped(&older.dropped, &mut grown.dropped);
        by.number_opt(older.cost.ebpf_run_time_ns, &mut grown.cost.ebpf_run_time_ns);
        by.thing("cost");
        by.probes(older, &mut grown);
        Difference { grown, restarted: by.restarted }
    }

    /// Whether this thing's counters fell.
    pub fn is_restarted(&self, thing: &str) -> bool {
        self.restarted.iter().any(|r| r == thing)
    }
}

struct By {
    restarted: Vec<String>,
    /// Whether a counter of the thing at hand fell.
    fell: bool,
}

impl By {
    fn number(&mut self, older: u64, newer: &mut u64) {
        match newer.checked_sub(older) {
            Some(growth) => *newer = growth,
            None => self.fell = true,
        }
    }

    /// Unknown before and known now: all of it is new, and the start of the interval is unknown.
    fn number_opt(&mut self, older: Option<u64>, newer: &mut Option<u64>) {
        match (older, newer) {
            (Some(older), Some(newer)) => self.number(older, newer),
            (None, Some(_)) => self.fell = true,
            (_, None) => {}
        }
    }

    /// Counts that restart each for itself.
    fn row(&mut self, older: &[u64], newer: &mut Vec<u64>) {
        for (i, n) in newer.iter_mut().enumerate() {
            self.number(older.get(i).copied().unwrap_or(0), n);
        }
        trim(newer);
    }

    /// A histogram restarts as a whole: slots and sum belong together.
    fn histogram(&mut self, older: &Histogram, newer: &mut Histogram) {
        match newer.since(older) {
            Some(grown) => *newer = grown,
            None => self.fell = true,
        }
    }

    fn histogram_opt(&mut self, older: Option<&Histogram>, newer: &mut Option<Histogram>) {
        match (older, newer) {
            (Some(older), Some(newer)) => self.histogram(older, newer),
            (None, Some(_)) => self.fell = true,
            (_, None) => {}
        }
    }

    /// Ends a thing: remembers it if a counter of it fell.
    fn thing(&mut self, name: impl Into<String>) {
        if std::mem::take(&mut self.fell) {
            self.restarted.push(name.into());
        }
    }

    fn block(&mut self, older: &Sample, grown: &mut Sample) {
        let before = index(older.block.as_ref(), |d: &BlockDevice| d.device.as_str());
        for device in grown.block.iter_mut().flatten() {
            if let Some(old) = before.get(device.device.as_str()) {
                self.number_opt(old.requeues, &mut device.requeues);
                self.number_opt(old.merges, &mut device.merges);
                for op in &mut device.operations {
                    if let Some(old) = old.operations.iter().find(|o| o.operation == op.operation) {
                        self.block_operation(old, op);
                    }
                }
            }
            self.thing(format!("block {}", device.device));
        }
    }

    fn block_operation(&mut self, old: &BlockOperation, op: &mut BlockOperation) {
        self.number(old.completed, &mut op.completed);
        self.number(old.bytes, &mut op.bytes);
        self.number(old.errors, &mut op.errors);
        self.histogram_opt(old.queue.as_ref(), &mut op.queue);
        self.histogram_opt(old.device.as_ref(), &mut op.device);
    }

    fn owners(&mut self, older: &Sample, grown: &mut Sample) {
        let before = index(older.owners.as_ref(), |o: &OwnerIo| &o.owner);
        for owner in grown.owners.iter_mut().flatten() {
            let Some(old) = before.get(&owner.owner) else { continue };
            let mut cells: BTreeMap<_, &OwnerDeviceIo> = BTreeMap::new();
            for io in &old.io {
                cells.insert((io.device.as_str(), io.operation), io);
            }
            for io in &mut owner.io {
                if let Some(old) = cells.get(&(io.device.as_str(), io.operation)) {
                    self.number(old.completed, &mut io.completed);
                    self.number(old.bytes, &mut io.bytes);
                    self.number(old.wait_ns, &mut io.wait_ns);
                }
            }
        }
        self.thing("owners");
    }

    fn nvme(&mut self, older: &Sample, grown: &mut Sample) {
        let before = index(older.nvme.as_ref(), |c: &NvmeController| c.controller.as_str());
        for controller in grown.nvme.iter_mut().flatten() {
            if let Some(old) = before.get(controller.controller.as_str()) {
                self.nvme_commands(&old.commands, &mut controller.commands);
                for error in &mut controller.errors {
                    if let Some(old) = old.errors.iter().find(|o| (o.sct, o.sc) == (error.sct, error.sc)) {
                        self.number(old.count, &mut error.count);
                    }
                }
                self.number_opt(old.retries, &mut controller.retries);
                self.number_opt(old.timeouts, &mut controller.timeouts);
                self.number_opt(old.resets, &mut controller.resets);
                self.number_opt(old.async_events, &mut controller.async_events);
                let queues = index(old.queues.as_ref(), |q| q.queue);
                for queue in controller.queues.iter_mut().flatten() {
                    if let Some(old) = queues.get(&queue.queue) {
                        self.number(old.completed, &mut queue.completed);
                    }
                }
            }
            self.thing(format!("nvme {}", controller.controller));
        }
    }

    fn nvme_commands(&mut self, old: &[NvmeCommands], new: &mut [NvmeCommands]) {
        let before: BTreeMap<_, _> = old.iter().map(|c| ((c.queue, c.opcode), c)).collect();
        for commands in new {
            let Some(old) = before.get(&(commands.queue, commands.opcode)) else { continue };
            self.number(old.completed, &mut commands.completed);
            self.number_opt(old.bytes, &mut commands.bytes);
            self.histogram(&old.latency, &mut commands.latency);
        }
    }

    fn dma(&mut self, older: &Sample, grown: &mut Sample) {
        if let (Some(old), Some(new)) = (&older.iommu, &mut grown.iommu) {
            self.iommu(old, new);
        }
        self.thing("iommu");
        let before = index(older.dma.as_ref(), |d| d.device.as_str());
        for device in grown.dma.iter_mut().flatten() {
            if let Some(old) = before.get(device.device.as_str()) {
                self.number(old.maps, &mut device.maps);
                self.number(old.bytes, &mut device.bytes);
                self.number_opt(old.errors, &mut device.errors);
            }
            self.thing(format!("dma {}", device.device));
        }
        let before = index(older.swiotlb.as_ref(), |d| d.device.as_str());
        for device in grown.swiotlb.iter_mut().flatten() {
            if let Some(old) = before.get(device.device.as_str()) {
                self.number(old.bounces, &mut device.bounces);
                self.number(old.bytes, &mut device.bytes);
            }
            self.thing(format!("swiotlb {}", device.device));
        }
    }

    fn iommu(&mut self, old: &Iommu, new: &mut Iommu) {
        self.number(old.maps, &mut new.maps);
        self.number(old.mapped_bytes, &mut new.mapped_bytes);
        self.number(old.unmaps, &mut new.unmaps);
        self.number(old.unmapped_bytes, &mut new.unmapped_bytes);
        self.row(&old.map_sizes, &mut new.map_sizes);
    }

    fn rare(&mut self, older: &Sample, grown: &mut Sample) {
        let before = index(older.iommu_faults.as_ref(), |f| (f.pci.as_deref(), f.source.as_str()));
        for fault in grown.iommu_faults.iter_mut().flatten() {
            if let Some(old) = before.get(&(fault.pci.as_deref(), fault.source.as_str())) {
                self.number(old.count, &mut fault.count);
            }
            self.thing(format!("iommu_faults {}", fault.pci.as_deref().unwrap_or("unknown device")));
        }
        let before = index(older.aer.as_ref(), |d: &AerDevice| d.pci.as_str());
        for device in grown.aer.iter_mut().flatten() {
            if let Some(old) = before.get(device.pci.as_str()) {
                self.number(old.corrected, &mut device.corrected);
                self.number(old.nonfatal, &mut device.nonfatal);
                self.number(old.fatal, &mut device.fatal);
            }
            self.thing(format!("aer {}", device.pci));
        }
        let before = index(older.xid.as_ref(), |x| (x.pci.as_str(), x.nvswitch, x.code, x.source.as_str()));
        for xid in grown.xid.iter_mut().flatten() {
            if let Some(old) = before.get(&(xid.pci.as_str(), xid.nvswitch, xid.code, xid.source.as_str())) {
                self.number(old.count, &mut xid.count);
            }
            self.thing(format!("xid {}", xid.pci));
        }
        if older.io_uring_punted.is_some() {
            self.number_opt(older.io_uring_punted, &mut grown.io_uring_punted);
        }
        self.thing("io_uring");
    }

    fn uvm(&mut self, older: &Sample, grown: &mut Sample) {
        let (Some(old), Some(new)) = (&older.uvm, &mut grown.uvm) else { return };
        for gpu in &mut new.gpus {
            if let Some(old) = old.gpus.iter().find(|g| g.uuid == gpu.uuid) {
                self.uvm_gpu(old, gpu);
            }
        }
        let before: BTreeMap<_, _> = old.spaces.iter().map(|s| ((s.serial, s.processor), s)).collect();
        for space in &mut new.spaces {
            if let Some(old) = before.get(&(space.serial, space.processor)) {
                self.uvm_space(old, space);
            }
        }
        self.thing("uvm");
    }

    fn uvm_gpu(&mut self, old: &UvmGpu, gpu: &mut UvmGpu) {
        self.histogram_opt(old.service.as_ref(), &mut gpu.service);
        if let (Some(old), Some(new)) = (&old.batches, &mut gpu.batches) {
            self.row(old, new);
        }
        self.number_opt(old.batched_faults, &mut gpu.batched_faults);
        self.number_opt(old.replays, &mut gpu.replays);
        self.number_opt(old.evictions, &mut gpu.evictions);
    }

    fn uvm_space(&mut self, old: &UvmSpace, space: &mut UvmSpace) {
        let (was, is) = (old.gpu_faults, &mut space.gpu_faults);
        self.number(was.read, &mut is.read);
        self.number(was.write, &mut is.write);
        self.number(was.atomic, &mut is.atomic);
        self.number(was.prefetch, &mut is.prefetch);
        self.number(old.duplicates, &mut space.duplicates);
        for (was, is) in old.cpu_faults.iter().zip(&mut space.cpu_faults) {
            self.number(*was, is);
        }
        self.number_opt(old.thrashing, &mut space.thrashing);
        self.number_opt(old.throttled_ns, &mut space.throttled_ns);
        self.number_opt(old.evictions, &mut space.evictions);
        for (reason, n) in space.fatal.iter_mut().flatten() {
            if let Some((_, was)) = old.fatal.iter().flatten().find(|(r, _)| r == reason) {
                self.number(*was, n);
            }
        }
        for moved in &mut space.moved {
            let same = |m: &&UvmMoved| (&m.cause, &m.direction) == (&moved.cause, &moved.direction);
            if let Some(was) = old.moved.iter().find(same) {
                let (count, bytes) = (was.count, was.bytes);
                self.number(count, &mut moved.count);
                self.number(bytes, &mut moved.bytes);
            }
        }
    }

    /// What a process counted before it was looked for is not ours to book.
    fn heaps(&mut self, older: &Sample, grown: &mut Sample) {
        let Some(new) = &mut grown.heaps else { return };
        let nothing = Heaps::default();
        let old = older.heaps.as_ref().unwrap_or(&nothing);
        let key = |p: &HeapProcess| (p.pid, p.said.start_ticks);
        let before: BTreeMap<_, _> = old.processes.iter().map(|p| (key(p), p)).collect();
        for process in &mut new.processes {
            let unseen = process.clone();
            let old = match before.get(&key(process)) {
                Some(old) => *old,
                None if older.heaps.is_none() => &unseen,
                None => continue,
            };
            self.heap(&old.said, &mut process.said);
        }
        for copies in &mut new.copies {
            let unseen = copies.clone();
            let before = old.copies.iter().find(|o| o.is_like(copies));
            let before = before.or(older.heaps.is_none().then_some(&unseen));
            let Some(before) = before else { continue };
            self.number(before.bytes, &mut copies.bytes);
            self.histogram(&before.duration, &mut copies.duration);
        }
        self.thing("heaps");
    }

    fn heap(&mut self, old: &HeapFile, new: &mut HeapFile) {
        self.number(old.fallbacks, &mut new.fallbacks);
        for gpu in &mut new.gpus {
            let Some(old) = old.gpus.iter().find(|g| g.ordinal == gpu.ordinal) else { continue };
            self.number(old.remapped_bytes, &mut gpu.remapped_bytes);
            self.number(old.ooms, &mut gpu.ooms);
            self.number(old.ooms_avoided, &mut gpu.ooms_avoided);
            for (call, count) in &mut gpu.driver_calls {
                self.number(old.driver_calls.get(call).copied().unwrap_or(0), count);
            }
        }
    }

    fn dropped(&mut self, older: &[Dropped], grown: &mut [Dropped]) {
        for drop in grown {
            if let Some(old) = older.iter().find(|o| (&o.source, &o.reason) == (&drop.source, &drop.reason)) {
                self.number(old.count, &mut drop.count);
            }
            self.thing(format!("dropped {} {}", drop.source, drop.reason));
        }
    }

    fn probes(&mut self, older: &Sample, grown: &mut Sample) {
        let before: BTreeMap<_, _> = older.probes.iter().map(|p| (p.name.as_str(), p)).collect();
        for probe in &mut grown.probes {
            if let Some(old) = before.get(probe.name.as_str()) {
                self.number_opt(old.runs, &mut probe.runs);
                self.number_opt(old.run_time_ns, &mut probe.run_time_ns);
            }
        }
        // A probe attached again starts at zero; nothing but its own cost depends on it.
        self.fell = false;
    }
}

fn index<'a, T, K: Ord>(section: Option<&'a Vec<T>>, key: impl Fn(&'a T) -> K) -> BTreeMap<K, &'a T> {
    section.into_iter().flatten().map(|item| (key(item), item)).collect()
}
