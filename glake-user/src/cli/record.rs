//! `glake record FILE`: every reading and event into a file.

use super::local::Local;
use super::recorder::Wish;
use super::{exit, out, stop, values};
use crate::error::Result;
use crate::events::ebpf::Profile;
use crate::telemetry::state::Status;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Record what the probes see into a file, for `glake play`.
///
/// It attaches its own probes and takes them off at the end; it needs root. Ctrl-C ends it in order. A crash or a full
/// disk costs the last five seconds, never what was written before. The file is readable by its owner only: it holds
/// names of processes and pods, unless --redact replaces them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo glake record incident.glrec --for 10m
  sudo glake record /var/tmp/black-box.glrec --max-size 500M   # the newest 500 MB, until Ctrl-C
  sudo glake record for-support.glrec --for 1m --redact        # no names of processes, pods, hosts

Exit codes: 0 all was recorded, 1 failed, 2 wrong usage, 3 recorded, but a required probe was missing")]
pub(super) struct Args {
    /// The file to make.
    file: PathBuf,
    /// End after this time; without it, at Ctrl-C.
    #[arg(long = "for", value_parser = values::duration, value_name = "TIME")]
    time: Option<Duration>,
    /// Keep at most this much on disk: FILE and, before it, FILE.1.
    #[arg(long, value_parser = values::size, value_name = "SIZE")]
    max_size: Option<u64>,
    /// Replace names of hosts, processes, units and pods, the same by the same.
    #[arg(long)]
    redact: bool,
    /// Replace FILE if it is there.
    #[arg(long)]
    overwrite: bool,
    /// Time between readings.
    #[arg(long, value_parser = values::duration, value_name = "TIME", default_value = "1s")]
    interval: Duration,
    /// Only the cheap probes, as the agent does by default.
    #[arg(long)]
    light: bool,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let mut local = Local::start(if args.light { Profile::Light } else { Profile::Full })?;
    let wish = Wish {
        path: args.file,
        overwrite: args.overwrite,
        max_size: args.max_size,
        redact: args.redact,
        interval: args.interval,
    };
    let path = wish.path.display().to_string();
    local.record(wish)?;
    out::say(format_args!("glake: recording to {path}; Ctrl-C ends it"));
    let recorded = record(&mut local, args.interval, args.time);
    // What was recorded until an error is kept and told.
    let said = local.finish_recording()?;
    let missing = recorded?;
    if let Some(said) = said {
        out::say(format_args!("glake: {said}"));
    }
    match missing {
        None => Ok(exit::OK),
        Some(reason) => {
            out::say(format_args!("glake: recorded in part: {reason}"));
            Ok(exit::DEGRADED)
        }
    }
}

/// Records until the time is over or a signal comes. Answers why something is missing from it.
fn record(local: &mut Local, interval: Duration, time: Option<Duration>) -> Result<Option<String>> {
    let end = time.map(|time| Instant::now() + time);
    let mut due = Instant::now();
    let mut missing = None;
    stop::runtime()?.block_on(async {
        let mut stopped = stop::Signals::new()?;
        loop {
            let state = local.step()?;
            if state.health.status == Status::Degraded {
                missing = missing.or_else(|| state.health.reasons.first().cloned());
            }
            due += interval;
            let now = Instant::now();
            if due <= now {
                let missed = now.duration_since(due).div_duration_f64(interval) as u64;
                if missed > 0 {
                    local.gap(state.at, missed, "late")?;
                    due += interval * u32::try_from(missed).unwrap_or(u32::MAX);
                }
            }
            let next = end.map_or(due, |end| due.min(end));
            if stopped.within(next.saturating_duration_since(Instant::now())).await {
                return Ok(missing);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                // The last one, so that the recording spans all of the time.
                local.step()?;
                return Ok(missing);
            }
        }
    })
}
