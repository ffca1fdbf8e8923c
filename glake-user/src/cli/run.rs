//! `glake run`: the agent, or one look with `--once`.

use super::{exit, out, view};
use crate::{
    agent::{
        Agent, Sampler, Shared, Until,
        config::{Layered, Request},
        http::Limits,
        live, logger,
    },
    error::{Error, Kind, Result},
    telemetry::state::{State, Status},
};
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

/// Watch this host: attach the probes and answer /metrics, /api/v1/state, /healthz, /livez
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sudo glake run\n  sudo glake run --once --json | jq .coverage\n  \
    sudo glake run --for 10s\n  sudo glake run --listen 127.0.0.1:9600 --full-for 30s\n\n\
    Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 done, but something wanted is not watched.\n\
    Signals: SIGTERM and SIGINT end it within 2 s; SIGHUP reads the configuration again, all of it or nothing.")]
pub(super) struct Args {
    /// Read this file in place of /etc/glake/glake.toml
    #[arg(long, value_name = "FILE", env = "GLAKE_CONFIG")]
    config: Option<PathBuf>,
    /// Take one look: attach, wait one interval, print rates, end. Answers nothing over HTTP
    #[arg(long, conflicts_with = "duration")]
    once: bool,
    /// With --once or --for: print the state as JSON, one line each
    #[arg(long)]
    json: bool,
    /// Time between readings: 200ms to 60s
    #[arg(long, value_name = "TIME")]
    interval: Option<String>,
    /// Run for so long, with a line per device every interval on stdout
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<String>,
    /// Print a line per device every interval on stdout
    #[arg(long)]
    lines: bool,
    /// Which probes: light or full
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Start with the probes of profile full, and go back to the configured ones after so long
    #[arg(long, value_name = "TIME")]
    full_for: Option<String>,
    /// Do not attach this probe; may be given more than once
    #[arg(long, value_name = "NAME")]
    disable_probe: Vec<String>,
    /// Address and port to answer on
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// User to become once the probes are attached: name, uid or uid:gid
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Drop every capability once the probes are attached
    #[arg(long)]
    seal: bool,
}

impl Args {
    fn flags(&self) -> Vec<(&'static str, String)> {
        let given = [
            ("interval", &self.interval),
            ("profile", &self.profile),
            ("http.listen", &self.listen),
            ("privileges.user", &self.user),
        ];
        let mut flags: Vec<_> =
            given.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))).collect();
        if !self.disable_probe.is_empty() {
            flags.push(("disabled_probes", self.disable_probe.join(",")));
        }
        if self.seal {
            flags.push(("privileges.seal", "true".into()));
        }
        flags
    }
}

/// Runs it.
pub(super) fn run(args: Args) -> Result<u8> {
    let request = Request::of_process(args.config.clone(), args.flags());
    let layered = Layered::read(&request)?;
    logger::start(layered.config.log);
    let time = |flag: &str, text: &Option<String>| -> Result<Option<Duration>> {
        let parsed = text.as_deref().map(crate::agent::config::duration).transpose();
        parsed.map_err(|why| Error::new(Kind::Misuse, format!("{flag}: {why}")))
    };
    let (duration, full_for) = (time("--for", &args.duration)?, time("--full-for", &args.full_for)?);
    if args.once {
        return once(&layered, args.json);
    }
    let lines = args.lines || duration.is_some();
    let agent = Agent {
        layered,
        request,
        open: Box::new(live::open),
        root: PathBuf::from("/"),
        limits: Limits::default(),
        full_for,
    };
    let mut printer = Printer { json: args.json, lines: view::Lines::default() };
    let mut report = |state: &State| if lines { printer.print(state) } else { Ok(()) };
    let outcome = agent.run(duration.map_or(Until::Signal, Until::Elapsed), &mut report)?;
    // A service that was told to end did what it was asked for; a look of ten seconds answers how well it saw.
    Ok(if outcome.degraded && duration.is_some() { exit::DEGRADED } else { exit::OK })
}

/// Attach, wait one interval, print.
fn once(layered: &Layered, json: bool) -> Result<u8> {
    let config = &layered.config;
    let shared = Shared::new(config.interval);
    let mut sampler = Sampler::new(live::open(config)?, Path::new("/").to_owned());
    sampler.step(&shared)?;
    std::thread::sleep(config.interval);
    let reading = sampler.step(&shared)?;
    Printer { json, lines: view::Lines::default() }.print(&reading.state)?;
    for reason in &reading.state.health.reasons {
        out::say(format_args!("glake: degraded: {reason}"));
    }
    Ok(if reading.state.health.status == Status::Degraded { exit::DEGRADED } else { exit::OK })
}

/// Prints states: as JSON, or a line per device.
struct Printer {
    json: bool,
    lines: view::Lines,
}

impl Printer {
    fn print(&mut self, state: &State) -> Result<()> {
        // A first reading has no rates: nothing to show yet.
        if state.interval_ns.is_none() {
            return Ok(());
        }
        let text = if self.json {
            let text = serde_json::to_string(state);
            text.map_err(|e| Error::new(Kind::Io, "writing the state as JSON").because(e))? + "\n"
        } else {
            self.lines.of(state).into_iter().map(|line| line + "\n").collect()
        };
        let mut stdout = out::stdout();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(out::failed)
    }
}
