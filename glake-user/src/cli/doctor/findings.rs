//! What is worth a line of its own: only with evidence that was just looked at.

use super::{Row, Seen};
use crate::host::kernel::{Answer, Fact};
use serde::Serialize;

/// How bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Something that GLake is for does not work.
    Fail,
    /// It works in part, or worse than it could.
    Warn,
    /// It could not be told.
    Unknown,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// What it is about.
    pub(super) what: String,
    /// What was seen.
    pub(super) evidence: String,
    /// What to do.
    pub(super) remedy: Option<String>,
}

/// All findings, worst first.
pub(super) fn of(
    facts: &[Fact],
    surroundings: &[String],
    coverage: &[Row],
    built_with_probes: bool,
) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    if !built_with_probes {
        all.push(Finding {
            level: Level::Fail,
            what: "probes".into(),
            evidence: "this glake was built without its eBPF programs: nothing was tried".into(),
            remedy: Some("build it with `cargo xtask run`, or take a released binary".into()),
        });
    }
    // The fact before what follows from it: one cause is one finding.
    for finding in facts.iter().filter_map(of_fact).chain(coverage.iter().filter_map(of_coverage)) {
        join(&mut all, finding);
    }
    all.extend(surroundings.iter().map(|text| Finding {
        level: Level::Warn,
        what: "surroundings".into(),
        evidence: text.clone(),
        remedy: None,
    }));
    all.sort_by_key(|f| f.level as u8);
    all
}

/// Adds a finding, or its name to one that has the same remedy: what one action mends is said once.
fn join(all: &mut Vec<Finding>, finding: Finding) {
    let twin =
        |f: &&mut Finding| f.level == finding.level && f.remedy.is_some() && f.remedy == finding.remedy;
    match all.iter_mut().find(twin) {
        Some(first) => {
            first.what.push_str(", ");
            first.what.push_str(&finding.what);
        }
        None => all.push(finding),
    }
}

/// What is off has nothing to watch here. Without a required probe the agent is degraded: that is a failure, and block
/// I/O is what every host has.
fn of_coverage(row: &Row) -> Option<Finding> {
    let level = match row.state {
        Seen::Yes | Seen::Off => return None,
        Seen::No if row.family == "block" => Level::Fail,
        Seen::No | Seen::Partly if row.required_missing => Level::Fail,
        Seen::No | Seen::Partly => Level::Warn,
        Seen::Unknown => Level::Unknown,
    };
    let (evidence, remedy) = match row.why.first().map(|why| why.split_once(" -> ")) {
        Some(Some((reason, remedy))) => (reason.to_owned(), Some(remedy.to_owned())),
        Some(None) => (row.why[0].clone(), None),
        None => ("no reason was given".to_owned(), None),
    };
    let more = row.why.len().saturating_sub(1);
    let evidence = if more > 0 { format!("{evidence} (and {more} more above)") } else { evidence };
    Some(Finding { level, what: row.title.clone(), evidence, remedy })
}

fn of_fact(fact: &Fact) -> Option<Finding> {
    let (level, evidence, remedy) = match &fact.answer {
        Answer::Yes { .. } => return None,
        // Each has a way around it, which coverage shows; securityfs matters only for lockdown, which says so.
        Answer::No { .. } if matches!(fact.name, "btf" | "perf_event_paranoid" | "securityfs") => {
            return None;
        }
        Answer::No { reason, remedy } => (Level::Warn, reason, remedy),
        Answer::CannotTell { error, remedy } => (Level::Unknown, error, remedy),
    };
    Some(Finding { level, what: fact.name.into(), evidence: evidence.clone(), remedy: remedy.clone() })
}
