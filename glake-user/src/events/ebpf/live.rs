//! The live source itself.

use super::{
    Settings,
    attach::{Kernel, Ways, has_object},
    blocks::Blocks,
    cgroups::Cgroups,
    devices::{Disks, Names, nvme_controllers},
    group::{Unit, has_come, present},
    hosts::{self, Hosts, dmar_interrupts},
    log::Log,
    nvmes::{Nvmes, On},
    record,
    sizes::Host,
    table::{Group, Profile},
    uvm_unit::{self, UvmUnit},
    watchdog::Watchdog,
    xid_unit::XidUnit,
};
use crate::{
    clock::{Clock, Stamp, SystemClock},
    error::Result,
    events::{
        event::{Event, What},
        heaps::Lookout,
        sample::{Cost, Dropped, IommuFaults, Probe, ProbeState, Sample},
        source::Source,
    },
};
use glake_common::{member, nvme::NO_OPCODE, record::Record, stat};
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

mod costs;

fn read_interrupts(root: &Path) -> String {
    std::fs::read_to_string(root.join("proc/interrupts")).unwrap_or_default()
}

/// Live probes. Dropping it takes them off.
pub struct Live {
    settings: Settings,
    root: PathBuf,
    kernel: Kernel,
    host: Host,
    stamped: bool,
    block_ways: Ways,
    units: Vec<Unit>,
    blocks: Option<Blocks>,
    nvmes: Option<Nvmes>,
    hosts: Option<Hosts>,
    xid: XidUnit,
    uvm: UvmUnit,
    /// dmar interrupts when the source started.
    dmar_before: Option<u64>,
    names: Names,
    cgroups: Cgroups,
    log: Log,
    /// While it is open the kernel measures programs.
    statistics: Option<OwnedFd>,
    watchdog: Watchdog,
    heaps: Lookout,
    pending: Vec<Event>,
    unreadable: u64,
    /// When the previous sample was taken.
    looked: Option<Stamp>,
}

impl Live {
    /// Attaches what can be attached on the host below `root` (normally `/`). Works when nothing can be: each probe says why.
    /// Needs CAP_BPF and CAP_PERFMON; CAP_SYS_ADMIN besides to measure the programs' cost; tracefs readable.
    ///
    /// # Errors
    /// None at present; a refused probe is a line in [`Sample::probes`].
    pub fn start(settings: Settings, root: &Path) -> Result<Live> {
        let disks = Disks::read(root);
        let nvme_queues = nvme_controllers(root).values().map(|c| c.queues.unwrap_or(1)).sum();
        let cpus = aya::util::nr_cpus().map_or(1, |n| u32::try_from(n).unwrap_or(u32::MAX));
        let mut live = Live {
            kernel: Kernel::read(root, settings.btf),
            host: Host { cpus, disks: disks.count, nvme_queues },
            stamped: disks.stamped,
            block_ways: Ways::Any,
            units: Group::ALL.into_iter().map(Unit::new).collect(),
            blocks: None,
            nvmes: None,
            hosts: None,
            xid: XidUnit::default(),
            uvm: UvmUnit::default(),
            dmar_before: dmar_interrupts(&read_interrupts(root)),
            names: Names::new(root),
            cgroups: Cgroups::new(root),
            log: Log::open(root, &settings),
            statistics: aya::sys::enable_stats(aya::sys::Stats::RunTime).ok(),
            watchdog: Watchdog::default(),
            heaps: Lookout::default(),
            pending: Vec::new(),
            unreadable: 0,
            looked: Some(Live::now()),
            root: root.to_owned(),
            settings,
        };
        live.start_block();
        for group in [Group::Nvme, Group::Host] {
            live.start_group(group);
        }
        live.look_at_driver(None);
        Ok(live)
    }

