//! One reading of everything the probes know. This is the contract between the probes (which fill it), telemetry
//! (which makes rates, workloads and metrics of it), the recorder (which stores it) and playback (which brings it back).
//!
//! **Counters are cumulative since the source started and never fall.** What could not be determined is `None`,
//! never zero: a probe that is off leaves its section `None`, a field that this kernel lacks leaves its number `None`.

use super::heaps::Heaps;
pub use super::histogram::{Histogram, add_row, trim};
use super::nvml::Nvml;
use crate::clock::Stamp;
use serde::{Deserialize, Serialize};

/// One reading.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was taken.
    pub at: Stamp,
    /// Every probe there is, attached or not.
    pub probes: Vec<Probe>,
    /// Per block device and operation. `None`: no block probe is attached.
    pub block: Option<Vec<BlockDevice>>,
    /// Block bytes and wait by owner. Owners, `writeback`, `shared` and `unknown` add up to the device totals.
    pub owners: Option<Vec<OwnerIo>>,
    /// Per NVMe controller.
    pub nvme: Option<Vec<NvmeController>>,
    /// The IOMMU's map and unmap calls.
    pub iommu: Option<Iommu>,
    /// IOMMU translation faults by device.
    pub iommu_faults: Option<Vec<IommuFaults>>,
    /// DMA mappings by device.
    pub dma: Option<Vec<DmaDevice>>,
    /// swiotlb bounces by device.
    pub swiotlb: Option<Vec<SwiotlbDevice>>,
    /// PCIe AER reports by device.
    pub aer: Option<Vec<AerDevice>>,
    /// io_uring requests punted to worker threads.
    pub io_uring_punted: Option<u64>,
    /// Xid and SXid reports.
    pub xid: Option<Vec<XidCount>>,
    /// UVM page faults and page migrations of all processes: paging of managed memory, not errors.
    #[serde(default)]
    pub uvm: Option<Uvm>,
    /// What GLake's allocator holds in the host's processes, as they say. `None`: not looked for.
    #[serde(default)]
    pub heaps: Option<Heaps>,
    /// What NVIDIA's management library says of the GPUs' health. `None`: it is not asked (the default).
    #[serde(default)]
    pub nvml: Option<Nvml>,
    /// Events known to be missed, by source and reason; a pair exists from the start, at 0.
    pub dropped: Vec<Dropped>,
    /// What the probes themselves cost.
    pub cost: Cost,
}

/// How far a probe got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// Attached and counting.
    On,
    /// Not wanted in this profile, or the thing it watches does not exist on this host.
    #[default]
    Off,
    /// Wanted and refused: `reason` and `remedy` say why and what to do.
    Failed,
    /// Taken off by the watchdog because it cost too much.
    Detached,
}

/// One probe: what it is, whether it runs, why not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Stable name: `block_complete`, `nvme_setup`, `uvm_evict`.
    pub name: String,
    /// The family it serves: `block`, `nvme`, `iommu`, `dma`, `swiotlb`, `aer`, `io_uring`, `xid`, `uvm`, `ecc`.
    pub family: String,
    /// The hook in the kernel's words: `block:block_rq_complete (raw trace point, BTF offsets)`.
    pub how: String,
    /// A required probe that is not on makes the agent degraded.
    pub required: bool,
    /// How far it got.
    pub state: ProbeState,
    /// Why it is not on.
    pub reason: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Runs so far, as the kernel counts them. `None`: not measured (needs kernel.bpf_stats_enabled or BPF_ENABLE_STATS).
    pub runs: Option<u64>,
    /// Time in the program so far, in ns. The kernel leaves out the perf layer's cost of classic trace points.
    pub run_time_ns: Option<u64>,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Read.
    Read,
    /// Write, write zeroes and append.
    Write,
    /// Cache flush.
    Flush,
    /// Discard and secure erase.
    Discard,
    /// Everything else: pass-through, zone management, unknown.
    Other,
}

/// One block device. A hidden NVMe multipath path device is folded into its head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockDevice {
    /// As in /sys/block: `nvme0n1`, `vda`.
    pub device: String,
    /// The NVMe controllers behind it (`nvme0`), empty for others.
    pub controllers: Vec<String>,
    /// Requests in flight now. `None`: cannot be told.
    pub in_flight: Option<u64>,
    /// Requests that were put back by the driver.
    pub requeues: Option<u64>,
    /// Bios merged into a request that waited already.
    pub merges: Option<u64>,
    /// By operation; operations never seen are left out.
    pub operations: Vec<BlockOperation>,
}

