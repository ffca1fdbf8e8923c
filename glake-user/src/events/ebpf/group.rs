//! One group of probes through its life: loaded when its hooks are there, attached as the profile wants, read.

use super::{
    Settings,
    attach::{Kernel, Loaded, Placed, Refusal, Ways, has_module},
    record,
    sizes::{Host, Sizes},
    table::{self, Entry, Group, Hook},
    uvm::Module,
};
use crate::{
    error::{Error, Kind, Result},
    events::sample::{Probe, ProbeState},
    sys::bpf::Words,
};
use aya::maps::{MapData, RingBuf};
use glake_common::{member, param, stat};
use std::path::Path;

/// Everything of one group.
pub(crate) struct Armed {
    pub(crate) loaded: Loaded,
    pub(crate) stats: Words,
    ring: RingBuf<MapData>,
}

/// Events that were missed by programs that are no more.
#[derive(Debug, Default)]
pub(crate) struct Missed([u64; stat::DROPS.len()]);

impl Missed {
    /// Adds those of a unit that is about to go.
    pub(crate) fn add(&mut self, unit: &Unit) {
        self.0.iter_mut().enumerate().for_each(|(i, sum)| *sum += unit.stat(i));
    }

    /// Those of a reason, by its place in [`stat::DROPS`].
    pub(crate) fn of(&self, which: usize) -> u64 {
        self.0.get(which).copied().unwrap_or(0)
    }
}

/// A group and its probes.
pub(crate) struct Unit {
    pub(crate) group: Group,
    pub(crate) probes: Vec<Placed>,
    pub(crate) armed: Option<Armed>,
}

impl Unit {
    pub(crate) fn new(group: Group) -> Unit {
        let probes = table::probes().filter(|e| e.group == group).map(Placed::new).collect();
        Unit { group, probes, armed: None }
    }

    /// Loads the maps. Without them every probe has failed for the same reason.
    pub(crate) fn load(&mut self, kernel: &Kernel, host: Host, settings: &Settings, stamped: bool) {
        let made = Unit::make(self.group, kernel, host, settings, stamped);
        match made {
            Ok(armed) => self.armed = Some(armed),
            Err(e) => self.fail(&e),
        }
    }

    /// None of the probes can be on.
    pub(crate) fn fail(&mut self, e: &Error) {
        let why = Refusal::of(e);
        self.probes.iter_mut().for_each(|p| p.off(ProbeState::Failed, why.clone()));
    }

    fn make(group: Group, kernel: &Kernel, host: Host, settings: &Settings, stamped: bool) -> Result<Armed> {
        let budget = settings.map_budget_bytes / 16 * group.sixteenths();
        let sizes = Sizes::within(group, host, settings.ring_bytes, budget)?;
        let mut params = sizes.params();
        params[param::SLOW_IO_US] = u32::try_from(settings.slow_io_ns.div_ceil(1000)).unwrap_or(u32::MAX);
        params[param::STAMP] = u32::from(!stamped);
        params[param::HAS_TASK_FLAGS] = u32::from(kernel.knows(member::TASK_FLAGS));
        params[param::IO_ERRORS] = 1;
        params[param::UVM_DEVICE] = kernel.uvm_device();
        let mut loaded = Loaded::new(kernel, group, sizes, params)?;
        let stats = loaded.words("STATS", u64::from(sizes.shards) * stat::COUNT as u64)?;
        let missing = || Error::new(Kind::Unsupported, "the eBPF object has no map EVENTS");
        let ring = loaded.ebpf.take_map("EVENTS").ok_or_else(missing)?;
        let ring = RingBuf::try_from(ring).map_err(|e| missing().because(e))?;
        Ok(Armed { loaded, stats, ring })
    }

