//! One file per subcommand. Results on stdout, talk on stderr; a broken pipe is success.
//!
//! To add a subcommand: a file with `pub struct Args` (clap's `Args`, with examples in `after_help`) and
//! `pub fn run(args: Args) -> Result<u8>`; then its `mod` line, its variant of `Command` and its arm in
//! `Command::run`. A test asks every command for an example.

mod bench;
mod client;
mod completions;
mod config;
mod copy;
mod doctor;
mod events;
mod explain_oom;
mod load;
mod local;
mod man;
pub mod out;
mod play;
mod python;
mod record;
mod recorder;
mod reference;
mod replay_alloc;
mod run;
mod screen;
mod stop;
mod uvm;
mod values;
pub(crate) mod version;
pub mod view;
mod watch;
mod who;

use crate::error::{Error, Result};
use clap::{CommandFactory, Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode};

/// Exit codes are an interface: `docs/cli.md` lists them.
pub mod exit {
    /// Everything asked for was done.
    pub const OK: u8 = 0;
    /// The command failed; stderr says what, with the remedy. For `doctor`: warnings.
    pub const FAILED: u8 = 1;
    /// The command line or configuration is wrong. For `doctor`: failures.
    pub const USAGE: u8 = 2;
    /// Done, but in part: something wanted could not be watched.
    pub const DEGRADED: u8 = 3;
}

/// GPU memory and I/O on Linux hosts: what hurts, where the bytes are, which way they go.
#[derive(Debug, Parser)]
#[command(
    name = "glake",
    version = version::SHORT,
    long_version = version::long(),
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed (doctor: warnings), 2 wrong usage or configuration (doctor: failures), \
                  3 done in part."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Events(events::Args),
    Run(run::Args),
    Config(config::Args),
    #[command(alias = "faults")]
    Uvm(uvm::Args),
    Who(who::Args),
    Doctor(doctor::Args),
    Watch(watch::Args),
    Record(record::Args),
    Play(play::Args),
    #[command(alias = "simulate")]
    ReplayAlloc(replay_alloc::Args),
    ExplainOom(explain_oom::Args),
    Copy(copy::Args),
    Load(load::Args),
    Bench(bench::Args),
    Exec(python::Exec),
    Ab(python::Ab),
    #[command(hide = true)]
    Man(man::Args),
    #[command(hide = true)]
    Completions(completions::Args),
    #[command(hide = true)]
    MetricsReference(reference::Metrics),
    #[command(hide = true)]
    PermissionsReference(reference::Permissions),
}

impl Command {
    fn run(self) -> Result<u8> {
        match self {
            Command::Events(args) => events::run(args),
            Command::Run(args) => run::run(args),
            Command::Config(args) => config::run(args),
            Command::Uvm(args) => uvm::run(args),
            Command::Who(args) => who::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Watch(args) => watch::run(args),
            Command::Record(args) => record::run(args),
            Command::Play(args) => play::run(args),
            Command::ReplayAlloc(args) => replay_alloc::run(args),
            Command::ExplainOom(args) => explain_oom::run(args),
            Command::Copy(args) => copy::run(args),
            Command::Load(args) => load::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Exec(args) => python::exec(args),
            Command::Ab(args) => python::ab(args),
            Command::Man(args) => man::run(args),
            Command::Completions(args) => completions::run(args),
            Command::MetricsReference(args) => reference::metrics(args),
            Command::PermissionsReference(args) => reference::permissions(args),
        }
    }
}

/// The command line as clap knows it: the source of help, man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the process's command line and runs it.
pub fn main() -> ExitCode {
    ExitCode::from(run_from(std::env::args_os()))
}

/// Runs `glake` for a program that has it as a library; the first argument is the program's name. The exit code.
pub fn run_with(args: Vec<String>) -> u8 {
    run_from(args.into_iter().map(OsString::from))
}

/// Parses `args` (the first is the program's name), runs the command and answers its exit code.
fn run_from(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(answer) => {
            // Help and version are answers on stdout; everything else is talk about wrong usage on stderr.
            let code = if answer.use_stderr() { exit::USAGE } else { exit::OK };
            // Nobody is left to tell when even this cannot be written.
            let _ = answer.print();
            return code;
        }
    };
    match cli.command.run() {
        Ok(code) => code,
        // Whoever read our results has seen enough: `glake events | head` is no failure.
        Err(_) if out::reader_left() => exit::OK,
        Err(error) => {
            out::say(format_args!("glake: {}", error.chain()));
            code_of(&error)
        }
    }
}

/// Wrong usage or input has its own code, so that scripts can tell it from a host that refuses.
fn code_of(error: &Error) -> u8 {
    match error.kind() {
        crate::error::Kind::Misuse => exit::USAGE,
        _ => exit::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        for sub in command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = sub.clone().render_long_help().to_string();
            let example = format!("glake {}", sub.get_name());
            assert!(
                help.contains("Examples:") && help.contains(&example),
                "`glake {} --help` shows no example:\n{help}",
                sub.get_name()
            );
        }
    }

    #[test]
    fn every_command_and_option_says_what_it_does() {
        for sub in command().get_subcommands() {
            assert!(sub.get_about().is_some(), "{} has no description", sub.get_name());
            for arg in sub.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {} has no help", sub.get_name(), arg.get_id());
            }
        }
    }

    #[test]
    fn every_command_has_its_section_in_the_documentation() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
        let page = std::fs::read_to_string(page).unwrap();
        for sub in command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = sub.get_name();
            assert!(
                page.contains(&format!("## glake {name}")),
                "docs/cli.md has no section `## glake {name}`"
            );
        }
    }

    #[test]
    fn the_values_of_every_option_are_read_as_their_type() {
        // A value parser of another type than its field is a panic at run time only.
        for line in [
            "glake play f --speed max --at 90s --json",
            "glake record f --for 1s --max-size 1G --interval 2s --redact --overwrite --light",
            "glake watch --addr 127.0.0.1:1 --once --interval 1s",
            "glake doctor --json",
            "glake copy f gpu:0 --route disk --lanes 4 --part 4MiB --limit 1m --verify",
            "glake load f --device gpu:1 --bench --runs 5",
            "glake bench copy f --device gpu:1 --runs 5 --json",
            "glake completions bash",
            "glake man d",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn wrong_usage_has_its_own_exit_code() {
        assert_eq!(run_from(["glake".into(), "no-such-command".into()]), exit::USAGE);
    }
}
