//! Whether everything wanted is watched.

use super::View;
use crate::{
    events::sample::{Dropped, Probe, ProbeState, Sample},
    telemetry::state::{Coverage, Health, Status, Watched},
};

/// Of so many I/Os that were seen, one that was not does not matter: an end whose start was not seen (it was under way when
/// the probes came, or the kernel did not run a program that already ran on the same CPU) is no sign that numbers are wrong.
const TRIFLE: u64 = 1000;

/// Degraded: a required probe is not on, or events were missed within the interval, other than a trifle of many I/Os.
pub(super) fn health(view: &View<'_>) -> Health {
    let blind = view.newer.probes.iter().filter(|p| p.required && p.state != ProbeState::On);
    let mut reasons: Vec<String> = blind.map(|p| format!("required probe {}", why(p))).collect();
    if view.interval_ns.is_some() {
        let missed = view.grown.dropped.iter().filter(|d| d.count > 0);
        reasons.extend(missed.filter_map(|d| said(d, view.grown)));
    }
    let status = if reasons.is_empty() { Status::Ok } else { Status::Degraded };
    Health { status, reasons }
}

fn said(missed: &Dropped, grown: &Sample) -> Option<String> {
    let Dropped { source, reason, count } = missed;
    let single = matches!(reason.as_str(), "unmatched" | "recursion");
    let Some(seen) = ended(source, grown).filter(|_| single) else {
        return Some(format!("{count} events of {source} were missed: {reason}"));
    };
    (count.saturating_mul(TRIFLE) > seen)
        .then(|| format!("{count} events of {source} were missed, beside {seen} seen: {reason}"))
}

/// I/Os whose end was seen.
fn ended(source: &str, grown: &Sample) -> Option<u64> {
    match source {
        "block" => Some(grown.block.iter().flatten().flat_map(|d| &d.operations).map(|o| o.completed).sum()),
        "nvme" => Some(grown.nvme.iter().flatten().flat_map(|c| &c.commands).map(|c| c.completed).sum()),
        _ => None,
    }
}

/// What is watched and what is not, family by family, in the order of the probes.
pub fn coverage(probes: &[Probe]) -> Vec<Coverage> {
    let mut families: Vec<Coverage> = Vec::new();
    for probe in probes {
        let at = families.iter().position(|f| f.family == probe.family).unwrap_or_else(|| {
            let empty =
                Coverage { family: probe.family.clone(), state: Watched::Off, how: vec![], missing: vec![] };
            families.push(empty);
            families.len() - 1
        });
        let family = &mut families[at];
        match probe.state {
            ProbeState::On => family.how.push(probe.how.clone()),
            ProbeState::Off if probe.reason.is_none() => {}
            ProbeState::Off | ProbeState::Failed | ProbeState::Detached => family.missing.push(why(probe)),
        }
    }
    for family in &mut families {
        family.state = watched(probes.iter().filter(|p| p.family == family.family));
    }
    families
}

fn watched<'a>(probes: impl Iterator<Item = &'a Probe>) -> Watched {
    let (mut on, mut refused) = (false, false);
    for probe in probes {
        on |= probe.state == ProbeState::On;
        refused |= matches!(probe.state, ProbeState::Failed | ProbeState::Detached);
    }
    match (on, refused) {
        (true, false) => Watched::Yes,
        (true, true) => Watched::Partly,
        (false, true) => Watched::No,
        (false, false) => Watched::Off,
    }
}

fn why(probe: &Probe) -> String {
    let state = match probe.state {
        ProbeState::On => "is on",
        ProbeState::Off => "is off",
        ProbeState::Failed => "could not be attached",
        ProbeState::Detached => "was taken off",
    };
    let mut text = format!("{} {state}", probe.name);
    if let Some(reason) = &probe.reason {
        text.push_str(&format!(": {reason}"));
    }
    if let Some(remedy) = &probe.remedy {
        text.push_str(&format!(" -> {remedy}"));
    }
    text
}
