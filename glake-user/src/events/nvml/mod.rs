//! What NVIDIA's management library (NVML) says of the GPUs' health: ECC errors, replaced rows, retired pages, MIG, memory.
//!
//! Only where it is asked for: NVML opens the driver's device nodes, and a sick GPU may hang whoever asks it. So a thread of its
//! own asks, and nobody waits for it: what it has not answered in time is unknown.

mod ask;
mod holders;
mod reader;

pub use ask::{Reading, ask};
pub use holders::{Held, held};
pub use reader::{Reader, Settings, WELL_KNOWN};

use crate::clock::Stamp;
use crate::events::sample::{Probe, ProbeState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of its line among the probes, and its family there.
pub const PROBE: &str = "nvml";
/// The family of that probe.
pub const FAMILY: &str = "ecc";

/// How NVML is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// The first reading is under way.
    #[default]
    Starting,
    /// The newest reading came in time.
    Answering,
    /// A call has not come back within the deadline.
    Silent,
    /// It refuses, and says why.
    Failed,
}

/// What it says, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nvml {
    /// How it is.
    pub health: Health,
    /// When the newest complete reading ended. The values are those of that moment.
    pub read_at: Option<Stamp>,
    /// How old it is.
    pub age_ns: Option<u64>,
    /// How long it took.
    pub took_ns: Option<u64>,
    /// Since when nothing is known: no reading has come since. `None`: it is answering.
    pub unknown_since: Option<Stamp>,
    /// Why it does not answer.
    pub reason: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Readings that failed or did not come in time, since the start.
    pub failed_reads: u64,
    /// The driver's release, as the library says.
    pub driver: Option<String>,
    /// By index. Empty unless it is answering: an old value is no value.
    pub gpus: Vec<GpuHealth>,
}

/// One GPU. What is `None` is not known, never zero: `unknown` says why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealth {
    /// As sysfs spells it. `None`: the GPU was lost before it could be asked.
    pub pci: Option<String>,
    /// As DCGM prints it.
    pub uuid: Option<String>,
    /// Its model.
    pub model: Option<String>,
    /// It fell off the bus: NVML says so. All values are unknown then.
    pub lost: bool,
    /// Whether ECC is on.
    pub ecc_enabled: Option<bool>,
    /// ECC errors since the driver was loaded or the GPU was reset.
    pub ecc_volatile: Errors,
    /// ECC errors over the GPU's life.
    pub ecc_aggregate: Errors,
    /// Rows of HBM replaced by spare ones (Ampere and newer).
    pub remapped_rows: Option<RemappedRows>,
    /// Pages taken out of use (before Ampere).
    pub retired_pages: RetiredPages,
    /// Multi-instance mode.
    pub mig: Option<Mig>,
    /// Its memory. Under MIG the instances' memory is part of it: the two are never to be added.
    pub memory: Option<Memory>,
    /// The window through which others reach its memory.
    pub bar1: Option<Memory>,
    /// Share of the last moments in which some kernel ran, in percent. Unknown under MIG.
    pub busy_percent: Option<u32>,
    /// Why a value is unknown, by its key.
    pub unknown: BTreeMap<String, String>,
}

/// Counts of errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Errors {
    /// Corrected: single bits.
    pub corrected: Option<u64>,
    /// Not corrected: double bits.
    pub uncorrected: Option<u64>,
}

/// Rows replaced by spare ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Because of corrected errors.
    pub correctable: u32,
    /// Because of uncorrected ones.
    pub uncorrectable: u32,
    /// A remapping waits for the next reset.
    pub pending: bool,
    /// A remapping failed, ever.
    pub failure: bool,
}

/// Pages taken out of use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetiredPages {
    /// Because of several corrected errors.
    pub multiple_single_bit: Option<u32>,
    /// Because of an uncorrected one.
    pub double_bit: Option<u32>,
    /// Some wait for the next start of the driver.
    pub pending: Option<bool>,
}

/// Multi-instance mode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// Now.
    pub enabled: bool,
    /// After the next reset.
    pub enabled_after_reset: bool,
    /// The instances.
    pub instances: Vec<Instance>,
}

/// A MIG instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// `MIG-...`: what a kubelet and `CUDA_VISIBLE_DEVICES` call it.
    pub uuid: Option<String>,
    /// DCGM's `GPU_I_ID`.
    pub gpu_instance: Option<u32>,
    /// The compute instance in it.
    pub compute_instance: Option<u32>,
    /// DCGM's `GPU_I_PROFILE`: `2g.20gb`.
    pub profile: Option<String>,
    /// Its memory, part of its GPU's.
    pub memory: Option<Memory>,
    /// Its window.
    pub bar1: Option<Memory>,
}

/// Bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// Kept by driver and firmware. `None`: in the used bytes.
    pub reserved_bytes: Option<u64>,
    /// Free.
    pub free_bytes: u64,
    /// Used.
    pub used_bytes: u64,
}

impl Nvml {
    /// Its line among the probes.
    pub fn probe(&self) -> Probe {
        let release = self.driver.as_deref().map_or(String::new(), |d| format!(", driver {d}"));
        let state = match self.health {
            Health::Answering => ProbeState::On,
            Health::Starting => ProbeState::Off,
            Health::Silent | Health::Failed => ProbeState::Failed,
        };
        Probe {
            name: PROBE.into(),
            family: FAMILY.into(),
            how: format!("NVML ({}{release})", WELL_KNOWN),
            // Somebody asked for it in so many words.
            required: self.health != Health::Starting,
            state,
            reason: self.reason.clone(),
            remedy: self.remedy.clone(),
            ..Probe::default()
        }
    }

    /// The GPU and its instance with that UUID, whichever of the two it names (case J11): `MIG-...` leads to the GPU it is part
    /// of.
    pub fn find(&self, uuid: &str) -> Option<(&GpuHealth, Option<&Instance>)> {
        self.gpus.iter().find_map(|gpu| {
            if gpu.uuid.as_deref() == Some(uuid) {
                return Some((gpu, None));
            }
            let mut instances = gpu.mig.iter().flat_map(|mig| &mig.instances);
            instances.find(|i| i.uuid.as_deref() == Some(uuid)).map(|i| (gpu, Some(i)))
        })
    }
}

/// Its line where it is not asked for: what that costs, and how to change it.
pub fn not_wanted() -> Probe {
    Probe {
        name: PROBE.into(),
        family: FAMILY.into(),
        how: "NVML".into(),
        state: ProbeState::Off,
        reason: Some("NVML is not enabled (default): no device node of the driver is opened".into()),
        remedy: Some("set nvml.enabled = true; the agent then holds /dev/nvidiactl and the GPUs open".into()),
        ..Probe::default()
    }
}
