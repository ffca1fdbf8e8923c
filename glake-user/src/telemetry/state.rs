//! What one interval looked like: the body of `/api/v1/state`, of `glake run --once --json` and of `glake play --json`,
//! and what the screens draw. `docs/api.md` describes it; [`SCHEMA`] grows when a field changes its meaning.
//!
//! `null` means unknown, never zero. Fields may be added without a new schema number.

use super::finding::Finding;
use crate::{
    clock::Stamp,
    events::{
        event::Event,
        nvml::Nvml,
        sample::{AerDevice, Operation, Probe},
    },
    host::{inventory::Inventory, workload::Workload},
};
use serde::{Deserialize, Serialize};

mod uvm;

pub use uvm::{Uvm, UvmGpu, UvmWorkload};

/// The version of this schema.
pub const SCHEMA: u32 = 1;

/// The most events of one state; older ones make room. Lost ones are counted in [`State::dropped`] where they were lost.
pub const MAX_EVENTS: usize = 256;

/// One interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the program that made it.
    pub version: String,
    /// When the interval ended.
    pub at: Stamp,
    /// How long it was; `None` for the first reading, whose rates are all unknown.
    pub interval_ns: Option<u64>,
    /// The host.
    pub host: Inventory,
    /// Whether everything wanted is watched.
    pub health: Health,
    /// What is watched and what is not, by family.
    pub coverage: Vec<Coverage>,
    /// Every probe.
    pub probes: Vec<Probe>,
    /// Block devices. `None`: no block probe is on.
    pub block: Option<Vec<Block>>,
    /// Who caused the block I/O, busiest first.
    pub workloads: Option<Vec<WorkloadIo>>,
    /// NVMe controllers.
    pub nvme: Option<Vec<Nvme>>,
    /// The IOMMU's map and unmap calls.
    pub iommu: Option<Iommu>,
    /// Translation faults by device.
    pub iommu_faults: Option<Vec<Fault>>,
    /// DMA mappings by device.
    pub dma: Option<Vec<Dma>>,
    /// Bounces through the kernel's swiotlb pool by device.
    pub swiotlb: Option<Vec<Dma>>,
    /// PCIe AER reports by device, since the start.
    pub aer: Option<Vec<AerDevice>>,
    /// io_uring requests punted to worker threads.
    pub io_uring_punted: Option<Count>,
    /// Xid and SXid reports.
    pub xid: Option<Vec<Xid>>,
    /// UVM page faults and page migrations of all processes: normal paging, no errors. `None`: not watched.
    #[serde(default)]
    pub uvm: Option<Uvm>,
    /// What GLake's allocator holds, by workload and GPU, most reserved first. `None`: not looked for.
    #[serde(default)]
    pub allocators: Option<Vec<Allocator>>,
    /// GPU health as NVIDIA's management library tells it, with its age. `None`: it is not asked (`nvml.enabled`).
    #[serde(default)]
    pub nvml: Option<Nvml>,
    /// What is wrong on this host now. Empty too where nothing is judged: in `glake play` and `glake run --once`.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Events known to be missed.
    pub dropped: Vec<Dropped>,
    /// Rare and slow events since the previous reading, oldest first, at most [`MAX_EVENTS`].
    #[serde(default)]
    pub events: Vec<Event>,
    /// What watching costs.
    pub cost: Cost,
    /// The agent that answers. `None`: made without one, by `glake play`.
    #[serde(default)]
    pub agent: Option<AgentProcess>,
    /// Things whose counters fell since the previous reading (a device came back under its old name, a source was
    /// started again): their rates are unknown in this interval.
    pub restarted: Vec<String>,
}

/// A counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// Since the source started.
    pub total: u64,
    /// Over the interval. `None`: unknown, because the interval or its first reading is.
    pub per_second: Option<f64>,
}

/// Latencies that ended in the interval. Quantiles are the upper bound of their slot: at most half an octave too high.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// The mean.
    pub mean_ns: Option<f64>,
    /// Half were at most this.
    pub p50_ns: Option<u64>,
    /// 99 % were at most this.
    pub p99_ns: Option<u64>,
    /// 99.9 % were at most this.
    pub p999_ns: Option<u64>,
    /// How many were longer than the scale (16.8 s). A quantile that falls there reads as the end of the scale.
    pub above_scale: u64,
    /// Counts by slot of `glake_common::hist`, trailing empty slots left out.
    pub slots: Vec<u64>,
}

