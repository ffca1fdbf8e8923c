//! At which limits a recorded run still finishes: GLake, and torch's expandable segments as modelled.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use glake::gpu::{Costs, Device};
use glake::standin::gpu::{HostGpu, Settings};
use glake::stitch::model::Expandable;
use glake::stitch::trace::{Outcome, Target, TraceEvent, play, scaled};
use glake::stitch::{Heap, HeapTarget, Options};

/// Thousandths of the peak that the limit leaves above it.
const ABOVE: [u64; 7] = [8, 10, 12, 14, 16, 20, 25];

/// At how many limits only one of the two finished.
#[derive(Default)]
pub(crate) struct Tight {
    pub(crate) only_glake: u32,
    pub(crate) only_expandable: u32,
}

/// One line per trace and scale: for each limit, who finishes.
pub(crate) fn report(files: &[std::path::PathBuf]) -> Result<Tight> {
    let mut tight = Tight::default();
    for file in files {
        let base = super::policy::load(file)?;
        for scale in [1.0, 0.9, 1.13] {
            let events = scaled(&base.events, scale);
            let peak = expandable(&events, u64::MAX)?.peak_allocated;
            println!("{} x{scale}: {:.3} GiB at the peak", name(file), peak as f64 / f64::from(1 << 30));
            for above in ABOVE {
                let limit = peak / 1000 * (1000 + above);
                let (theirs, ours) = (expandable(&events, limit)?, glake(&events, limit)?);
                match (theirs.failed.is_some(), ours.failed.is_some()) {
                    (true, false) => tight.only_glake += 1,
                    (false, true) => tight.only_expandable += 1,
                    _ => {}
                }
                let said = |out: &Outcome| if out.failed.is_none() { "finished" } else { "out of memory" };
                println!(
                    "  {:.1} % more: expandable_segments {:<13}  glake {:<13}  late {:.3} %  longest stall {:.1} ms",
                    above as f64 / 10.0,
                    said(&theirs),
                    said(&ours),
                    ours.late_driver_share().unwrap_or(f64::NAN) * 100.0,
                    ours.largest_stall_ns as f64 / 1e6
                );
            }
        }
    }
    Ok(tight)
}

fn name(file: &Path) -> String {
    file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn played(events: &[TraceEvent], target: &mut dyn Target) -> Result<Outcome> {
    play(events, target, &mut |_, _| {}).map_err(|e| anyhow!(e.chain()))
}

fn expandable(events: &[TraceEvent], limit: u64) -> Result<Outcome> {
    played(events, &mut Expandable::new(&Default::default(), Costs::H200, limit))
}

fn glake(events: &[TraceEvent], limit: u64) -> Result<Outcome> {
    let settings = Settings { lag_ns: 50_000_000, ..Settings::default() };
    let gpu = Arc::new(HostGpu::new(settings)?);
    let heap = Heap::new(
        Arc::clone(&gpu) as Arc<dyn Device>,
        Options { max_bytes: Some(limit), ..Options::default() },
    )?;
    played(events, &mut HeapTarget::new(&heap, Box::new(move |ns| gpu.advance_to(ns))))
}