    /// Puts every probe where the profile wants it.
    pub(crate) fn arrange(
        &mut self,
        kernel: &Kernel,
        settings: &Settings,
        ways: Ways,
        unwanted: &[(&str, &str)],
    ) {
        let Some(armed) = &mut self.armed else { return };
        for probe in &mut self.probes {
            let entry = probe.entry;
            let why = if settings.disabled.iter().any(|d| d == entry.name) {
                Some("disabled by the settings".to_owned())
            } else if entry.profile > settings.profile {
                Some("only in the profile \"full\"".to_owned())
            } else {
                unwanted.iter().find(|(name, _)| *name == entry.name).map(|(_, why)| (*why).to_owned())
            };
            match why {
                Some(reason) => probe.off(ProbeState::Off, Refusal::absent(reason)),
                None if probe.is_on() || probe.state == ProbeState::Detached => {}
                None => armed.loaded.attach(kernel, probe, ways),
            }
        }
        armed.loaded.settle();
    }

    /// Whether a probe is attached.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.probes.iter().any(|p| p.entry.name == name && p.is_on())
    }

    /// Probes with what they cost.
    pub(crate) fn report(&self, measured: bool) -> impl Iterator<Item = (Probe, u64)> + '_ {
        self.probes.iter().map(move |placed| {
            let cost = self.armed.as_ref().and_then(|a| a.loaded.cost(placed));
            let counted = cost.filter(|_| measured);
            let probe = Probe {
                name: placed.entry.name.to_owned(),
                family: placed.entry.family.to_owned(),
                how: placed.how.clone(),
                required: placed.entry.required,
                state: placed.state,
                reason: placed.why.as_ref().map(|w| w.reason.clone()),
                remedy: placed.why.as_ref().and_then(|w| w.remedy.clone()),
                runs: counted.map(|c| c.runs),
                run_time_ns: counted.map(|c| c.run_time_ns),
            };
            (probe, cost.map_or(0, |c| c.missed))
        })
    }

    /// A counter of the group, all copies together.
    pub(crate) fn stat(&self, which: usize) -> u64 {
        let Some(armed) = &self.armed else { return 0 };
        (0..armed.loaded.sizes.shards as usize).map(|s| armed.stats.load(s * stat::COUNT + which)).sum()
    }

    /// Takes the records out of the ring; gives how many could not be understood.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&glake_common::record::Record)) -> u64 {
        let mut bad = 0;
        let Some(armed) = &mut self.armed else { return 0 };
        while let Some(item) = armed.ring.next() {
            match record::decode(&item) {
                Some(record) => each(&record),
                None => bad += 1,
            }
        }
        bad
    }

    /// Kernel memory of the maps.
    pub(crate) fn bytes(&self) -> u64 {
        self.armed.as_ref().map_or(0, |a| a.loaded.sizes.bytes())
    }
}

/// Whether trace points of a module's group are there now; of nvidia-uvm, whether it is loaded.
pub(crate) fn present(root: &Path, group: Group) -> bool {
    if group == Group::Uvm {
        return Module::loaded(root).is_some();
    }
    any_present(root, table::probes().filter(|e| e.group == group))
}

/// Whether a trace point that a probe waits for has come.
pub(crate) fn has_come(root: &Path, unit: &Unit) -> bool {
    let waits = |p: &&Placed| !p.is_on() && p.why.as_ref().is_some_and(|w| w.module_missing);
    let mut waiting = unit.probes.iter().filter(waits).map(|p| p.entry).peekable();
    waiting.peek().is_some() && any_present(root, waiting)
}

fn any_present(root: &Path, mut entries: impl Iterator<Item = &'static Entry>) -> bool {
    let tracefs = crate::sys::tracefs::Tracefs::find(root).ok();
    let there = |module: &str, hook: &Hook| match hook {
        Hook::Classic { category, event, .. } => tracefs.as_ref().is_some_and(|t| t.has(category, event)),
        Hook::Raw { .. } => has_module(root, module),
        Hook::Btf { .. } | Hook::Function { .. } | Hook::Return { .. } | Hook::Direct { .. } => false,
    };
    entries.any(|e| e.module.is_some_and(|module| e.hooks.iter().any(|hook| there(module, hook))))
}