/// Whether everything wanted is watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok` or `degraded`.
    pub status: Status,
    /// Why it is degraded, each with what to do.
    pub reasons: Vec<String>,
}

/// The health in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All required probes are on and nothing was missed in the interval.
    #[default]
    Ok,
    /// Something wanted is not watched, or events were missed.
    Degraded,
}

/// One family of probes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// `block`, `nvme`, ...
    pub family: String,
    /// Whether it is watched.
    pub state: Watched,
    /// By which hooks.
    pub how: Vec<String>,
    /// What is missing, why and what to do.
    pub missing: Vec<String>,
}

/// Whether a family is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// By every probe that is wanted.
    Yes,
    /// Some wanted probes are not on.
    Partly,
    /// None of the wanted probes is on.
    No,
    /// Not wanted, or nothing to watch on this host.
    Off,
}

/// One block device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// As in /sys/block.
    pub device: String,
    /// The NVMe controllers behind it.
    pub controllers: Vec<String>,
    /// Requests in flight at the end of the interval.
    pub in_flight: Option<u64>,
    /// Requests put back by the driver.
    pub requeues: Option<Count>,
    /// Bios merged into a waiting request.
    pub merges: Option<Count>,
    /// By operation.
    pub operations: Vec<BlockOp>,
}

/// One operation on one block device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockOp {
    /// Which.
    pub operation: Operation,
    /// Requests completed.
    pub completed: Count,
    /// Bytes completed.
    pub bytes: Count,
    /// Requests completed with an error.
    pub errors: Count,
    /// Waiting in the host.
    pub queue: Option<Latency>,
    /// In the device.
    pub device: Option<Latency>,
}

/// One workload's block I/O.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadIo {
    /// Its name on screens.
    pub name: String,
    /// Its labels.
    #[serde(flatten)]
    pub workload: Workload,
    /// How sure the attribution is.
    pub attribution: Attribution,
    /// The commands seen, at most four.
    pub commands: Vec<String>,
    /// Its thread groups, at most eight; never a label of a series.
    pub pids: Vec<u32>,
    /// Its cgroup, where known.
    pub cgroup: Option<String>,
    /// Devices it used in the interval.
    pub devices: Vec<String>,
    /// Bytes read.
    pub read: Count,
    /// Bytes written.
    pub write: Count,
    /// Requests of every operation.
    pub requests: Count,
    /// The mean time that a request of the interval waited in host and device together.
    pub mean_wait_ns: Option<f64>,
}

/// Where the owner of a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    /// The task that submitted it.
    Task,
    /// The cgroup on whose behalf the kernel wrote back; the process is unknown.
    Writeback,
    /// Some by task, some written back.
    Mixed,
    /// Merged and flush requests of several owners.
    Shared,
    /// Nobody could be told.
    Unknown,
}

/// One NVMe controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nvme {
    /// `nvme0`.
    pub controller: String,
    /// As sysfs spells it.
    pub pci: Option<String>,
    /// Commands set up and not completed at the end of the interval.
    pub in_flight: Option<u64>,
    /// All I/O queues together, by operation: `read`, `write`, `flush`, `other`; the admin queue is `admin`.
    pub operations: Vec<NvmeOp>,
    /// Each queue.
    pub queues: Vec<NvmeQueue>,
    /// Completions with an error status.
    pub errors: Count,
    /// The same by status.
    pub errors_by_status: Vec<NvmeStatus>,
    /// Commands completed after a retry.
    pub retries: Option<Count>,
    /// Commands that the kernel timed out.
    pub timeouts: Option<Count>,
    /// Controller resets.
    pub resets: Option<Count>,
    /// Asynchronous events.
    pub async_events: Option<Count>,
    /// The fullest submission queue of the interval, 0 to 1 (profile `full`).
    pub fill_ratio: Option<f64>,
    /// The share of the interval's I/O commands that went to the busiest queue, 0 to 1.
    pub busiest_queue_ratio: Option<f64>,
}

/// One operation of one controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NvmeOp {
    /// `read`, `write`, `flush`, `other`, `admin`.
    pub operation: String,
    /// Commands completed.
    pub completed: Count,
    /// Bytes asked for.
    pub bytes: Option<Count>,
    /// From set-up to completion.
    pub latency: Latency,
}

