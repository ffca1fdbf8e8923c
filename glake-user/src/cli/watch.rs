//! `glake watch`: the screen. A client of the agent, or, on a host without one, its own source.

use super::local::{self, Local};
use super::recorder::Wish;
use super::screen::{self, Feed, Request, Update};
use super::{client, exit, out, stop, values, view};
use crate::error::{Error, Kind, Result};
use crate::events::ebpf::Profile;
use crate::telemetry::state::State;
use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

/// Where `glake run` listens unless told otherwise.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:9517";
/// How often an agent is asked. It answers from memory, and an unchanged state is not drawn again.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Watch this host's storage and GPUs, live.
///
/// With an agent running (`glake run`) this is its client and needs no privilege. Without one it attaches the probes
/// itself, which needs root, and takes them off when it ends. On a terminal it draws a screen (? shows its keys);
/// elsewhere it prints a line per busy device and interval.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo glake watch                    # this host, with or without an agent
  glake watch --addr 127.0.0.1:9517   # the agent there, nothing else
  glake watch --once                  # one interval as text, then end

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 as text: nothing could be watched")]
pub(super) struct Args {
    /// The agent to ask; without it 127.0.0.1:9517, else this process watches by itself.
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    /// Print one interval as text and end.
    #[arg(long)]
    once: bool,
    /// Time between readings where this process watches by itself.
    #[arg(long, value_parser = values::duration, value_name = "TIME", default_value = "1s")]
    interval: Duration,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let source = find(&args)?;
    let screen = std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !args.once;
    if !screen {
        return print(source, args.once);
    }
    let feed = source.feed()?;
    let exported = screen::show(&feed);
    feed.close();
    for query in exported? {
        writeln!(std::io::stdout(), "{query}").map_err(out::failed)?;
    }
    Ok(exit::OK)
}

/// Where states come from.
enum From {
    Agent { address: String, first: Box<State> },
    Here { local: Box<Local>, interval: Duration },
}

/// The agent where one answers, else this process where it may.
fn find(args: &Args) -> Result<From> {
    let address = args.addr.clone().unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
    let asked = stop::runtime()?.block_on(client::state(&address));
    let error = match asked {
        Ok(first) => return Ok(From::Agent { address, first: Box::new(first) }),
        Err(error) if args.addr.is_some() => return Err(helped(error)),
        Err(error) => error,
    };
    if error.kind() != Kind::Missing {
        out::say(format_args!("glake: {}; watching from this process instead", error.chain()));
    }
    match local::why_not(Path::new("/")) {
        None => Ok(From::Here { local: Box::new(Local::start(Profile::Full)?), interval: args.interval }),
        Some(why) => {
            let remedy = why.remedy_text().map(str::to_owned).unwrap_or_default();
            let text =
                format!("no agent answers on {address}, and this process cannot watch by itself: {why}");
            Err(Error::new(why.kind(), text)
                .remedy(format!("start an agent with `sudo glake run`, or {remedy}")))
        }
    }
}

fn helped(error: Error) -> Error {
    if error.remedy_text().is_some() {
        error
    } else {
        error.remedy("start an agent there with `sudo glake run`")
    }
}

impl From {
    fn feed(self) -> Result<Feed> {
        let (updates, to_screen) = channel();
        let (requests, from_screen) = channel();
        stop::watch(updates.clone());
        let (source, thread) = match self {
            From::Agent { address, first } => {
                // The screen is there: it can no longer fail to receive.
                let _ = updates.send(Update::State(first));
                let source = format!("agent {address}");
                let runtime = stop::runtime()?;
                std::thread::spawn(move || runtime.block_on(ask(&address, &updates, &from_screen)));
                (source, None)
            }
            From::Here { local, interval } => {
                let thread = std::thread::spawn(move || step(*local, interval, &updates, &from_screen));
                ("no agent, own probes".to_owned(), Some(thread))
            }
        };
        Ok(Feed { source, updates: to_screen, requests, thread })
    }
}

