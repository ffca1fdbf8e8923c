//! The agent's configuration: one table of keys, read from layers. Lowest first: defaults, `/etc/glake/glake.toml`,
//! the file of `--config` in its place, `GLAKE_*`, flags. An unknown key is an error wherever it stands.

mod keys;
mod layers;

pub(super) use crate::suggest::nearest;
pub use keys::duration;
pub use keys::{KEYS, Key, Kind};
pub use layers::{DEFAULT_FILE, Layered, Origin, Request};

use crate::events::ebpf::UvmHooks;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Which probes are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Cheap enough to leave on.
    Light,
    /// Everything, with IOMMU and DMA calls and submission-queue fill.
    Full,
}

/// How much the agent says on stderr.
pub type LogLevel = log::LevelFilter;

/// Asking NVIDIA's management library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvml {
    /// Off, no device node of the driver is opened.
    pub enabled: bool,
    /// Time between readings.
    pub interval: Duration,
    /// A reading that takes longer makes its values unknown.
    pub timeout: Duration,
    /// The library's name or path.
    pub library: String,
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Time between readings.
    pub interval: Duration,
    /// Which probes are wanted.
    pub profile: Profile,
    /// Probes that are not wanted, by name.
    pub disabled_probes: Vec<String>,
    /// How the functions of nvidia-uvm are probed.
    pub uvm_hooks: UvmHooks,
    /// A block request that takes longer is an event of its own.
    pub slow_io: Duration,
    /// A probe that costs more of all CPUs, in percent, is taken off.
    pub max_cpu_percent: f64,
    /// Where to answer HTTP.
    pub listen: SocketAddr,
    /// TLS and users.
    pub web_config: Option<PathBuf>,
    /// Answer on other addresses than loopback without TLS and users.
    pub allow_open: bool,
    /// The user to become once the probes are attached: `name`, `uid` or `uid:gid`.
    pub user: Option<String>,
    /// Drop every capability once the probes are attached.
    pub seal: bool,
    /// The file that keeps a second agent off this host.
    pub lock: PathBuf,
    /// The folder that keeps GPU events over restarts. Empty: they are not kept.
    pub event_store: PathBuf,
    /// Asking NVIDIA's management library for the GPUs' health.
    pub nvml: Nvml,
    /// How much to say.
    pub log: LogLevel,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            interval: Duration::from_secs(2),
            profile: Profile::Light,
            disabled_probes: Vec::new(),
            uvm_hooks: UvmHooks::Auto,
            slow_io: Duration::from_millis(500),
            max_cpu_percent: 1.0,
            // Free of the ports of the exporters this one runs beside: 9400, 9435, 15132, 9100.
            listen: SocketAddr::from(([127, 0, 0, 1], 9517)),
            web_config: None,
            allow_open: false,
            user: None,
            seal: false,
            lock: PathBuf::from("/run/glake/agent.lock"),
            event_store: PathBuf::from(crate::telemetry::event_store::DEFAULT_FOLDER),
            nvml: Nvml {
                enabled: false,
                // As often as DCGM: these values move slowly.
                interval: Duration::from_secs(30),
                timeout: Duration::from_secs(5),
                library: crate::events::nvml::WELL_KNOWN.to_owned(),
            },
            log: LogLevel::Info,
        }
    }
}

#[cfg(test)]
mod tests;