    /// Attaches to the modules of NVIDIA's driver, or lets go of them, as they came or went. `since`: when they were last looked at.
    fn look_at_driver(&mut self, since: Option<Stamp>) {
        let (kernel, settings, host) = (&mut self.kernel, &self.settings, self.host);
        let xid = self.xid.look(&mut self.units[Group::Xid as usize], kernel, settings, host, Live::now());
        let uvm =
            self.uvm.look(&mut self.units[Group::Uvm as usize], kernel, settings, host, &mut self.cgroups);
        let Some(since) = since else { return };
        let now = Live::now();
        let seconds = now.monotonic_ns.saturating_sub(since.monotonic_ns) as f64 / 1e9;
        for (probe, said) in [("xid", xid), ("uvm", uvm)] {
            if let Some(detail) = said {
                let detail = detail.replace("{}", &format!("{seconds:.1}"));
                self.event(now, "probes", What::Probe { probe: probe.to_owned(), detail });
            }
        }
    }

    fn unit(&mut self, group: Group) -> &mut Unit {
        let at = Group::ALL.iter().position(|g| *g == group).unwrap_or(0);
        &mut self.units[at]
    }

    /// All block probes must agree on what a request is called: its address or its sector. So first all with BTF, and if the
    /// kernel refuses a required one, all without.
    fn start_block(&mut self) {
        let refused = |u: &Unit| !u.is_on("block_complete") || !u.is_on("block_start");
        if !self.kernel.knows(member::RQ_Q) {
            self.arm_block(Ways::Classic);
            return;
        }
        self.arm_block(Ways::Btf);
        if self.units[0].armed.is_none() || !refused(&self.units[0]) {
            return;
        }
        let (first, blocks) =
            (std::mem::replace(&mut self.units[0], Unit::new(Group::Block)), self.blocks.take());
        let kernel = std::mem::replace(&mut self.kernel, Kernel::read(&self.root, false));
        self.arm_block(Ways::Classic);
        if refused(&self.units[0]) {
            // Neither way works: the first refusal says more.
            (self.units[0], self.blocks, self.kernel) = (first, blocks, kernel);
            self.block_ways = Ways::Btf;
        }
    }

    fn arm_block(&mut self, ways: Ways) {
        self.block_ways = ways;
        let stamped = self.stamped && ways == Ways::Btf;
        let unit = &mut self.units[0];
        unit.load(&self.kernel, self.host, &self.settings, stamped);
        let Some(armed) = &mut unit.armed else { return };
        match Blocks::new(&mut armed.loaded, self.kernel.knows(member::TASK_FLAGS)) {
            Ok(blocks) => self.blocks = Some(blocks),
            Err(e) => {
                let why = super::attach::Refusal::of(&e);
                unit.probes.iter_mut().for_each(|p| p.off(ProbeState::Failed, why.clone()));
                return;
            }
        }
        self.arrange(Group::Block);
    }

    fn start_group(&mut self, group: Group) {
        let at = Group::ALL.iter().position(|g| *g == group).unwrap_or(0);
        let unit = &mut self.units[at];
        let comes_with_module = unit.probes.iter().all(|p| p.entry.module.is_some());
        if comes_with_module && has_object() && !present(&self.root, group) {
            let root = &self.root;
            unit.probes.iter_mut().for_each(|p| p.await_module(root));
            return;
        }
        if unit.armed.is_none() {
            unit.load(&self.kernel, self.host, &self.settings, true);
        }
        if let Err(e) = self.map_group(at) {
            let why = super::attach::Refusal::of(&e);
            self.units[at].probes.iter_mut().for_each(|p| p.off(ProbeState::Failed, why.clone()));
            return;
        }
        self.arrange(group);
    }

    fn map_group(&mut self, at: usize) -> Result<()> {
        let Some(armed) = &self.units[at].armed else { return Ok(()) };
        match self.units[at].group {
            Group::Nvme => self.nvmes = Some(Nvmes::new(&armed.loaded)?),
            Group::Host => self.hosts = Some(Hosts::new(&armed.loaded)?),
            Group::Block | Group::Xid | Group::Uvm => {}
        }
        Ok(())
    }

