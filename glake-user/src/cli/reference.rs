//! `glake metrics-reference`: the page `docs/metrics.md`, made from the metric table.

use super::{exit, out};
use crate::{error::Result, telemetry::metrics::reference};
use std::io::Write;

/// Print docs/metrics.md, made from the metric table
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

/// Prints the page.
pub(super) fn run(_args: Args) -> Result<u8> {
    let mut stdout = out::stdout();
    stdout.write_all(reference::markdown().as_bytes()).and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}