/// Totals of one operation on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockOperation {
    /// Which.
    pub operation: Operation,
    /// Requests completed.
    pub completed: u64,
    /// Bytes completed.
    pub bytes: u64,
    /// Requests completed with an error.
    pub errors: u64,
    /// Waiting in the host: from the request's start to its issue to the driver.
    pub queue: Option<Histogram>,
    /// In the device: from issue to completion.
    pub device: Option<Histogram>,
}

/// Who caused block I/O, as far as it can be told.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Owner {
    /// A task that submitted the I/O itself (direct or synchronous).
    Task {
        /// Thread group id in the initial namespace.
        tgid: u32,
        /// Its comm when first seen.
        comm: String,
        /// Its cgroup id (the inode of its cgroup2 folder); 0 where there is none.
        cgroup: u64,
    },
    /// Buffered writes by the kernel on behalf of a cgroup: the process is unknown.
    Writeback {
        /// The cgroup of the bio; 0 is the root or unknown.
        cgroup: u64,
    },
    /// Merged and flush requests: several owners at once.
    Shared,
    /// No owner could be told, e.g. the owner map was full.
    Unknown,
}

/// One owner's I/O.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnerIo {
    /// Who.
    pub owner: Owner,
    /// Path of its cgroup, where it could be resolved.
    pub cgroup_path: Option<String>,
    /// By device and operation.
    pub io: Vec<OwnerDeviceIo>,
}

/// One owner's I/O on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnerDeviceIo {
    /// The block device.
    pub device: String,
    /// The operation.
    pub operation: Operation,
    /// Requests completed.
    pub completed: u64,
    /// Bytes completed.
    pub bytes: u64,
    /// Sum of waiting in the host and in the device, in ns.
    pub wait_ns: u64,
}

/// One NVMe controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmeController {
    /// `nvme0`.
    pub controller: String,
    /// As sysfs spells it: `0000:81:00.0`. `None` for fabrics.
    pub pci: Option<String>,
    /// Per queue and opcode; queue 0 is the admin queue.
    pub commands: Vec<NvmeCommands>,
    /// Completions with an error status, by status type and code.
    pub errors: Vec<NvmeErrors>,
    /// Commands completed after at least one retry.
    pub retries: Option<u64>,
    /// Commands that the kernel timed out.
    pub timeouts: Option<u64>,
    /// Controller resets.
    pub resets: Option<u64>,
    /// Asynchronous events.
    pub async_events: Option<u64>,
    /// Fill of each submission queue, from the `nvme_sq` trace point (profile `full`).
    pub queues: Option<Vec<NvmeQueue>>,
    /// Commands set up and not completed now.
    pub in_flight: Option<u64>,
}

/// Commands of one opcode on one queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmeCommands {
    /// Queue id; 0 is the admin queue.
    pub queue: u16,
    /// Opcode of the command set (I/O queues) or of the admin set (queue 0).
    pub opcode: u8,
    /// Commands completed.
    pub completed: u64,
    /// Data bytes asked for (reads, writes, compares; from NLB and the namespace's block size). `None`: not told.
    pub bytes: Option<u64>,
    /// From set-up to completion.
    pub latency: Histogram,
}

/// Completions with one error status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeErrors {
    /// Status code type (NVMe base specification, figure "Status Code Type Values").
    pub sct: u8,
    /// Status code.
    pub sc: u8,
    /// How many.
    pub count: u64,
}

/// Fill of one submission queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeQueue {
    /// Queue id.
    pub queue: u16,
    /// Commands completed on it.
    pub completed: u64,
    /// The largest fill (tail minus head) seen since the previous sample.
    pub max_fill: u32,
    /// Entries of the queue. `None`: unknown.
    pub depth: Option<u32>,
}

/// IOMMU map and unmap calls of the whole host: the trace points name no device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iommu {
    /// Calls.
    pub maps: u64,
    /// Bytes.
    pub mapped_bytes: u64,
    /// Calls.
    pub unmaps: u64,
    /// Bytes.
    pub unmapped_bytes: u64,
    /// Map calls by size: slot `i` counts sizes of at most `4 KiB << i`, trailing empty slots left out.
    pub map_sizes: Vec<u64>,
}

/// Translation faults of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IommuFaults {
    /// As sysfs spells it; `None`: the source does not name the device.
    pub pci: Option<String>,
    /// `tracepoint` (exact), `kprobe` (exact count of fault interrupts), `interrupts` or `kmsg` (lower bounds).
    pub source: String,
    /// How many.
    pub count: u64,
}