    fn arrange(&mut self, group: Group) {
        let stamped = self.stamped && self.block_ways == Ways::Btf;
        let ways = match group {
            Group::Block => self.block_ways,
            Group::Uvm => uvm_unit::ways(self.settings.uvm_hooks),
            _ => Ways::Any,
        };
        let mut unwanted: Vec<(&str, &str)> = Vec::new();
        if group == Group::Block && stamped {
            unwanted.push(("block_issue", "not needed: every queue stamps its requests"));
        }
        let at = Group::ALL.iter().position(|g| *g == group).unwrap_or(0);
        self.units[at].arrange(&self.kernel, &self.settings, ways, &unwanted);
    }

    /// Every probe as it is now.
    pub fn probes(&self) -> Vec<Probe> {
        let measured = self.statistics.is_some();
        let units = self.units.iter().flat_map(|u| u.report(measured).map(|(p, _)| p).collect::<Vec<_>>());
        units.chain(self.log.probes()).collect()
    }

    /// The profile in force.
    pub fn profile(&self) -> Profile {
        self.settings.profile
    }

    /// Attaches and detaches what the other profile wants. Needs the privileges of [`Live::start`]; what is refused says so.
    /// Probes that the watchdog took off get another chance.
    pub fn set_profile(&mut self, profile: Profile) {
        self.settings.profile = profile;
        for at in 0..self.units.len() {
            if self.units[at].group == Group::Uvm && !self.uvm.is_on() {
                continue;
            }
            for probe in &mut self.units[at].probes {
                if probe.state == ProbeState::Detached {
                    probe.state = ProbeState::Off;
                    self.watchdog.forget(probe.entry.name);
                }
            }
            self.arrange(self.units[at].group);
        }
    }

    fn now() -> Stamp {
        SystemClock.now()
    }

    fn event(&mut self, at: Stamp, source: &str, what: What) {
        self.pending.push(Event { at, clock_error_ns: 0, source: source.to_owned(), what });
    }

    /// Attaches the probes of a module that has come.
    fn look_for_modules(&mut self) {
        if has_come(&self.root, &self.units[Group::Nvme as usize]) {
            // The offsets were not known when the programs were loaded: load them anew.
            self.kernel.read_again();
            *self.unit(Group::Nvme) = Unit::new(Group::Nvme);
            self.start_group(Group::Nvme);
        }
    }

    fn read_block(&mut self, sample: &mut Sample) {
        let unit = &self.units[0];
        let (complete, start) = (unit.is_on("block_complete"), unit.is_on("block_start"));
        let requeues = unit.is_on("block_requeue");
        let merges = ["block_merge", "block_back_merge", "block_front_merge"].iter().all(|p| unit.is_on(p));
        let Some(blocks) = &mut self.blocks else { return };
        if !complete {
            return;
        }
        (blocks.requeues, blocks.merges) = (requeues, merges);
        let (devices, nobody) = blocks.read(&mut self.names);
        sample.block = Some(devices);
        if start {
            self.cgroups.tick();
            let mut owners = blocks.owners(&mut self.names, &mut self.cgroups, sample.at.monotonic_ns);
            owners.extend(nobody);
            sample.owners = Some(owners);
        }
    }

    fn read_nvme(&mut self, sample: &mut Sample) {
        let unit = self.unit(Group::Nvme);
        let on = On {
            commands: unit.is_on("nvme_complete") && unit.is_on("nvme_setup"),
            queues: unit.is_on("nvme_sq"),
            asynchronous: unit.is_on("nvme_async"),
        };
        let Some(nvmes) = &self.nvmes else { return };
        if on.commands || on.queues || on.asynchronous {
            let controllers = nvme_controllers(&self.root);
            nvmes.tell(&controllers);
            let mut list = nvmes.read(&controllers, on);
            self.log.fill(&mut list);
            sample.nvme = Some(list);
        }
    }

