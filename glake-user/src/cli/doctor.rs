//! `glake doctor`: what GLake can see on this host, what not, why, and what to do. It tries every probe instead of
//! judging by versions, changes nothing, and takes everything off again.

mod findings;
mod health;
mod text;

use super::{exit, out};
use crate::error::{Error, Kind, Result};
use crate::events::{
    ebpf,
    sample::{Probe, ProbeState},
    uvm::coverage::{Answer as UvmAnswer, one_process},
};
use crate::host::inventory::Inventory;
use crate::host::kernel::{self, Answer, Fact};
use crate::sys::tracefs;
use crate::telemetry::model::coverage;
use crate::telemetry::state::{Coverage, Watched};
use findings::{Finding, Level};
use serde::Serialize;
use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

/// Say what GLake can see on this host, what not, why, and what to do.
///
/// It tries every probe and takes it off again, changes nothing, and ends within a second. Without root most answers are
/// "no", with the reason; with root they are the truth about this host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo glake doctor
  sudo glake doctor --json | jq '.findings[]'

Exit codes: 0 clean, 1 warnings or things that could not be told, 2 failures")]
pub(super) struct Args {
    /// Print the report as JSON, every probe included.
    #[arg(long)]
    json: bool,
}

/// The whole report; the JSON of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    /// Rises when a key changes its meaning.
    schema: u32,
    version: &'static str,
    commit: Option<&'static str>,
    host: Inventory,
    /// What surrounds this process, in sentences.
    surroundings: Vec<String>,
    facts: Vec<Fact>,
    coverage: Vec<Row>,
    probes: Vec<Probe>,
    findings: Vec<Finding>,
    failures: usize,
    warnings: usize,
    unknown: usize,
    exit_code: u8,
    took_ms: u64,
}

/// One thing to watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Row {
    family: String,
    title: String,
    state: Seen,
    /// A required probe is not on: what the agent calls degraded.
    required_missing: bool,
    how: Vec<String>,
    /// Why not, and what to do, what was refused before what is off.
    why: Vec<String>,
}

/// Whether something can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Seen {
    Yes,
    Partly,
    No,
    /// Nothing to see on this host.
    Off,
    /// It could not be told.
    Unknown,
}

impl From<Watched> for Seen {
    fn from(watched: Watched) -> Seen {
        match watched {
            Watched::Yes => Seen::Yes,
            Watched::Partly => Seen::Partly,
            Watched::No => Seen::No,
            Watched::Off => Seen::Off,
        }
    }
}

pub(super) fn run(args: Args) -> Result<u8> {
    // As the agent would; where it is refused, the fact below says what is missing.
    let own_tracefs = tracefs::mount_for_this_process().unwrap_or(false);
    let mut report = examine(Path::new("/"))?;
    if own_tracefs && let Some(fact) = report.facts.iter_mut().find(|fact| fact.name == "tracefs") {
        let detail = "not mounted on this host; GLake mounts it for itself alone".to_owned();
        fact.answer = Answer::Yes { detail };
    }
    let mut stdout = out::stdout();
    let printed = if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|e| Error::new(Kind::Misuse, "turning the report into JSON").because(e))?;
        writeln!(stdout, "{json}")
    } else {
        // In a pipe there is no width to ask for; crossterm would answer 80.
        let terminal = stdout_is_terminal().then(crossterm::terminal::size);
        let width = terminal.and_then(|size| size.ok()).map_or(120, |(w, _)| usize::from(w)).clamp(60, 160);
        text::lines(&report, width, out::colours()).iter().try_for_each(|line| writeln!(stdout, "{line}"))
    };
    printed.and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(report.exit_code)
}

fn stdout_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}

fn examine(root: &Path) -> Result<Report> {
    let begun = Instant::now();
    let facts = kernel::facts(root);
    let mut probes =
        if ebpf::has_object() { ebpf::try_probes(root, &ebpf::Settings::default())? } else { Vec::new() };
    let mut coverage: Vec<Row> = coverage(&probes).into_iter().map(|c| row(c, &probes)).collect();
    coverage.push(uvm_row(root));
    // Without a single probe tried there is a finding of its own.
    let (row, probe) = health::row();
    coverage.push(row);
    if !probes.is_empty() {
        probes.extend(probe);
    }
    let host = Inventory::read(root);
    Ok(report(host, kernel::surroundings(root), facts, (probes, coverage), begun.elapsed()))
}

