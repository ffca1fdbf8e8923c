//! `glake uvm`: UVM page faults and page migrations of one program, live, from the driver's own event queue.

mod json;
mod mask;
mod screen;
mod signals;
mod watch;
mod windows;

use super::exit;
use super::out::{self, say};
use crate::error::{Error, Kind, Result};
use crate::events::uvm::queue::DEFAULT_ENTRIES;
use screen::Report;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;
use watch::{Ending, News, Wanted};
use windows::Share;

/// Watch a program's UVM page faults and page migrations (paging of managed memory: not errors).
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("what").required(true).args(["pid", "command"])),
    after_help = "Examples:\n  \
        glake uvm -- ./train --steps 10         start a program and watch it and its children\n  \
        glake uvm --pid 41873 --for 30s         watch a running process for 30 s\n  \
        glake uvm --exact -- ./short_test       every event, all the time\n  \
        glake uvm --json --output u.jsonl -- python train.py\n\n\
        By default events are on for 30 ms of each second: numbers are a sample, and the report says of how much.\n\
        --exact counts every event, and costs: on an H200 a program that does nothing but page ran 17 to 20 % (rare ones only,\n\
        light), 55 % (moves) and 57 % (all) longer (docs/benchmarks.md).\n\n\
        With a COMMAND its exit status becomes ours, its output is untouched and the report goes to stderr.\n\
        Another user's process needs root or CAP_SYS_PTRACE; your own child needs neither.\n\
        Exit codes with --pid: 0 done, 1 failed, 3 done but events were dropped."
)]
pub(super) struct Args {
    /// Watch this process. Waits if it has not used managed memory yet.
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// One JSON object a line: `interval` while it runs, `summary` at the end.
    #[arg(long)]
    json: bool,
    /// Which events: all, moves, light, or names with commas between. Fewer cost the program less.
    #[arg(long, value_name = "EVENTS", default_value = "all")]
    events: String,
    /// Events on all the time instead of 30 ms of each second: nothing is estimated, and the program is slowed.
    #[arg(long)]
    exact: bool,
    /// Stop after this time: 30s, 5m. A COMMAND goes on, unwatched.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    limit: Option<Duration>,
    /// How often a line is printed.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    interval: Duration,
    /// Only the summary, no lines.
    #[arg(long)]
    quiet: bool,
    /// Write the report to this file instead; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Entries of the driver's queue (a power of two): more survive a storm, each takes 72 bytes of pinned memory.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ENTRIES, value_parser = entries)]
    entries: u32,
    /// The program to run and watch.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Reads `500ms`, `30s`, `5m`, `2h`.
fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is no time: write 500ms, 30s, 5m or 2h"))?;
    let scale = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("{unit:?} is no unit of time: ms, s, m or h")),
    };
    match number.checked_mul(scale) {
        Some(0) | None => Err(format!("{text:?} is out of range")),
        Some(ms) => Ok(Duration::from_millis(ms)),
    }
}

/// Between 2 and 2^22 entries (302 MB of pinned memory).
fn entries(text: &str) -> Result<u32, String> {
    let n: u32 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if n.is_power_of_two() && (2..=1 << 22).contains(&n) {
        Ok(n)
    } else {
        Err(format!("{n} is not a power of two between 2 and 4194304"))
    }
}

/// Runs it.
///
/// # Errors
/// When the process cannot be watched; with a COMMAND only when it cannot be started.
pub(super) fn run(args: Args) -> Result<u8> {
    let mask = mask::parse(&args.events)?;
    let mut sink = Sink::open(&args)?;
    let asked = signals::Asked::catch()?;
    let mut child = start(&args.command)?;
    let pid = child.as_ref().map_or(args.pid, |c| i32::try_from(c.id()).ok());
    let pid = pid.ok_or_else(|| Error::new(Kind::Misuse, "neither --pid nor a COMMAND"))?;
    let wanted = Wanted {
        pid,
        children: child.is_some(),
        mask,
        share: (!args.exact).then_some(Share::DEFAULT),
        entries: args.entries,
        interval: args.interval,
        limit: args.limit,
    };
    let mut refused = false;
    let watched = watch::watch(&wanted, child.is_some(), &asked, &mut |news| {
        refused |= matches!(news, News::Refused { .. });
        sink.news(&news, args.quiet);
    });
    let Some(child) = child.as_mut() else {
        let (reports, ending) = watched?;
        return finish(&mut sink, &reports, pid, ending);
    };
    // Whatever went wrong with watching, the program's end and its exit status are its own.
    match watched {
        Ok((reports, _)) => {
            if reports.is_empty() && !refused {
                say(format_args!(
                    "glake: the program never opened UVM: it used no managed memory and no CUDA"
                ));
            }
            if let Err(e) = sink.reports(&reports) {
                say(format_args!("glake: {}", e.chain()));
            }
        }
        Err(e) => say(format_args!("glake: not watched: {}", e.chain())),
    }
    status_of(child)
}