    fn read_host(&mut self, sample: &mut Sample) {
        let on: Vec<&str> =
            self.units.iter().flat_map(|u| &u.probes).filter(|p| p.is_on()).map(|p| p.entry.name).collect();
        let is_on = |name: &str| on.contains(&name);
        if let Some(hosts) = &self.hosts {
            let counts = hosts.counts();
            sample.iommu = (is_on("iommu_map") || is_on("iommu_unmap")).then(|| hosts.iommu());
            sample.dma = (is_on("dma_map") || is_on("dma_map_sg"))
                .then(|| hosts::dma(&counts, is_on("dma_map_sg_err")));
            sample.swiotlb = is_on("swiotlb").then(|| hosts::swiotlb(&counts));
            sample.aer = is_on("aer").then(|| hosts::aer(&counts));
            sample.iommu_faults = self.faults(&counts, &is_on);
            let host = &self.units[Group::Host as usize];
            sample.io_uring_punted = is_on("io_uring_punt").then(|| host.stat(stat::IO_URING_PUNTED));
        }
        if let Some(logged) = self.log.faults() {
            sample.iommu_faults.get_or_insert_default().extend(logged);
        }
        sample.uvm = self.uvm.read(&mut self.units[Group::Uvm as usize], &mut self.cgroups);
        sample.xid = self.xid.read(&self.units[Group::Xid as usize], sample.at);
        self.log.fill_xids(&mut sample.xid);
    }

    /// Faults by every way that exists here. On Intel only the fault interrupt can be counted: exactly with the kprobe, else
    /// from /proc/interrupts, which is a lower bound, since one interrupt may report several.
    fn faults(&self, counts: &[hosts::Count], is_on: &dyn Fn(&str) -> bool) -> Option<Vec<IommuFaults>> {
        let interrupts = self
            .dmar_before
            .and_then(|before| Some(dmar_interrupts(&read_interrupts(&self.root))?.saturating_sub(before)));
        let mut faults = if is_on("iommu_fault") { hosts::iommu_faults(counts) } else { Vec::new() };
        let handlers = is_on("dmar_fault") || is_on("viommu_fault");
        if handlers {
            let count = self.units[Group::Host as usize].stat(stat::DMAR_FAULTS);
            faults.push(IommuFaults { pci: None, source: "kprobe".to_owned(), count });
        } else if let Some(count) = interrupts {
            faults.push(IommuFaults { pci: None, source: "interrupts".to_owned(), count });
        }
        (is_on("iommu_fault") || handlers || interrupts.is_some()).then_some(faults)
    }

    fn read_drops(&self, sample: &mut Sample) {
        let mut drops: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (i, (source, reason)) in stat::DROPS.iter().enumerate() {
            let earlier = self.uvm.missed.of(i) + self.xid.missed.of(i);
            let sum: u64 = self.units.iter().map(|u| u.stat(i)).sum::<u64>() + earlier;
            *drops.entry(((*source).to_owned(), (*reason).to_owned())).or_default() += sum;
        }
        for unit in &self.units {
            for (probe, missed) in unit.report(false) {
                // The kernel does not run a program that already runs on the same CPU.
                *drops.entry((probe.family, "recursion".to_owned())).or_default() += missed;
            }
        }
        drops.insert(("ring".to_owned(), "parse".to_owned()), self.unreadable);
        if let Some(lost) = self.log.lost() {
            drops.insert(("kmsg".to_owned(), "overwritten".to_owned()), lost);
        }
        sample.dropped =
            drops.into_iter().map(|((source, reason), count)| Dropped { source, reason, count }).collect();
    }

