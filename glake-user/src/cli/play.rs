//! `glake play FILE`: a recording on the screen, as lines, or as JSON, the same every time.

use super::screen::{self, Feed, Request, Update};
use super::values::{self, Place, Speed};
use super::{exit, out, view};
use crate::clock::Stamp;
use crate::error::{Error, Kind, Result};
use crate::events::{
    recording::{Playback, Reader},
    sample::Sample,
};
use crate::host::inventory::Inventory;
use crate::telemetry::state::State;
use std::{
    fs::File,
    io::{IsTerminal, Read, Write},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

/// Play back a recording made by `glake record`.
///
/// On a terminal it is the screen of `glake watch`; elsewhere a line per busy device and interval; with --json one
/// state per line, exactly as the agent's /api/v1/state was at that moment. Needs no privilege.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  glake play incident.glrec                       # on the screen, as fast as it happened
  glake play incident.glrec --at 02:14 --speed 20 # from 02:14 UTC on, twenty times as fast
  glake play incident.glrec --json | jq .xid      # as the agent's JSON
  zcat mailed.gz | glake play -                   # from standard input")]
pub(super) struct Args {
    /// The recording; `-` is standard input.
    file: PathBuf,
    /// How fast: 1, 0.5, 20 ..., or max. On the screen 1 when left out, else max.
    #[arg(long, value_parser = values::speed, value_name = "N|max")]
    speed: Option<Speed>,
    /// Where to begin: 90s after the begin, or 02:14:09 of the clock in UTC.
    #[arg(long, value_parser = values::place, value_name = "T")]
    at: Option<Place>,
    /// One state in JSON per line.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let input: Box<dyn Read + Send> = if args.file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let opened = File::open(&args.file);
        Box::new(opened.map_err(|e| Error::os(format!("opening {}", args.file.display()), e))?)
    };
    let reader = Reader::new(input).map_err(|e| named(&args.file, e))?;
    if reader.header().redacted {
        out::say(format_args!("glake: names in this recording are stand-ins (it was made with --redact)"));
    }
    let played = Played::new(reader, args.at);
    if args.json || !std::io::stdout().is_terminal() {
        return print(played, args.json, args.speed.unwrap_or(Speed::Max));
    }
    let speed = args.speed.unwrap_or(Speed::Times(1.0));
    for query in screen::show(&on_screen(played, &args.file, speed))? {
        writeln!(std::io::stdout(), "{query}").map_err(out::failed)?;
    }
    Ok(exit::OK)
}

fn named(file: &Path, error: Error) -> Error {
    let remedy = error.remedy_text().map(str::to_owned);
    let named = Error::new(error.kind(), format!("playing {}", file.display())).because(error);
    if let Some(remedy) = remedy { named.remedy(remedy) } else { named }
}

/// The states of a recording, one after the other.
struct Played<R> {
    playback: Playback<R>,
    older: Sample,
    begin: Option<Stamp>,
    from: Option<Place>,
}

impl<R: Read> Played<R> {
    fn new(reader: Reader<R>, from: Option<Place>) -> Self {
        Played { playback: Playback::new(reader), older: Sample::default(), begin: None, from }
    }

    /// The next state at or after the place to begin; `None` at the end.
    fn next(&mut self) -> Result<Option<State>> {
        while let Some(sample) = self.playback.next_sample()? {
            let begin = *self.begin.get_or_insert(sample.at);
            let host = self.host()?;
            let older = std::mem::replace(&mut self.older, sample);
            let skip = self.from.is_some_and(|place| before(place, begin, self.older.at));
            if skip {
                continue;
            }
            self.from = None;
            // Nothing is known of the time between two boots.
            let same_boot = older.at.monotonic_ns <= self.older.at.monotonic_ns;
            let older = if same_boot { older } else { Sample::default() };
            return Ok(Some(State::between(&older, &self.older, &host)));
        }
        match self.from.take() {
            Some(_) if self.begin.is_some() => {
                Err(Error::new(Kind::Misuse, "--at lies after the end of the recording")
                    .remedy(format!("its last sample is at {}", view::clock_text(self.older.at.realtime_ns))))
            }
            _ => Ok(None),
        }
    }

    fn host(&self) -> Result<Inventory> {
        let host = self.playback.host();
        if host.is_null() {
            return Ok(Inventory::default());
        }
        serde_json::from_value(host.clone())
            .map_err(|e| Error::new(Kind::BadInput, "reading the host's facts of the recording").because(e))
    }

