//! The live source with the probes that the configuration wants.

use super::config::{Config, Profile};
use super::health::WithHealth;
use crate::{
    error::Result,
    events::{
        ebpf::{self, Live, Settings},
        source::Source,
    },
    sys::tracefs,
};
use std::path::Path;

/// Attaches the probes of this host.
///
/// # Errors
/// When not even reading could be started; a refused probe is no error.
pub fn open(config: &Config) -> Result<Box<dyn Source>> {
    match tracefs::mount_for_this_process() {
        Ok(false) => {}
        Ok(true) => log::info!("tracefs is not mounted on this host: mounted for this process only"),
        // Which probes that costs, and what to do, is in their reasons.
        Err(e) => log::info!("{}", e.chain()),
    }
    let settings = Settings {
        profile: match config.profile {
            Profile::Light => ebpf::Profile::Light,
            Profile::Full => ebpf::Profile::Full,
        },
        disabled: config.disabled_probes.clone(),
        uvm_hooks: config.uvm_hooks,
        slow_io_ns: u64::try_from(config.slow_io.as_nanos()).unwrap_or(u64::MAX),
        max_cpu_percent: config.max_cpu_percent,
        ..Settings::default()
    };
    let probes = Box::new(Live::start(settings, Path::new("/"))?);
    Ok(Box::new(WithHealth::of(probes, &config.nvml)))
}