/// The page faults of one process at a time, by `glake uvm`, which needs no probe.
fn uvm_row(root: &Path) -> Row {
    let refused = if root.join("sys/module/nvidia_uvm").exists() { Seen::No } else { Seen::Off };
    let (state, how, why) = match one_process(root) {
        UvmAnswer::Yes(how) => (Seen::Yes, vec![how], Vec::new()),
        UvmAnswer::No { reason, remedy } => (refused, Vec::new(), vec![format!("{reason} -> {remedy}")]),
        UvmAnswer::CannotTell(error) => (Seen::Unknown, Vec::new(), vec![error]),
    };
    Row {
        family: "uvm_process".to_owned(),
        title: "UVM page faults, one process".to_owned(),
        state,
        required_missing: false,
        how,
        why,
    }
}

fn report(
    mut host: Inventory,
    surroundings: Vec<String>,
    facts: Vec<Fact>,
    (probes, coverage): (Vec<Probe>, Vec<Row>),
    took: Duration,
) -> Report {
    // Names of pods have no place in a report that is mailed around.
    host.containers.clear();
    let findings = findings::of(&facts, &surroundings, &coverage, !probes.is_empty());
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let (failures, warnings, unknown) = (count(Level::Fail), count(Level::Warn), count(Level::Unknown));
    let exit_code = match (failures, warnings + unknown) {
        (0, 0) => exit::OK,
        (0, _) => exit::FAILED,
        _ => exit::USAGE,
    };
    Report {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        commit: super::version::COMMIT,
        host,
        surroundings,
        facts,
        coverage,
        probes,
        findings,
        failures,
        warnings,
        unknown,
        exit_code,
        took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

fn row(coverage: Coverage, probes: &[Probe]) -> Row {
    let mut how: Vec<String> = Vec::new();
    for text in coverage.how {
        if !how.contains(&text) {
            how.push(text);
        }
    }
    Row {
        title: title(&coverage.family).to_owned(),
        state: coverage.state.into(),
        required_missing: probes
            .iter()
            .any(|p| p.family == coverage.family && p.required && p.state != ProbeState::On),
        how,
        why: reasons(&coverage.family, probes),
        family: coverage.family,
    }
}

/// Reasons of the probes of a family that are not on; probes with the same reason share a line.
fn reasons(family: &str, probes: &[Probe]) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    let missing = |state: ProbeState| probes.iter().filter(move |p| p.family == family && p.state == state);
    let refused = missing(ProbeState::Failed).chain(missing(ProbeState::Detached));
    for p in refused.chain(missing(ProbeState::Off)) {
        let Some(reason) = &p.reason else { continue };
        let text = match &p.remedy {
            Some(remedy) => format!("{reason} -> {remedy}"),
            None => reason.clone(),
        };
        match found.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(&p.name),
            None => found.push((text, vec![&p.name])),
        }
    }
    let all = probes.iter().filter(|p| p.family == family).count();
    let line = |(text, names): (String, Vec<&str>)| {
        // Where it is the whole family, the names say nothing.
        if names.len() == all { text } else { format!("{}: {text}", names.join(", ")) }
    };
    found.into_iter().map(line).collect()
}

/// What people call a family of probes.
fn title(family: &str) -> &str {
    match family {
        "block" => "block I/O latency",
        "nvme" => "NVMe commands",
        "iommu" => "IOMMU map rate, faults",
        "dma" => "DMA map rate per device",
        "swiotlb" => "swiotlb bounces",
        "aer" => "PCIe errors (AER)",
        "io_uring" => "io_uring punted requests",
        "xid" => "Xid, SXid",
        "uvm" => "UVM page faults, all processes",
        other => other,
    }
}

#[cfg(test)]
mod tests;