/// One queue of one controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NvmeQueue {
    /// 0 is the admin queue.
    pub queue: u16,
    /// Commands completed.
    pub completed: Count,
    /// Latency over all opcodes.
    pub latency: Latency,
    /// Commands by opcode.
    pub opcodes: Vec<NvmeOpcode>,
    /// The largest fill of its submission queue in the interval.
    pub max_fill: Option<u32>,
    /// Its entries.
    pub depth: Option<u32>,
}

/// One opcode on one queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NvmeOpcode {
    /// The opcode.
    pub opcode: u8,
    /// Its name in the specification's words.
    pub name: String,
    /// Commands completed.
    pub completed: Count,
}

/// One error status of one controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NvmeStatus {
    /// Status code type.
    pub sct: u8,
    /// Status code.
    pub sc: u8,
    /// How many.
    pub count: Count,
}

/// The IOMMU's map and unmap calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Iommu {
    /// Map calls.
    pub maps: Count,
    /// Bytes mapped.
    pub mapped_bytes: Count,
    /// Unmap calls.
    pub unmaps: Count,
    /// Bytes unmapped.
    pub unmapped_bytes: Count,
    /// Map calls of the interval by size: slot `i` counts at most `4 KiB << i`.
    pub map_sizes: Vec<u64>,
}

/// GLake's allocator in the processes of one workload on one GPU, as they say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Allocator {
    /// Title of the workload; the command, where it belongs to none.
    pub name: String,
    /// Its labels.
    #[serde(flatten)]
    pub workload: Workload,
    /// As sysfs spells it. `None`: a GPU that the process could not name.
    pub pci: Option<String>,
    /// Its UUID, where the host's list has the address.
    pub uuid: Option<String>,
    /// Processes.
    pub processes: u64,
    /// Their numbers, at most eight; never a label of a series.
    pub pids: Vec<u32>,
    /// Their commands, at most four.
    pub commands: Vec<String>,
    /// Bytes in blocks handed out.
    pub allocated_bytes: u64,
    /// Bytes of GPU memory held.
    pub reserved_bytes: u64,
    /// The first over the second. `None`: nothing is held.
    pub allocated_to_reserved_ratio: Option<f64>,
    /// Bytes of physical memory moved by remapping.
    pub remapped_bytes: Count,
    /// Calls of the driver's memory functions.
    pub driver_calls: Count,
    /// Allocations that failed for want of memory.
    pub ooms: Count,
    /// Allocations that would have failed without remapping.
    pub ooms_avoided: Count,
    /// Allocations that the program's own allocator served because GLake could not; booked to the process's first GPU.
    pub fallbacks: Count,
}

/// Translation faults of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// As sysfs spells it; `None`: the source does not name the device.
    pub pci: Option<String>,
    /// `tracepoint`, `kprobe`, `interrupts` or `kmsg`.
    pub source: String,
    /// How many.
    pub count: Count,
}

/// DMA mappings or bounces of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dma {
    /// The device's name as the kernel prints it.
    pub device: String,
    /// Map calls, or bounces.
    pub operations: Count,
    /// Bytes.
    pub bytes: Count,
    /// Calls that failed, where the kernel tells.
    pub errors: Option<Count>,
}

/// Xid or SXid reports of one code on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Xid {
    /// As sysfs spells it.
    pub pci: String,
    /// The GPU's UUID, where known.
    pub uuid: Option<String>,
    /// An NVSwitch's SXid.
    pub nvswitch: bool,
    /// The code.
    pub code: u32,
    /// Where the count comes from.
    pub source: String,
    /// How many.
    pub count: Count,
    /// When the newest came.
    pub last: Stamp,
}

/// Events known to be missed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// Which source.
    pub source: String,
    /// Why.
    pub reason: String,
    /// How many.
    pub count: Count,
}

/// What watching costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Kernel memory of our maps.
    pub map_bytes: u64,
    /// Time in our eBPF programs over the interval, in CPUs. `None`: the kernel does not measure it.
    pub ebpf_cpus: Option<f64>,
}

/// The agent's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentProcess {
    /// Its id.
    pub pid: u32,
    /// When it started, in seconds since 1970.
    pub started_seconds: Option<f64>,
    /// User and system time so far.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Time between readings.
    pub interval_ns: u64,
}
