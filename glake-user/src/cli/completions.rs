//! `glake completions SHELL`: the completion script on stdout.

use super::{exit, out};
use crate::error::Result;
use std::io::Write;

/// Prints the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake completions bash > /etc/bash_completion.d/glake\n  \
                  glake completions zsh > ~/.zfunc/_glake")]
pub(super) struct Args {
    /// Which shell.
    shell: clap_complete::Shell,
}

pub(super) fn run(args: Args) -> Result<u8> {
    // Into memory first: the generator panics when a write fails, and a closed pipe is no accident.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "glake", &mut script);
    let mut stdout = out::stdout();
    stdout.write_all(&script).and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}
