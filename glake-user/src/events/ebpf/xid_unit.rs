//! The probes of Xid reports through the lives of nvidia.ko. A trace point keeps the module from being unloaded; a kprobe dies
//! with it, silently. What was counted goes on.

use super::{
    Settings,
    attach::{Kernel, Ways, has_object},
    group::{Missed, Unit, has_come, present},
    hosts::{self, Hosts},
    sizes::Host,
    table::Group,
    uvm::live_module,
};
use crate::{clock::Stamp, events::sample::XidCount};
use glake_common::record::Record;

/// What is in force for the nvidia.ko that is loaded now.
#[derive(Default)]
pub(crate) struct XidUnit {
    maps: Option<Hosts>,
    started: bool,
    /// The number of its folder in sysfs.
    module: Option<u64>,
    /// Counted in earlier lives.
    earlier: Vec<XidCount>,
    /// Events that were missed in earlier lives.
    pub(crate) missed: Missed,
    /// Records of an earlier life that nobody has taken yet.
    left: Vec<Record>,
}

impl XidUnit {
    /// Attaches what has come. Gives what to say about it; `{}` stands for the seconds since the previous look.
    pub(crate) fn look(
        &mut self,
        unit: &mut Unit,
        kernel: &mut Kernel,
        settings: &Settings,
        host: Host,
        now: Stamp,
    ) -> Option<String> {
        let module = live_module(kernel.root(), "nvidia");
        let first = !std::mem::replace(&mut self.started, true);
        let changed = module != self.module;
        if !first && !changed && !has_come(kernel.root(), unit) {
            return None;
        }
        let was_on = unit.is_on("xid");
        self.let_go(unit, now);
        self.module = module;
        if has_object() && module.is_none() && !present(kernel.root(), Group::Xid) {
            let root = kernel.root().to_owned();
            unit.probes.iter_mut().for_each(|p| p.await_module(&root));
            return was_on.then(|| "detached: nvidia was unloaded within the last {} s".to_owned());
        }
        if !first {
            // Offsets of a trace point that was not there are not known yet.
            kernel.read_again();
        }
        self.attach(unit, kernel, settings, host);
        (!first && unit.is_on("xid")).then(|| {
            "attached: Xid reports; of those before, {} s at most, only the kernel log tells".to_owned()
        })
    }

    fn attach(&mut self, unit: &mut Unit, kernel: &Kernel, settings: &Settings, host: Host) {
        unit.load(kernel, host, settings, true);
        let Some(armed) = &unit.armed else { return };
        match Hosts::new(&armed.loaded) {
            Ok(maps) => self.maps = Some(maps),
            Err(e) => {
                unit.fail(&e);
                return;
            }
        }
        unit.arrange(kernel, settings, Ways::Any, &[]);
    }

    /// Takes the last reading of a life and frees its probes.
    fn let_go(&mut self, unit: &mut Unit, now: Stamp) {
        self.missed.add(unit);
        self.earlier = self.counts(now);
        self.maps = None;
        // One that cannot be understood is counted as such when it is taken.
        let left = &mut self.left;
        unit.drain(|record| left.push(*record));
        *unit = Unit::new(Group::Xid);
    }

    fn counts(&self, now: Stamp) -> Vec<XidCount> {
        let mut all = self.earlier.clone();
        for count in self.maps.iter().flat_map(|maps| hosts::xid(&maps.counts(), now)) {
            add(&mut all, count);
        }
        all
    }

    /// Everything counted so far. `None`: nothing counts here.
    pub(crate) fn read(&self, unit: &Unit, now: Stamp) -> Option<Vec<XidCount>> {
        let on = unit.is_on("xid") || unit.is_on("sxid");
        (on || !self.earlier.is_empty()).then(|| self.counts(now))
    }

    /// Records of an earlier life.
    pub(crate) fn take_left(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.left)
    }
}

/// Adds a count to the one of the same thing.
pub(crate) fn add(all: &mut Vec<XidCount>, more: XidCount) {
    let same = |c: &&mut XidCount| {
        (&c.pci, c.nvswitch, c.code, &c.source) == (&more.pci, more.nvswitch, more.code, &more.source)
    };
    match all.iter_mut().find(same) {
        Some(known) => {
            known.count += more.count;
            if more.last.monotonic_ns > known.last.monotonic_ns {
                known.last = more.last;
            }
        }
        None => all.push(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_two_lives_add_up_and_those_of_two_sources_do_not() {
        let count = |source: &str, count, at| XidCount {
            pci: "0000:3b:00.0".into(),
            code: 31,
            source: source.into(),
            count,
            last: Stamp { monotonic_ns: at, realtime_ns: at },
            ..XidCount::default()
        };
        let mut all = vec![count("kprobe", 2, 10)];
        add(&mut all, count("kprobe", 3, 20));
        add(&mut all, count("tracepoint", 1, 5));
        let found: Vec<_> = all.iter().map(|c| (c.source.as_str(), c.count, c.last.monotonic_ns)).collect();
        assert_eq!(found, [("kprobe", 5, 20), ("tracepoint", 1, 5)]);
    }
}
