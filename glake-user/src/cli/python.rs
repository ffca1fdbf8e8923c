//! `glake exec` and `glake ab`: commands of the Python package, which this binary starts where it is installed.

use crate::error::{Error, Kind, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A training command with GLake under PyTorch, in every process it starts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    glake exec -- python train.py\n  \
    glake exec -- torchrun --nproc-per-node 8 train.py\n  \
    GLAKE_MODE=observe glake exec -- python train.py   only report at the end what it would do\n  \
    GLAKE_DISABLE=1 glake exec -- python train.py      exactly the old behaviour\n\n\
    Needs the Python package (pip install glake) in the python3 on PATH.")]
pub(super) struct Exec {
    /// The command and its arguments, after --.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// The same command with and without GLake, in turn: memory, step times, losses side by side.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    glake ab --steps 50 -- torchrun --nproc-per-node 8 train.py\n  \
    glake ab --runs 2 --json -- python train.py\n\n\
    Needs the Python package (pip install glake) in the python3 on PATH.\n\
    Exit codes: 0 done, 1 a run failed, 2 wrong usage.")]
pub(super) struct Ab {
    /// End each run after this many steps; 0 lets it end by itself.
    #[arg(long, default_value_t = 50)]
    steps: u32,
    /// Runs each way.
    #[arg(long, default_value_t = 4)]
    runs: u32,
    /// As JSON: one object.
    #[arg(long)]
    json: bool,
    /// The command and its arguments, after --.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs it.
pub(super) fn exec(args: Exec) -> Result<u8> {
    start("exec", Vec::new(), args.command)
}

/// Runs it.
pub(super) fn ab(args: Ab) -> Result<u8> {
    let mut words = vec![format!("--steps={}", args.steps), format!("--runs={}", args.runs)];
    words.extend(args.json.then(|| "--json".to_owned()));
    start("ab", words, args.command)
}

/// Replaces this process by the package's command.
fn start(name: &str, options: Vec<String>, command: Vec<String>) -> Result<u8> {
    let has_package = Command::new("python3").args(["-c", "import glake._core"]).output();
    let missing = |why: String| {
        Error::new(Kind::Missing, format!("glake {name} needs the Python package: {why}"))
            .remedy("pip install glake, into the Python that the command uses")
    };
    match has_package {
        Ok(out) if out.status.success() => {}
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stderr);
            return Err(missing(text.lines().last().unwrap_or("python3 failed").to_owned()));
        }
        Err(e) => return Err(missing(format!("python3: {e}"))),
    }
    let mut python = Command::new("python3");
    python.args(["-m", "glake", name]).args(options).arg("--").args(command);
    Err(Error::os("starting python3", python.exec()))
}
