//! The live probes on a string: reads commands from stdin, answers each with `ok` on stdout.
//! The lab's jobs use it to read the counters at the exact moments between two loads.
//!
//! `sampler SETTINGS_JSON`, then lines: `sample FILE`, `events FILE`. The first `ok` says that the probes are on.

use anyhow::{Context, Result, bail};
use glake::events::ebpf::{Live, Settings};
use glake::events::source::Source;
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::Path;

fn main() -> Result<()> {
    let settings = std::env::args().nth(1).context("usage: sampler SETTINGS_JSON")?;
    let settings: Settings = serde_json::from_str(&settings).context("settings")?;
    let mut live = Live::start(settings, Path::new("/"))?;
    answer()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("sample", file)) => serde_json::to_writer(File::create(file)?, &live.sample()?)?,
            Some(("events", file)) => serde_json::to_writer(File::create(file)?, &live.events()?)?,
            _ => bail!("unknown command {line:?}"),
        }
        answer()?;
    }
    Ok(())
}

fn answer() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ok")?;
    out.flush().context("stdout")
}
