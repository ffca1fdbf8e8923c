//! The live source: eBPF programs that count in the kernel.
//!
//! Frequent things are counted in maps that are mapped into this process; rare and slow ones come through a ring buffer.
//! Both go on after all capabilities are dropped.

mod attach;
mod blocks;
mod cgroups;
mod devices;
mod direct;
mod group;
mod hosts;
mod kernel;
mod live;
mod log;
mod nvmes;
pub mod record;
mod refusal;
pub mod sizes;
mod symbols;
pub mod table;
mod uvm;
mod uvm_unit;
mod watchdog;
mod xid_unit;

#[cfg(test)]
mod case_tests;

pub use live::Live;
pub use log::PROBES as LOG_PROBES;
pub use table::Profile;

use serde::{Deserialize, Serialize};

/// What to watch, and at which cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which probes.
    pub profile: Profile,
    /// Names of probes that stay off.
    pub disabled: Vec<String>,
    /// A block request that takes longer, in ns, becomes an event; 0: none does.
    pub slow_io_ns: u64,
    /// A probe that takes more of all CPUs, in percent, is detached; 0: never.
    pub max_cpu_percent: f64,
    /// Kernel memory of all maps in bytes.
    pub map_budget_bytes: u64,
    /// Bytes of each ring; rounded up to a power of two.
    pub ring_bytes: u32,
    /// Use the kernel's type information where there is some; false takes the classic trace points.
    pub btf: bool,
    /// How the functions of nvidia-uvm are probed.
    pub uvm_hooks: UvmHooks,
}

/// How the functions of nvidia-uvm are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UvmHooks {
    /// By kprobes, and by fentry where the kernel refuses those.
    #[default]
    Auto,
    /// By kprobes only.
    Kprobe,
    /// By fentry, and by kprobes where the module or the kernel does not allow it.
    Fentry,
}

impl UvmHooks {
    /// From the word of the configuration.
    pub fn of(word: &str) -> Option<UvmHooks> {
        [UvmHooks::Auto, UvmHooks::Kprobe, UvmHooks::Fentry].into_iter().find(|h| h.word() == word)
    }

    /// The word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            UvmHooks::Auto => "auto",
            UvmHooks::Kprobe => "kprobe",
            UvmHooks::Fentry => "fentry",
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            profile: Profile::Light,
            disabled: Vec::new(),
            slow_io_ns: 1_000_000_000,
            max_cpu_percent: 1.0,
            map_budget_bytes: 16 << 20,
            ring_bytes: 256 << 10,
            btf: true,
            uvm_hooks: UvmHooks::Auto,
        }
    }
}

/// Whether this binary was built with the eBPF programs.
pub fn has_object() -> bool {
    attach::has_object()
}

/// Every probe there is, not tried: name, family, first hook.
pub fn probe_table() -> impl Iterator<Item = &'static table::Entry> {
    table::probes()
}

/// Tries every probe, whatever the profile, and takes all of them off again. For `glake doctor`.
///
/// # Errors
/// Never for a refused probe: that is its state. Only when not even the settings make sense.
pub fn try_probes(
    root: &std::path::Path,
    settings: &Settings,
) -> crate::error::Result<Vec<super::sample::Probe>> {
    let settings = Settings { profile: Profile::Full, disabled: Vec::new(), ..settings.clone() };
    Ok(Live::start(settings, root)?.probes())
}
