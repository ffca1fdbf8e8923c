//! Whether everything wanted is watched.

use super::View;
use crate::{
    events::sample::{Probe, ProbeState},
    telemetry::state::{Coverage, Health, Status, Watched},
};

/// Degraded: a required probe is not on, or events were missed within the interval.
pub(super) fn health(view: &View<'_>) -> Health {
    let blind = view.newer.probes.iter().filter(|p| p.required && p.state != ProbeState::On);
    let mut reasons: Vec<String> = blind.map(|p| format!("required probe {}", why(p))).collect();
    if view.interval_ns.is_some() {
        let missed = view.grown.dropped.iter().filter(|d| d.count > 0);
        reasons
            .extend(missed.map(|d| format!("{} events of {} were missed: {}", d.count, d.source, d.reason)));
    }
    let status = if reasons.is_empty() { Status::Ok } else { Status::Degraded };
    Health { status, reasons }
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
