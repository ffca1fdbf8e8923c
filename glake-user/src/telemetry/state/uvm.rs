//! Paging of managed memory in one interval.

use super::{Count, Latency};
use serde::{Deserialize, Serialize};

/// Paging of managed memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Uvm {
    /// CPU page faults of all processes.
    pub cpu_faults: Count,
    /// By GPU.
    pub gpus: Vec<UvmGpu>,
    /// By workload, most bytes moved first.
    pub workloads: Vec<UvmWorkload>,
}

/// Paging of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UvmGpu {
    /// Its UUID. `None`: GPUs that could not be told.
    pub uuid: Option<String>,
    /// Its PCI address as sysfs spells it, where the host's list has the UUID.
    pub pci: Option<String>,
    /// GPU page faults.
    pub faults: Count,
    /// Those of them for pages that an earlier fault of the same batch had asked for already.
    #[serde(default)]
    pub duplicates: Count,
    /// Bytes moved to it from the host.
    pub to_gpu_bytes: Count,
    /// Bytes moved from it to the host.
    pub to_cpu_bytes: Count,
    /// Of what moved, bytes pushed out because GPU memory was short.
    pub evicted_bytes: Count,
    /// Runs of the fault service in the interval. `None`: not watched.
    pub service: Option<Latency>,
    /// Share of the interval spent in it, 1 is all of it.
    pub service_share: Option<f64>,
}

/// Paging of one workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UvmWorkload {
    /// Title of the workload; the command, where it belongs to none; `unknown`.
    pub name: String,
    /// Commands of its processes, at most 4.
    pub commands: Vec<String>,
    /// GPU page faults.
    pub gpu_faults: Count,
    /// CPU page faults.
    pub cpu_faults: Count,
    /// Bytes moved in any direction.
    pub moved_bytes: Count,
    /// Bytes of it that it lost because GPU memory was short.
    #[serde(default)]
    pub evicted_bytes: Count,
    /// Times that the driver marked a range of it as thrashing. `None`: not watched.
    pub thrashing: Option<Count>,
}