/// Asks the agent again and again; what goes wrong is shown until it goes right.
async fn ask(address: &str, updates: &Sender<Update>, requests: &Receiver<Request>) {
    let mut last = None;
    let mut tick = tokio::time::interval(ASK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let update = match client::state(address).await {
            Ok(state) if last == Some(state.at) => None,
            Ok(state) => {
                last = Some(state.at);
                Some(Update::State(Box::new(state)))
            }
            Err(error) => {
                // The same state may come again after a loss, and must then be shown as live.
                last = None;
                Some(Update::Lost(error.chain()))
            }
        };
        if update.is_some_and(|update| updates.send(update).is_err()) {
            return;
        }
        while let Ok(request) = requests.try_recv() {
            if request == Request::ToggleRecording {
                let text = "an agent's state is no recording: sudo glake record FILE";
                let _ = updates.send(Update::Note(text.into()));
            }
        }
    }
}

/// Watches from this process until the screen is gone.
fn step(mut local: Local, interval: Duration, updates: &Sender<Update>, requests: &Receiver<Request>) {
    let mut recording = None;
    let mut due = Instant::now();
    loop {
        match local.step() {
            Ok(state) => _ = updates.send(Update::State(Box::new(state))),
            Err(error) => {
                let _ = updates.send(Update::Failed(error));
                return;
            }
        }
        due = (due + interval).max(Instant::now());
        loop {
            match requests.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Request::ToggleRecording) => toggle(&mut local, interval, &mut recording, updates),
                // The picture is held by the screen; counting goes on.
                Ok(Request::Pause(_)) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    match local.finish_recording() {
                        Ok(Some(said)) => out::say(format_args!("glake: {said}")),
                        Ok(None) => {}
                        Err(error) => out::say(format_args!("glake: {}", error.chain())),
                    }
                    return;
                }
            }
        }
    }
}

fn toggle(local: &mut Local, interval: Duration, recording: &mut Option<PathBuf>, updates: &Sender<Update>) {
    let answer = if recording.take().is_some() {
        local.finish_recording().map(Option::unwrap_or_default)
    } else {
        let name = format!(
            "glake-{}.glrec",
            crate::clock::Clock::now(&crate::clock::SystemClock).realtime_ns / 1_000_000_000
        );
        let path = PathBuf::from(name);
        let wish = Wish { path: path.clone(), overwrite: false, max_size: None, redact: false, interval };
        local.record(wish).map(|()| {
            let text = format!("recording to {}; r ends it", path.display());
            *recording = Some(path);
            text
        })
    };
    let _ = updates.send(Update::Recording(recording.as_ref().map(|path| path.display().to_string())));
    let _ = updates.send(Update::Note(answer.unwrap_or_else(|error| error.chain())));
}

/// The plain view: lines until somebody stops it, or one interval.
fn print(source: From, once: bool) -> Result<u8> {
    let mut stdout = out::stdout();
    let mut lines = view::Lines::default();
    let mut blind = false;
    let mut show = |state: &State| -> Result<bool> {
        if once && state.interval_ns.is_none() {
            return Ok(false);
        }
        for line in lines.of(state) {
            writeln!(stdout, "{line}").map_err(out::failed)?;
        }
        stdout.flush().map_err(out::failed)?;
        blind = view::is_blind(state);
        Ok(once)
    };
    let ended: Result<()> = stop::runtime()?.block_on(async {
        let mut stopped = stop::Signals::new()?;
        match source {
            From::Agent { address, first } => {
                let mut state = *first;
                loop {
                    if show(&state)? {
                        break;
                    }
                    let last = state.at;
                    while state.at == last {
                        if stopped.within(ASK_EVERY).await {
                            return Ok(());
                        }
                        state = client::state(&address).await?;
                    }
                }
            }
            From::Here { mut local, interval } => loop {
                if show(&local.step()?)? || stopped.within(interval).await {
                    break;
                }
            },
        }
        Ok(())
    });
    ended?;
    Ok(if blind { exit::DEGRADED } else { exit::OK })
}
