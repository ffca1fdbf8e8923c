//! `glake config check | show`: what the agent would run with, and where each value comes from.

use super::{exit, out};
use crate::{
    agent::{
        config::{Layered, Request},
        web::Web,
    },
    error::{Error, Result},
};
use std::{io::Write, path::PathBuf};

/// Check or show the agent's configuration
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  glake config check --config /etc/glake/glake.toml\n  glake config show\n\n\
    Layers, lowest first: defaults, /etc/glake/glake.toml, --config FILE (in its place), GLAKE_* variables, flags."
)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Check every layer, the web configuration, keys and certificates; say what is wrong
    Check(Source),
    /// Print each value with where it comes from; the output can be used as a file
    Show(Source),
}

#[derive(Debug, clap::Args)]
struct Source {
    /// Read this file in place of /etc/glake/glake.toml
    #[arg(long, value_name = "FILE", env = "GLAKE_CONFIG")]
    config: Option<PathBuf>,
}

/// Runs it.
pub(super) fn run(args: Args) -> Result<u8> {
    let mut stdout = out::stdout();
    let text = match args.what {
        What::Show(source) => Layered::read(&Request::of_process(source.config, Vec::new()))?.show(),
        What::Check(source) => {
            let layered = Layered::read(&Request::of_process(source.config, Vec::new()))?;
            let wrong =
                |e: Error| if e.remedy_text().is_some() { e } else { e.remedy("see http.web_config") };
            let web = Web::read(layered.config.web_config.as_deref()).map_err(wrong)?;
            web.allows(layered.config.listen, layered.config.allow_open)?;
            match &layered.file {
                Some(path) => format!("{} is right\n", path.display()),
                None => "no configuration file: the defaults are in use\n".to_owned(),
            }
        }
    };
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}
