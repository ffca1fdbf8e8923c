//! `glake metrics-reference` and `glake permissions-reference`: pages of `docs` that are made from the program's tables.

use super::{exit, out};
use crate::{agent::privileges, error::Result, telemetry::metrics::reference};
use std::io::Write;

/// Print docs/metrics.md, made from the metric table
#[derive(Debug, clap::Args)]
pub(super) struct Metrics {}

/// Print docs/permissions.md, made from the table of capabilities
#[derive(Debug, clap::Args)]
pub(super) struct Permissions {}

/// Prints the page of the metrics.
pub(super) fn metrics(_args: Metrics) -> Result<u8> {
    print(&reference::markdown())
}

/// Prints the page of the permissions.
pub(super) fn permissions(_args: Permissions) -> Result<u8> {
    print(&privileges::markdown())
}

fn print(page: &str) -> Result<u8> {
    let mut stdout = out::stdout();
    stdout.write_all(page.as_bytes()).and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}
