//! Watching from this process, without an agent: `glake watch` on a host that has none, and `glake record`.

use super::recorder::{Recorder, Wish};
use crate::clock::Stamp;
use crate::error::{Error, Kind, Result};
use crate::events::{
    ebpf,
    sample::{Probe, ProbeState, Sample},
    source::Source,
};
use crate::host::{inventory, inventory::Inventory, kernel};
use crate::telemetry::state::State;
use std::path::Path;

/// Readings between two looks at which containers run.
const CONTAINERS_EVERY: u64 = 10;

/// A source and what is needed to make states of it.
pub(super) struct Local {
    source: Box<dyn Source>,
    host: Inventory,
    older: Sample,
    readings: u64,
    recorder: Option<Recorder>,
}

impl Local {
    /// Attaches the probes. Needs CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// When not a single probe can be attached, with the reason of the first.
    pub(super) fn start(profile: ebpf::Profile) -> Result<Local> {
        let root = Path::new("/");
        if let Some(why) = why_not(root) {
            return Err(why);
        }
        // Where this is refused, the probes that need it say so.
        let _ = crate::sys::tracefs::mount_for_this_process();
        let live = ebpf::Live::start(ebpf::Settings { profile, ..Default::default() }, root)?;
        let probes = live.probes();
        if !probes.iter().any(|p| p.state == ProbeState::On) {
            return Err(refused(&probes));
        }
        Ok(Local {
            source: Box::new(live),
            host: Inventory::read(root),
            older: Sample::default(),
            readings: 0,
            recorder: None,
        })
    }

    /// Takes a reading, records it where asked, and makes a state of it.
    ///
    /// # Errors
    /// When nothing can be read any more, or the recording cannot be written.
    pub(super) fn step(&mut self) -> Result<State> {
        let newer = self.source.sample()?;
        let events = self.source.events()?;
        if self.readings.is_multiple_of(CONTAINERS_EVERY) {
            self.host.containers = inventory::containers(Path::new("/"));
        }
        self.readings += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.take(&newer, &events, &self.host)?;
        }
        let state = State::between(&self.older, &newer, &self.host);
        self.older = newer;
        Ok(state)
    }

    /// Records from the next reading on.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn record(&mut self, wish: Wish) -> Result<()> {
        if self.older.probes.is_empty() {
            self.older = self.source.sample()?;
        }
        self.recorder = Some(Recorder::create(wish, &self.host, &self.older)?);
        Ok(())
    }

    /// Notes readings that were missed.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub(super) fn gap(&mut self, at: Stamp, samples: u64, reason: &str) -> Result<()> {
        self.recorder.as_mut().map_or(Ok(()), |r| r.gap(at, samples, reason))
    }

    /// Ends the recording, if there is one, and says what is in it.
    ///
    /// # Errors
    /// When its last block cannot be written.
    pub(super) fn finish_recording(&mut self) -> Result<Option<String>> {
        self.recorder.take().map(Recorder::finish).transpose()
    }
}

/// Why this process cannot watch by itself; `None`: it is worth a try.
pub(super) fn why_not(root: &Path) -> Option<Error> {
    if !ebpf::has_object() {
        return Some(
            Error::new(Kind::Unsupported, "this glake was built without its eBPF programs")
                .remedy("build it with `cargo xtask run`, or take a released binary"),
        );
    }
    let missing = kernel::missing_capabilities(root).ok()?;
    let needed: Vec<&str> =
        missing.iter().map(|c| c.name).filter(|n| matches!(*n, "CAP_BPF" | "CAP_PERFMON")).collect();
    (!needed.is_empty()).then(|| {
        Error::new(
            Kind::Denied,
            format!("loading probes needs {}, which this process lacks", needed.join(" and ")),
        )
        .remedy("run it with sudo; `glake doctor` says what else is missing")
    })
}

fn refused(probes: &[Probe]) -> Error {
    let failed = |p: &&Probe| p.state == ProbeState::Failed;
    let first = probes.iter().filter(failed).max_by_key(|p| p.required);
    let why =
        first.and_then(|p| p.reason.clone()).unwrap_or_else(|| "no probe has anything to watch here".into());
    let error = Error::new(Kind::Unsupported, format!("no probe could be attached: {why}"));
    error.remedy(first.and_then(|p| p.remedy.clone()).unwrap_or_else(|| "`glake doctor` tells more".into()))
}
