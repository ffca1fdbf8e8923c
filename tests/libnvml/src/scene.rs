//! What the machine is like at this moment.

use serde::Deserialize;
use std::collections::BTreeMap;

/// nvmlReturn_t: numbers of nvml.h.
pub(crate) type Code = u32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const UNINITIALIZED: Code = 1;
pub(crate) const INVALID: Code = 2;
pub(crate) const NOT_SUPPORTED: Code = 3;
pub(crate) const NOT_FOUND: Code = 6;
pub(crate) const INSUFFICIENT_SIZE: Code = 7;
pub(crate) const LOST: Code = 15;
pub(crate) const UNKNOWN: Code = 999;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scene {
    pub(crate) driver: String,
    /// What `nvmlDeviceGetCount_v2` says in place of the truth.
    pub(crate) count: Option<u32>,
    pub(crate) gpus: Vec<Gpu>,
    /// Code that a function answers with, by its name.
    pub(crate) refuse: BTreeMap<String, Code>,
    /// Functions that do not come back for as long as they stand here.
    pub(crate) hang: Vec<String>,
}

/// A GPU or an instance. What is missing is not supported.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) pci: String,
    pub(crate) name: String,
    pub(crate) lost: bool,
    pub(crate) ecc: Option<bool>,
    /// Corrected, uncorrected.
    pub(crate) volatile: Option<[u64; 2]>,
    pub(crate) aggregate: Option<[u64; 2]>,
    /// Correctable, uncorrectable, pending, failure.
    pub(crate) rows: Option<[u32; 4]>,
    /// Multiple single bit, double bit.
    pub(crate) retired: Option<[u32; 2]>,
    pub(crate) retirement_pending: Option<u32>,
    /// Total, reserved, free, used.
    pub(crate) memory: Option<[u64; 4]>,
    /// Total, free, used.
    pub(crate) bar1: Option<[u64; 3]>,
    pub(crate) busy: Option<u32>,
    /// Now, after the next reset.
    pub(crate) mig: Option<[u32; 2]>,
    /// By index; an empty place is one that is not in use.
    pub(crate) instances: Vec<Option<Gpu>>,
    pub(crate) ids: Option<[u32; 2]>,
    /// pid, bytes.
    pub(crate) processes: Vec<[u64; 2]>,
}

/// The scene now. A file that cannot be read is a machine without a driver.
pub(crate) fn now() -> Option<Scene> {
    let path = std::env::var_os("GLAKE_STANDIN_NVML")?;
    let text = std::fs::read_to_string(path).ok()?;
    match serde_json::from_str(&text) {
        Ok(scene) => Some(scene),
        Err(e) => {
            eprintln!("the scene is wrong: {e}");
            None
        }
    }
}

/// A handle: the GPU's index from 1, and above it the instance's from 1.
pub(crate) fn find(scene: &Scene, handle: usize) -> Result<Gpu, Code> {
    let at = |n: usize| n.checked_sub(1).ok_or(INVALID);
    let gpu = scene.gpus.get(at(handle & 0xff)?).ok_or(INVALID)?;
    if gpu.lost {
        return Err(LOST);
    }
    match handle >> 8 {
        0 => Ok(gpu.clone()),
        instance => gpu.instances.get(at(instance)?).cloned().flatten().ok_or(INVALID),
    }
}
