//! Traces played into the heap: how much it holds and what it costs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use glake::gpu::{Costs, Device};
use glake::standin::gpu::{HostGpu, Settings};
use glake::stitch::model::Expandable;
use glake::stitch::snapshot::{self, Limits, Run};
use glake::stitch::trace::{Outcome, TraceEvent, play, scaled};
use glake::stitch::{Heap, HeapTarget, Options};

use super::goals::Goals;

/// What to play, and how.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Trace files; the repository's two real training runs if none.
    files: Vec<PathBuf>,
    /// Handle sizes in MiB.
    #[arg(long, value_delimiter = ',', default_value = "16")]
    handles: Vec<u64>,
    /// Values of `allocator.handles_per_block`.
    #[arg(long, value_delimiter = ',', default_value = "32")]
    per_block: Vec<u64>,
    /// Values of `allocator.remap_slack_ratio`.
    #[arg(long, value_delimiter = ',', default_value = "0.015")]
    slack: Vec<f64>,
    /// How far the host runs ahead, in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0,5,50,300")]
    lag: Vec<u64>,
    /// Factors for all sizes.
    #[arg(long, value_delimiter = ',', default_value = "1,0.9,1.03,1.13")]
    scale: Vec<f64>,
    /// Print the driver calls of each step, too.
    #[arg(long)]
    steps: bool,
    /// `host` plays in simulated time, `cuda:N` on the real driver as fast as it goes.
    #[arg(long, default_value = "host")]
    device: String,
}

/// A point of the curve.
#[derive(Clone, Copy)]
struct Setting {
    handle_mib: u64,
    per_block: u64,
    slack: f64,
}

/// One line of the table.
pub(crate) struct Row {
    trace: String,
    pub(crate) scale: f64,
    lag_ms: u64,
    setting: Setting,
    pub(crate) outcome: Outcome,
    pub(crate) expandable_ns: u64,
    wall_ms: u128,
}

pub(crate) fn run(args: &Args) -> Result<Vec<Row>> {
    let files = if args.files.is_empty() { super::default_traces() } else { args.files.clone() };
    println!(
        "{:<16} {:>5} {:>6} {:>6} {:>5} {:>6} {:>9} {:>9} {:>7} {:>13} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "trace",
        "scale",
        "ahead",
        "handle",
        "most",
        "slack",
        "allocated",
        "reserved",
        "ratio",
        "warm-up ms",
        "late %",
        "stall ms",
        "late ms",
        "calls",
        "wall ms"
    );
    let mut rows = Vec::new();
    for file in &files {
        let base = load(file)?;
        for &scale in &args.scale {
            let events = scaled(&base.events, scale);
            let expandable = expandable(&base, &events)?;
            for setting in settings(args) {
                for &lag_ms in &args.lag {
                    let start = Instant::now();
                    let outcome = one(&args.device, &events, setting, lag_ms)?;
                    let row = Row {
                        trace: name(file),
                        scale,
                        lag_ms,
                        setting,
                        outcome,
                        expandable_ns: expandable.warm_up_foreground_ns,
                        wall_ms: start.elapsed().as_millis(),
                    };
                    print(&row, args.steps);
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

/// Every combination of the settings asked for.
fn settings(args: &Args) -> Vec<Setting> {
    let mut all = Vec::new();
    for &handle_mib in &args.handles {
        for &per_block in &args.per_block {
            all.extend(args.slack.iter().map(|&slack| Setting { handle_mib, per_block, slack }));
        }
    }
    all
}

fn name(file: &Path) -> String {
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The events of the first device.
pub(crate) fn load(file: &Path) -> Result<Run> {
    let recording = snapshot::read(file, Limits::default()).map_err(|e| anyhow!(e.chain()))?;
    let device = recording.devices.first().ok_or_else(|| anyhow!("{}: no device", file.display()))?;
    Ok(Run::of(&recording, device))
}

fn expandable(_base: &Run, events: &[TraceEvent]) -> Result<Outcome> {
    let mut model = Expandable::new(&Default::default(), Costs::H200, 139 << 30);
    play(events, &mut model, &mut |_, _| {}).map_err(|e| anyhow!(e.chain()))
}

fn one(device: &str, events: &[TraceEvent], setting: Setting, lag_ms: u64) -> Result<Outcome> {
    let options = Options {
        handle_bytes: setting.handle_mib << 20,
        handles_per_block: setting.per_block,
        remap_slack_ratio: setting.slack,
        ..Options::default()
    };
    let settings = Settings { costs: Costs::H200, lag_ns: lag_ms * 1_000_000, ..Settings::default() };
    let host = (device == "host").then(|| HostGpu::new(settings).map(Arc::new)).transpose()?;
    let gpu: Arc<dyn Device> = match &host {
        Some(host) => Arc::clone(host) as Arc<dyn Device>,
        None => super::device(device)?,
    };
    let heap = Heap::new(gpu, options)?;
    let clock = Box::new(move |ns| {
        if let Some(host) = &host {
            host.advance_to(ns);
        }
    });
    let mut target = HeapTarget::new(&heap, clock);
    let outcome = play(events, &mut target, &mut |_, _| {}).map_err(|e| anyhow!(e.chain()))?;
    heap.verify().map_err(|e| anyhow!("the heap's books are broken: {e}"))?;
    Ok(outcome)
}

fn print(row: &Row, steps: bool) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let ms = |ns: u64| ns as f64 / 1e6;
    let out = &row.outcome;
    println!(
        "{:<16} {:>5} {:>4}ms {:>3}MiB {:>5} {:>6} {:>9.3} {:>9.3} {:>7.4} {:>6.1}/{:<6.1} {:>8.4} {:>8.2} {:>8.2} {:>7} {:>7}{}",
        row.trace,
        row.scale,
        row.lag_ms,
        row.setting.handle_mib,
        row.setting.per_block,
        row.setting.slack,
        gib(out.peak_requested),
        gib(out.peak_reserved),
        out.allocated_to_reserved_ratio().unwrap_or(f64::NAN),
        ms(out.warm_up_foreground_ns),
        ms(row.expandable_ns),
        out.late_driver_share().unwrap_or(f64::NAN) * 100.0,
        ms(out.largest_stall_ns),
        ms(out.largest_late_stall_ns),
        out.end.driver_calls,
        row.wall_ms,
        if out.failed.is_some() { "  DID NOT FIT" } else { "" },
    );
    if steps {
        println!("  driver calls by step: {:?}", out.calls_by_step);
    }
}

/// What `cargo xtask bench alloc` prints: both training runs at every run-ahead and scale, the users' snapshots, and the
/// curve of the settings.
pub(crate) fn report(goals: &mut Goals) -> Result<()> {
    let args =
        |text: &[&str]| <Alone as clap::Parser>::parse_from(std::iter::once(&"policy").chain(text)).args;
    println!("Both training runs, every run-ahead and scale; driver time modelled on the H200's call costs");
    goals.of_runs(&run(&args(&[]))?);
    println!("\nUsers' snapshots");
    let mut cases = args(&["--lag", "50", "--scale", "1"]);
    cases.files = super::user_snapshots();
    goals.of_snapshots(&run(&cases)?);
    println!("\nThe curve of the settings");
    run(&args(&[
        "--lag",
        "50",
        "--scale",
        "1",
        "--handles",
        "8,16,32",
        "--per-block",
        "32,1000000",
        "--slack",
        "0,0.015,0.1",
    ]))?;
    Ok(())
}

#[derive(clap::Parser)]
struct Alone {
    #[command(flatten)]
    args: Args,
}