fn finish(sink: &mut Sink, reports: &[Report], pid: i32, ending: Ending) -> Result<u8> {
    sink.reports(reports)?;
    if reports.is_empty() {
        let why = match ending {
            Ending::Ended => "it ended without opening UVM: it used no managed memory and no CUDA",
            Ending::Limit | Ending::Signal(_) => "it did not open UVM meanwhile",
        };
        return Err(Error::new(Kind::Missing, format!("nothing to report on process {pid}: {why}")));
    }
    let dropped = reports.iter().any(|r| r.dropped_total() > 0 || !r.complete);
    Ok(if dropped { exit::DEGRADED } else { exit::OK })
}

fn start(command: &[OsString]) -> Result<Option<Child>> {
    let Some((program, args)) = command.split_first() else { return Ok(None) };
    std::process::Command::new(program)
        .args(args)
        .spawn()
        .map(Some)
        .map_err(|e| Error::os(format!("starting {}", program.display()), e))
}

/// The command's exit status as a shell shows it: 128 + n for signal n.
fn status_of(child: &mut Child) -> Result<u8> {
    let status = child.wait().map_err(|e| Error::os("waiting for the command", e))?;
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    Ok(u8::try_from(code & 0xff).unwrap_or(1))
}

/// Where the report goes.
struct Sink {
    to: Box<dyn Write>,
    json: bool,
    live: Live,
}

/// A screen that is drawn anew each interval, where there is one: a terminal, and no program of ours that writes to it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Live {
    Never,
    Possible,
    Drawn,
}

impl Live {
    fn of(args: &Args) -> Live {
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        let plain = args.json || args.quiet || args.output.is_some() || !args.command.is_empty() || dumb;
        if plain || !std::io::stdout().is_terminal() { Live::Never } else { Live::Possible }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Sink {
    fn open(args: &Args) -> Result<Sink> {
        let to: Box<dyn Write> = match &args.output {
            Some(path) if path.as_os_str() == "-" => Box::new(out::stdout()),
            Some(path) => Box::new(
                std::fs::File::create(path)
                    .map_err(|e| Error::os(format!("creating {}", path.display()), e))?,
            ),
            // A command's standard output is its own.
            None if !args.command.is_empty() => Box::new(std::io::stderr()),
            None => Box::new(out::stdout()),
        };
        Ok(Sink { to, json: args.json, live: Live::of(args) })
    }

    fn draw(&mut self, frame: &str) {
        let enter = if self.live == Live::Drawn { "" } else { screen::ENTER };
        self.live = Live::Drawn;
        let _ = write!(self.to, "{enter}{frame}").and_then(|()| self.to.flush());
    }

    /// Gives the terminal its old content back.
    fn leave(&mut self) {
        if self.live == Live::Drawn {
            let _ = write!(self.to, "{}", screen::LEAVE).and_then(|()| self.to.flush());
        }
        self.live = Live::Never;
    }

    /// Talk goes to stderr, lines go to the report. A report nobody reads any more must not end the watched program.
    fn news(&mut self, news: &News<'_>, quiet: bool) {
        match news {
            News::Waiting { pid } => {
                let module = std::path::Path::new("/sys/module/nvidia_uvm").exists();
                let why =
                    if module { "" } else { ": nvidia-uvm is not loaded on this host, no program can have" };
                say(format_args!("glake: waiting: process {pid} has not opened UVM yet{why}"));
            }
            News::Attached { pid, comm, blind } => {
                say(format_args!("glake: watching pid {pid} {comm}; {}", screen::blind_words(blind)));
            }
            News::Refused { pid, error } => {
                say(format_args!("glake: process {pid} is not watched: {}", error.chain()));
            }
            News::Line { .. } if quiet => {}
            News::Line { line, so_far, .. } if self.live != Live::Never => {
                let size = crossterm::terminal::size().unwrap_or((80, 24));
                self.draw(&screen::frame(&so_far(), line, size));
            }
            News::Line { pid, at, line, dropped, on, .. } => {
                let text = if self.json {
                    json::line_json(*pid, *at, line, *dropped, *on).to_string()
                } else {
                    screen::line(*pid, *at, line, *dropped, *on)
                };
                let _ = writeln!(self.to, "{text}").and_then(|()| self.to.flush());
            }
        }
    }

    fn reports(&mut self, reports: &[Report]) -> Result<()> {
        self.leave();
        for r in reports {
            let text = if self.json { format!("{}\n", json::summary_json(r)) } else { screen::summary(r) };
            self.to.write_all(text.as_bytes()).map_err(out::failed)?;
        }
        self.to.flush().map_err(out::failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(time("7"), Ok(Duration::from_secs(7)));
        for bad in ["", "s", "0s", "5d", "1.5s", "-1s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(time(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_queue_s_size_is_a_power_of_two_within_reason() {
        assert_eq!(entries("131072"), Ok(131_072));
        for bad in ["0", "1", "3", "8388608", "x", "-2"] {
            assert!(entries(bad).is_err(), "{bad:?}");
        }
    }
}
