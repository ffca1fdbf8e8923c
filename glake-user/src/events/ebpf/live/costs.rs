//! Probes that cost too much are taken off, and said to be.

use super::Live;
use crate::{
    clock::Stamp,
    events::{
        ebpf::{
            attach::{Placed, Refusal},
            table::Group,
        },
        event::What,
        sample::ProbeState,
    },
};

impl Live {
    /// Takes off what costs too much.
    pub(super) fn watch(&mut self, now: Stamp) {
        if self.settings.max_cpu_percent <= 0.0 || self.statistics.is_none() {
            return;
        }
        // A host with many CPUs does much I/O, and may spend as much more on seeing it.
        let cpus = aya::util::online_cpus().map_or(1, |online| online.len().max(1)) as f64;
        let mut said = Vec::new();
        for unit in &mut self.units {
            let Some(armed) = &unit.armed else { continue };
            for probe in unit.probes.iter_mut().filter(|p| p.is_on()) {
                let Some(cost) = armed.loaded.cost(probe) else { continue };
                let name = probe.entry.name;
                let Some(of_one) = self.watchdog.percent(name, now.monotonic_ns, cost.run_time_ns) else {
                    continue;
                };
                let (percent, limit) = (of_one / cpus, self.settings.max_cpu_percent * unit.group.patience());
                if percent > limit {
                    let reason = format!(
                        "took {percent:.1} % of {cpus} CPUs, more than {limit} (max_cpu_percent = {})",
                        self.settings.max_cpu_percent
                    );
                    said.push((name, reason.clone()));
                    let remedy = Some("raise max_cpu_percent, or leave it off".to_owned());
                    probe.off(ProbeState::Detached, Refusal::new(reason, remedy));
                }
            }
        }
        if said.iter().any(|(name, _)| *name == "block_complete") {
            // A start without its end tells nothing, and would count as an event missed.
            let useless = |p: &&mut Placed| p.is_on() && p.entry.name == "block_start";
            for probe in self.unit(Group::Block).probes.iter_mut().filter(useless) {
                let why = Refusal::absent("of no use without block_complete".to_owned());
                probe.off(ProbeState::Off, why);
            }
        }
        for (probe, reason) in said {
            let what = What::Probe { probe: probe.to_owned(), detail: format!("detached: {reason}") };
            self.event(now, "watchdog", what);
        }
    }
}
