//! What `glake copy` prints.

use std::io::Write;

use serde_json::{Value, json};

use crate::cli::{exit, out};
use crate::copy::route::{Decision, Facts, State};
use crate::copy::{Engine, Moved, Source};
use crate::error::Result;
use crate::units;

/// A bar on stderr for a copy of `size` bytes; nothing where stderr is no terminal.
pub(in crate::cli) fn bar(size: u64) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(size);
    let style = "{bar:40} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// Prints a result for programs.
pub(in crate::cli) fn print_json(value: &Value) -> Result<u8> {
    let mut out = out::stdout();
    serde_json::to_writer_pretty(&mut out, value).map_err(|e| out::failed(e.into()))?;
    writeln!(out).and_then(|()| out.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}

/// A part's or file's size without needless digits: `4 MiB`.
fn part(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

/// `12 threads x 4 MiB`.
pub(in crate::cli) fn setting(d: &Decision) -> String {
    format!("{} threads x {}", d.lanes, part(d.part_bytes))
}

/// The answer to --explain.
pub(super) struct Explained<'a> {
    pub(super) engine: &'a Engine,
    pub(super) source: &'a Source,
    pub(super) facts: &'a Facts,
    pub(super) decision: &'a Decision,
}

impl Explained<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "source": self.source.path().display().to_string(),
            "bytes": self.source.size(),
            "page_cache_share": self.facts.cached,
            "gpu": self.engine.gpu(),
            "gpu_name": self.engine.device().name(),
            "numa_node": self.engine.node(),
            "decision": self.decision,
        })
    }

    pub(super) fn print(&self) -> Result<u8> {
        let mut out = out::stdout();
        self.write(&mut out).and_then(|()| out.flush()).map_err(out::failed)?;
        Ok(exit::OK)
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let d = self.decision;
        let cached = self.facts.cached.map_or("share in the page cache unknown".to_owned(), |c| {
            format!("{:.0} % in the page cache", c * 100.0)
        });
        let node = self.engine.node().map_or(String::new(), |n| format!(" on NUMA node {n}"));
        let ring = units::bytes((d.lanes * d.parts_per_lane * d.part_bytes) as u64);
        writeln!(out, "{}  {}, {cached}", self.source.path().display(), units::bytes(self.source.size()))?;
        writeln!(out, "GPU {}  {}", self.engine.gpu(), self.engine.device().name())?;
        let expected = match (d.expected_seconds, self.source.size()) {
            (Some(s), size) if s > 0.0 => {
                let rate = units::bytes_per_second(size as f64 / s);
                format!("expect {rate} ({})", units::duration_ns((s * 1e9) as u64))
            }
            _ => "expect: not measured on this host".to_owned(),
        };
        let peers = match self.facts.peers {
            0 => String::new(),
            n => format!(", over {n} other GPU{} too", if n == 1 { "" } else { "s" }),
        };
        let how = format!("{}, {}{peers}, pinned ring {ring}{node}", d.way.label(), setting(d));
        writeln!(out, "CHOSEN  {how}   {expected}")?;
        writeln!(out, " {:<20} {:>11}  {:<11} WHY, AND WHAT WOULD CHANGE IT", "ROUTE", "RATE", "STATE")?;
        for row in d.rows.iter().filter(|r| r.state != State::NotBuilt) {
            let rate = row.bytes_per_second.map_or("-".to_owned(), units::bytes_per_second);
            writeln!(out, " {:<20} {rate:>11}  {:<11} {}", row.way, row.state.label(), row.why)?;
        }
        let missing = d.rows.iter().filter(|r| r.state == State::NotBuilt).map(|r| r.way);
        writeln!(out, "NOT IN THIS VERSION  {}", missing.collect::<Vec<_>>().join(", "))?;
        if self.facts.measured.is_empty() {
            writeln!(out, "MEASURE  glake bench copy {}", self.source.path().display())?;
        }
        Ok(())
    }
}

/// What a copy did.
pub(super) struct Copied<'a> {
    pub(super) engine: &'a Engine,
    pub(super) source: &'a Source,
    pub(super) decision: &'a Decision,
    pub(super) moved: &'a Moved,
    pub(super) verified: Option<u64>,
}

impl Copied<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "source": self.source.path().display().to_string(),
            "gpu": self.engine.gpu(),
            "route": self.decision.way,
            "lanes": self.decision.lanes,
            "part_bytes": self.decision.part_bytes,
            "bytes": self.moved.bytes,
            "relayed_bytes": self.moved.relayed,
            "seconds": self.moved.elapsed.as_secs_f64(),
            "bytes_per_second": rate(self.moved),
            "cpu_seconds": self.moved.cpu.as_secs_f64(),
            "verified_bytes": self.verified,
            "notes": self.moved.notes,
        })
    }

    pub(super) fn print(&self) -> Result<u8> {
        let mut out = out::stdout();
        let verified = self.verified.map_or("", |_| "   every byte verified");
        let line = format!(
            "{}   {}, {}{verified}",
            line(self.moved),
            self.decision.way.label(),
            setting(self.decision)
        );
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(out::failed)?;
        Ok(exit::OK)
    }
}

/// Bytes a second.
pub(in crate::cli) fn rate(moved: &Moved) -> f64 {
    moved.bytes as f64 / moved.elapsed.as_secs_f64().max(1e-9)
}

/// `4.00 GiB in 84.0 ms   51.1 GB/s   CPU 0.21 s a GB`.
pub(in crate::cli) fn line(moved: &Moved) -> String {
    let ns = u64::try_from(moved.elapsed.as_nanos()).unwrap_or(u64::MAX);
    let cpu = moved.cpu.as_secs_f64() / (moved.bytes.max(1) as f64 / 1e9);
    let relayed = match moved.relayed {
        0 => String::new(),
        bytes => format!(" ({} over other GPUs)", units::bytes(bytes)),
    };
    format!(
        "{}{relayed} in {}   {}   CPU {cpu:.2} s a GB",
        units::bytes(moved.bytes),
        units::duration_ns(ns),
        units::bytes_per_second(rate(moved))
    )
}
