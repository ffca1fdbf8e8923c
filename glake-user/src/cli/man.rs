//! `glake man DIR`: the manual pages, one per command, from the same text as `--help`. Used by `cargo xtask dist`.

use super::{exit, out};
use crate::error::{Error, Result};
use std::{fs, path::PathBuf};

/// Writes the manual pages.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake man target/man   # glake.1, glake-watch.1, ...")]
pub(super) struct Args {
    /// The folder to write them to; made if missing.
    dir: PathBuf,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let failed = |e| Error::os(format!("writing manual pages to {}", args.dir.display()), e);
    fs::create_dir_all(&args.dir).map_err(failed)?;
    // `generate_to` writes one page per visible subcommand, at every depth.
    clap_mangen::generate_to(super::command(), &args.dir).map_err(failed)?;
    out::say(format_args!("glake: manual pages are in {}", args.dir.display()));
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        run(Args { dir: dir.path().into() }).unwrap();
        assert!(dir.path().join("glake.1").is_file());
        for sub in crate::cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let page = dir.path().join(format!("glake-{}.1", sub.get_name()));
            assert!(page.is_file(), "{} is missing", page.display());
        }
    }
}