    fn event_of(&mut self, record: &Record, at: Stamp) -> Option<(String, What)> {
        use glake_common::record::kind;
        let blocks = self.blocks.as_ref();
        let mut device = |index: u32| {
            blocks.and_then(|b| b.name(index, &mut self.names)).unwrap_or_else(|| "unknown".to_owned())
        };
        let operation = |index: u32| format!("{:?}", super::blocks::operation(index)).to_lowercase();
        let name = record::text(&record.name);
        let _ = at;
        Some(match record.kind {
            kind::IO_ERROR => {
                let status = record::block_status(record.value.cast_signed());
                let what = What::IoError { device: device(record.a), operation: operation(record.b), status };
                ("block:block_rq_complete".to_owned(), what)
            }
            kind::SLOW_IO => {
                let (device, operation) = (device(record.a), operation(record.b));
                (
                    "block:block_rq_complete".to_owned(),
                    What::SlowIo { device, operation, took_ns: record.value },
                )
            }
            kind::XID | kind::SXID => {
                let nvswitch = record.kind == kind::SXID;
                let message = record::whole_or_cut(&record.text, crate::events::xid::parse::CUT);
                let source = match (nvswitch, record.a) {
                    (true, _) => "nvswitch:nvswitch_dev_sxid",
                    (false, 0) => "nvidia:nvidia_dev_xid",
                    (false, _) => "nv_report_error (kprobe)",
                };
                (source.to_owned(), What::Xid { pci: name, nvswitch, code: record.b, message })
            }
            kind::AER => {
                let severity = ["corrected", "nonfatal", "fatal"][(record.a as usize).min(2)].to_owned();
                ("ras:aer_event".to_owned(), What::Aer { pci: name, severity, status: record.b })
            }
            kind::IOMMU_FAULT => {
                let detail = format!("flags {:#x}", record.b);
                let what = What::IommuFault { pci: Some(name), iova: Some(record.value), detail };
                ("iommu:io_page_fault".to_owned(), what)
            }
            kind::UVM_FATAL => ("uvm_tools_record_gpu_fatal_fault".to_owned(), self.uvm.fatal(record)),
            kind::NVME_ASYNC => {
                let controller = format!("nvme{}", record.a);
                ("nvme:nvme_async_event".to_owned(), What::NvmeAsync { controller, result: record.b })
            }
            kind::NVME_ERROR => {
                let (queue, opcode, status) = (record.b >> 16, record.b & 0xffff, record.value);
                let opcode =
                    if opcode == NO_OPCODE { "unknown".to_owned() } else { format!("{opcode:#04x}") };
                let what = What::IoError {
                    device: format!("nvme{}", record.a),
                    operation: format!("opcode {opcode} on queue {queue}"),
                    status: format!("NVMe status type {} code {:#04x}", (status >> 8) & 7, status & 0xff),
                };
                ("nvme:nvme_complete_rq".to_owned(), what)
            }
            _ => return None,
        })
    }
}

impl Source for Live {
    fn sample(&mut self) -> Result<Sample> {
        let at = Live::now();
        self.look_for_modules();
        let before = self.looked.replace(at);
        self.look_at_driver(before);
        self.watch(at);
        let xid = &self.units[Group::Xid as usize];
        self.log.set_exact([xid.is_on("xid"), xid.is_on("sxid")]);
        let said = self.log.listen(at);
        self.pending.extend(said);
        let mut sample = Sample { at, probes: self.probes(), ..Sample::default() };
        self.read_block(&mut sample);
        self.read_nvme(&mut sample);
        self.read_host(&mut sample);
        self.read_drops(&mut sample);
        sample.heaps = Some(self.heaps.look(&self.root, at.monotonic_ns));
        sample.cost = Cost {
            map_bytes: self.units.iter().map(Unit::bytes).sum(),
            ebpf_run_time_ns: self
                .statistics
                .as_ref()
                .map(|_| sample.probes.iter().filter_map(|p| p.run_time_ns).sum()),
        };
        Ok(sample)
    }

    fn set_full(&mut self, full: bool) -> Result<()> {
        self.set_profile(if full { Profile::Full } else { Profile::Light });
        Ok(())
    }

    fn events(&mut self) -> Result<Vec<Event>> {
        let now = Live::now();
        let mut records = self.xid.take_left();
        for unit in &mut self.units {
            self.unreadable += unit.drain(|r| records.push(*r));
        }
        for record in records {
            // Both clocks were read together just now; CLOCK_REALTIME may have been set in between, which no one can tell.
            let ago = now.monotonic_ns.saturating_sub(record.at_ns);
            let at = Stamp { monotonic_ns: record.at_ns, realtime_ns: now.realtime_ns.saturating_sub(ago) };
            match self.event_of(&record, at) {
                Some((source, what)) => self.event(at, &source, what),
                None => self.unreadable += 1,
            }
        }
        let said = self.log.listen(now);
        self.pending.extend(said);
        let mut events = std::mem::take(&mut self.pending);
        events.sort_by_key(|e| e.at.monotonic_ns);
        Ok(events)
    }
}
