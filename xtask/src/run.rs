//! `cargo xtask run`: the main job, on this machine or in a guest.
//!
//! It builds as the person who calls it and lifts only the finished binary to root. Where this machine cannot run
//! probes, a guest can: it says so and goes there.
use std::{fs, io::IsTerminal, process::Command};

use anyhow::{Context, Result};
use clap::Parser;

use crate::{build, cmd, say, tree::Tree, vm};

/// Arguments of `cargo xtask run`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// In a guest with NVMe SSDs and an IOMMU, under load: needs neither root nor hardware
    #[arg(long)]
    vm: bool,
    /// The guest's kernel: `lts`, `newest` or a version
    #[arg(long, default_value = "lts")]
    kernel: String,
    /// Optimised, as it is shipped
    #[arg(long)]
    release: bool,
    /// What glake is to do instead of showing live I/O: `-- doctor`, `-- run --once --json`
    #[arg(last = true)]
    glake: Vec<String>,
}

/// Runs glake and returns its exit status.
pub fn run(tree: &Tree, args: &Args) -> Result<i32> {
    if args.vm {
        return guest(tree, args);
    }
    let rights = rights(
        rustix::process::geteuid().is_root(),
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
        cmd::on_path("sudo").is_some() && std::io::stdin().is_terminal(),
    );
    match rights {
        Rights::Here => here(tree, args, Command::new),
        Rights::Sudo => here(tree, args, sudo),
        Rights::None(why) => {
            say::step("run", &format!("{why}; showing a guest with NVMe SSDs under load instead (`--vm`)"));
            guest(tree, args)
        }
    }
}

fn here(tree: &Tree, args: &Args, start: impl Fn(std::path::PathBuf) -> Command) -> Result<i32> {
    let glake = build::glake(tree, args.release.into())?;
    let mut command = start(glake);
    command.args(words(args));
    say::step("run", &cmd::shown(&command));
    let status = command.status().with_context(|| cmd::shown(&command))?;
    // A person ends a live view with Ctrl-C, which is no failure.
    Ok(status.code().unwrap_or(0))
}

fn sudo(glake: std::path::PathBuf) -> Command {
    say::step("run", "probes need root: sudo starts the binary that was just built, nothing else");
    let mut command = Command::new("sudo");
    command.arg("-E").arg(glake);
    command
}

/// What glake is to do: for a person the screen, else a line for each device every two seconds.
fn words(args: &Args) -> Vec<String> {
    if !args.glake.is_empty() {
        return args.glake.clone();
    }
    let show: &[&str] = if std::io::stdout().is_terminal() { &["watch"] } else { &["run", "--lines"] };
    show.iter().map(|word| (*word).to_owned()).collect()
}

/// Whether probes can be loaded from here.
#[derive(Debug, PartialEq, Eq)]
enum Rights {
    Here,
    Sudo,
    None(&'static str),
}

/// From the text of `/proc/self/status`: root in a container may lack the capabilities.
fn rights(root: bool, status: &str, sudo: bool) -> Rights {
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    // linux/capability.h: CAP_SYS_ADMIN 21, CAP_PERFMON 38, CAP_BPF 39.
    let has = |bit: u32| bits >> bit & 1 == 1;
    match (has(21) || (has(38) && has(39)), root, sudo) {
        (true, ..) => Rights::Here,
        (false, true, _) => Rights::None("root lacks CAP_BPF and CAP_PERFMON here, as in a container"),
        (false, false, true) => Rights::Sudo,
        (false, false, false) => Rights::None("probes need root, and sudo cannot ask for it here"),
    }
}

/// A load on two SSDs that goes on for as long as the view is open, and the view.
/// An emulated processor takes so long for a probe that the watchdog would take it off.
const LOAD: &str = ". /lab/lib.sh
export GLAKE_MAX_CPU_PERCENT=100
for ssd in glake0 glake1; do
    ioload /dev/$(disk $ssd) read:40x4096 write:10x65536 flush:1 --depth 4 --pause-ms 5 --seconds 86400 >/dev/null &
done
exec \"$@\"";

#[derive(Parser)]
struct Guest {
    #[command(flatten)]
    vm: vm::Args,
}

fn guest(tree: &Tree, args: &Args) -> Result<i32> {
    let day = ["xtask", "--timeout", "86400", "--kernel", &args.kernel, "--", "sh", "-c", LOAD, "glake"];
    let mut line: Vec<String> = day.map(str::to_owned).into();
    line.push("glake".to_owned());
    line.extend(if args.glake.is_empty() {
        ["run", "--lines", "--profile", "full"].map(str::to_owned).into()
    } else {
        args.glake.clone()
    });
    vm::run(tree, &Guest::parse_from(line).vm)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "Name:\tx\nCapEff:\t000001ffffffffff\n";
    const DOCKER: &str = "CapEff:\t00000000a80425fb\n";
    const NONE: &str = "CapEff:\t0000000000000000\n";

    #[test]
    fn who_has_the_capabilities_runs_here() {
        assert_eq!(rights(true, ALL, false), Rights::Here);
        let bpf_and_perfmon = "CapEff:\t000000c000000000\n";
        assert_eq!(rights(false, bpf_and_perfmon, false), Rights::Here);
        let bpf_only = "CapEff:\t0000008000000000\n";
        assert_ne!(rights(false, bpf_only, false), Rights::Here);
    }

    #[test]
    fn a_person_with_sudo_is_asked_and_a_script_goes_to_the_guest() {
        assert_eq!(rights(false, NONE, true), Rights::Sudo);
        assert!(matches!(rights(false, NONE, false), Rights::None(_)));
    }

    #[test]
    fn root_of_a_container_goes_to_the_guest() {
        assert!(matches!(rights(true, DOCKER, true), Rights::None(why) if why.contains("container")));
        assert!(matches!(rights(true, "", true), Rights::None(_)));
    }
}
