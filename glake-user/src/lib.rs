//! GLake: GPU memory and I/O on Linux hosts. The rooms and their one direction are in `docs/architecture.md`;
//! `cargo xtask check` enforces it.
//!
//! `cli, agent -> {copy, place, diagnose, telemetry, stitch} -> {gpu, nvme, events, host} -> sys -> kernel`;
//! [`error`], [`units`], [`clock`] and [`pci`] (spellings of addresses) and `suggest` may be used by all.

pub mod agent;
pub mod cli;
pub mod clock;
pub mod copy;
pub mod diagnose;
pub mod embed;
pub mod error;
pub mod events;
pub mod gpu;
pub mod host;
pub mod pci;
#[cfg(feature = "standin")]
pub mod standin;
pub mod stitch;
mod suggest;
pub mod sys;
pub mod telemetry;
pub mod units;