    /// What was damaged or missing since the last call, one sentence each.
    fn warnings(&mut self) -> Vec<String> {
        let mut all = self.playback.reader().take_warnings();
        let gaps = self.playback.take_gaps();
        all.extend(gaps.iter().map(|gap| {
            let at = view::clock_text(gap.at.realtime_ns);
            format!("{} samples before {at} were not recorded: {}", gap.samples, gap.reason)
        }));
        all
    }
}

/// Whether a sample lies before the place.
fn before(place: Place, begin: Stamp, at: Stamp) -> bool {
    let since = at.realtime_ns.saturating_sub(begin.realtime_ns) / 1_000_000_000;
    match place {
        Place::After(after) => at.monotonic_ns.saturating_sub(begin.monotonic_ns) < after.as_nanos() as u64,
        Place::Clock(second) => {
            const DAY: u64 = 86_400;
            // How long after the begin the clock first shows it.
            let wait = (second + DAY - begin.realtime_ns / 1_000_000_000 % DAY) % DAY;
            since < wait
        }
    }
}

fn print<R: Read>(mut played: Played<R>, json: bool, speed: Speed) -> Result<u8> {
    let mut stdout = out::stdout();
    let mut lines = view::Lines::default();
    let mut pace = Pace::new(speed);
    loop {
        let state = played.next();
        for warning in played.warnings() {
            out::say(format_args!("glake: {warning}"));
        }
        let Some(state) = state? else { break };
        std::thread::sleep(pace.wait(state.at.monotonic_ns));
        if json {
            let text = serde_json::to_string(&state)
                .map_err(|e| Error::new(Kind::Misuse, "turning a state into JSON").because(e))?;
            writeln!(stdout, "{text}").map_err(out::failed)?;
        } else {
            for line in lines.of(&state) {
                writeln!(stdout, "{line}").map_err(out::failed)?;
            }
        }
        // At full speed a flush per state would be most of the work.
        if speed != Speed::Max {
            stdout.flush().map_err(out::failed)?;
        }
    }
    stdout.flush().map_err(out::failed)?;
    Ok(exit::OK)
}

/// Turns recorded time into waiting time.
struct Pace {
    speed: Speed,
    /// A recorded instant and the real one at which it was due.
    anchor: Option<(u64, Instant)>,
}

impl Pace {
    fn new(speed: Speed) -> Self {
        Pace { speed, anchor: None }
    }

    /// How long to wait for the sample of time `t`.
    fn wait(&mut self, t: u64) -> Duration {
        let Speed::Times(speed) = self.speed else { return Duration::ZERO };
        let (from, real) = *self.anchor.get_or_insert_with(|| (t, Instant::now()));
        if t < from {
            self.anchor = None;
            return Duration::ZERO;
        }
        let due = Duration::try_from_secs_f64((t - from) as f64 / 1e9 / speed).unwrap_or(Duration::MAX);
        due.saturating_sub(real.elapsed())
    }
}

/// Plays on a thread into the screen's channel.
fn on_screen<R: Read + Send + 'static>(played: Played<R>, file: &Path, speed: Speed) -> Feed {
    let (updates, to_screen) = channel();
    let (requests, from_screen) = channel();
    super::stop::watch(updates.clone());
    let speed_text = match speed {
        Speed::Max => "max".to_owned(),
        Speed::Times(n) => format!("{n}x"),
    };
    let source = format!("{} {speed_text}", file.file_name().unwrap_or(file.as_os_str()).to_string_lossy());
    std::thread::spawn(move || {
        if let Err(error) = play_into(played, &updates, &from_screen, speed) {
            // The screen may be gone already.
            let _ = updates.send(Update::Failed(error));
        }
    });
    Feed { source, updates: to_screen, requests, thread: None }
}

fn play_into<R: Read>(
    mut played: Played<R>,
    updates: &Sender<Update>,
    requests: &Receiver<Request>,
    speed: Speed,
) -> Result<()> {
    let mut pace = Pace::new(speed);
    loop {
        let state = played.next();
        let warnings = played.warnings();
        let state = state?;
        let Some(state) = state else {
            let _ = updates.send(Update::Ended);
            return Ok(());
        };
        let mut left = pace.wait(state.at.monotonic_ns);
        let mut held = false;
        // Requests cut the wait short; a pause ends only with its own request.
        loop {
            let asked = if held {
                requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                requests.recv_timeout(left)
            };
            match asked {
                Ok(Request::Pause(pause)) => {
                    held = pause;
                    pace.anchor = None;
                    left = Duration::ZERO;
                }
                Ok(Request::ToggleRecording) => {
                    let _ = updates.send(Update::Note("this is a recording already".into()));
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        if updates.send(Update::State(Box::new(state))).is_err() {
            return Ok(());
        }
        for warning in warnings {
            let _ = updates.send(Update::Note(warning));
        }
    }
}

#[cfg(test)]
mod tests;