/// DMA mappings of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DmaDevice {
    /// The device's name as the kernel prints it: a PCI address for PCI devices.
    pub device: String,
    /// Map calls.
    pub maps: u64,
    /// Bytes mapped.
    pub bytes: u64,
    /// Map calls that failed, where the kernel tells.
    pub errors: Option<u64>,
}

/// Bounces of one device through the kernel's swiotlb pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwiotlbDevice {
    /// The device's name as the kernel prints it.
    pub device: String,
    /// Bounces.
    pub bounces: u64,
    /// Bytes.
    pub bytes: u64,
}

/// AER reports of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AerDevice {
    /// As sysfs spells it.
    pub pci: String,
    /// Corrected errors.
    pub corrected: u64,
    /// Uncorrected, non-fatal.
    pub nonfatal: u64,
    /// Uncorrected, fatal.
    pub fatal: u64,
}

/// Xid (GPU) or SXid (NVSwitch) reports of one code on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidCount {
    /// As sysfs spells it.
    pub pci: String,
    /// An NVSwitch's SXid rather than a GPU's Xid.
    pub nvswitch: bool,
    /// The code.
    pub code: u32,
    /// `tracepoint` (exact), `kprobe` (exact) or `kmsg` (a lower bound: the kernel log is rate-limited).
    pub source: String,
    /// How many.
    pub count: u64,
    /// When the newest came.
    pub last: Stamp,
}

/// What NVIDIA's nvidia-uvm module notified itself of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Uvm {
    /// By GPU.
    pub gpus: Vec<UvmGpu>,
    /// By address space and processor.
    pub spaces: Vec<UvmSpace>,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UvmGpu {
    /// `GPU-5c1e...`. `None`: the driver's structures did not tell; all such GPUs are one.
    pub uuid: Option<String>,
    /// Runs of the replayable fault service.
    pub service: Option<Histogram>,
    /// Batches of GPU page faults by size: slot `i` counts sizes of at most `1 << i`, the last one all larger.
    pub batches: Option<Vec<u64>>,
    /// Faults in them.
    pub batched_faults: Option<u64>,
    /// Replays sent.
    pub replays: Option<u64>,
    /// Root chunks (2 MiB) pushed out of GPU memory.
    pub evictions: Option<u64>,
}

/// One life of an address space, as far as it concerns one processor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UvmSpace {
    /// Another number for each life.
    pub serial: u64,
    /// The process that made it. `None`: it is older than the probes and was not found among the open files.
    pub tgid: Option<u32>,
    /// Its comm; empty where the process is not known.
    pub comm: String,
    /// Path of its cgroup, where it could be resolved.
    pub cgroup_path: Option<String>,
    /// The driver's number of the processor; 0 is the CPU.
    pub processor: u32,
    /// UUID of the GPU. `None`: the CPU, or a GPU that could not be told.
    pub uuid: Option<String>,
    /// GPU page faults by access.
    pub gpu_faults: UvmAccess,
    /// Of these, faults that had been serviced already.
    pub duplicates: u64,
    /// CPU page faults that read and that wrote.
    pub cpu_faults: [u64; 2],
    /// Ranges marked as thrashing. `None`: not watched.
    pub thrashing: Option<u64>,
    /// Time that this processor was held back because of thrashing. `None`: not watched.
    pub throttled_ns: Option<u64>,
    /// Fatal faults by reason, in the driver's words; those seen only. `None`: not watched.
    pub fatal: Option<Vec<(String, u64)>>,
    /// Root chunks (2 MiB) of this GPU that were pushed out and held pages of this address space. `None`: not watched.
    pub evictions: Option<u64>,
    /// Page migrations; those seen only.
    pub moved: Vec<UvmMoved>,
}

/// Faults by access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UvmAccess {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Atomics.
    pub atomic: u64,
    /// Prefetch instructions.
    pub prefetch: u64,
}

impl UvmAccess {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.read + self.write + self.atomic + self.prefetch
    }
}

/// Page migrations with one cause in one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UvmMoved {
    /// `on_demand`, `prefetch`, `eviction`, `user` or `access_counters`.
    pub cause: String,
    /// `to_gpu`, `to_cpu`, `peer` or `host`.
    pub direction: String,
    /// Ranges.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Events known to be missed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// `block`, `nvme`, `iommu`, `ring`, `uvm`, `kmsg` ...
    pub source: String,
    /// `ring_full`, `map_full`, `unmatched`, `queue_full`, `parse`.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// What watching costs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Kernel memory of our maps in bytes, at this host's possible CPUs.
    pub map_bytes: u64,
    /// Time in our eBPF programs so far. `None`: the kernel does not measure it.
    pub ebpf_run_time_ns: Option<u64>,
}
