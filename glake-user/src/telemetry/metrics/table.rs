//! Every metric family of GLake. Names, types, units and labels are a promise: `docs/metrics.md` is made from this table.

/// What kind of numbers a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Grows only.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets by upper bound.
    Histogram,
}

impl Type {
    /// The word of the text formats.
    pub fn name(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        }
    }
}

/// One family.
#[derive(Debug)]
pub struct Family {
    /// The whole name, with `_total` for counters.
    pub name: &'static str,
    /// Its type.
    pub kind: Type,
    /// The unit, which the name ends in. Empty: a plain count.
    pub unit: &'static str,
    /// One line for people.
    pub help: &'static str,
    /// The labels that a series may carry, in order. An unknown one is left out, never filled with a guess.
    pub labels: &'static [&'static str],
    /// The labels that become `other` when the family is full. Empty: then nothing is folded and the series is refused.
    pub folds: &'static [&'static str],
    /// The most series it may have on a host, buckets counted one by one.
    pub max: usize,
    /// What it means when there is no data.
    pub no_data: &'static str,
}

/// The most series of one host.
pub const MAX_SERIES: usize = 5_000;

/// The upper bounds of latency histograms in microseconds, 8 us to 8.4 s: each is a bound of `glake_common::hist`,
/// so folding moves no value across a bound. Closest together where NVMe drives answer (32 us to 1 ms).
pub const LATENCY_BOUNDS_US: [u64; 14] =
    [8, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384, 32_768, 65_536, 262_144, 1_048_576, 8_388_608];

/// The upper bounds of histograms of sizes: powers of two up to twice the driver's default batch.
pub const SIZE_BOUNDS: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Series of one histogram of sizes.
pub const SIZE_SERIES: usize = SIZE_BOUNDS.len() + 3;

/// Series of one latency histogram: its bounds, +Inf, sum and count.
pub const HISTOGRAM_SERIES: usize = LATENCY_BOUNDS_US.len() + 3;

/// The labels of a workload, after `workload_kind`.
const WORKLOAD: [&str; 5] = ["workload_kind", "namespace", "pod", "container", "workload"];

macro_rules! families {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $kind:ident, $unit:literal, $labels:expr, $folds:expr, $max:expr,
        $help:literal, $no_data:literal;)*) => {
        $($(#[$doc])* pub static $id: Family = Family {
            name: $name, kind: Type::$kind, unit: $unit, help: $help, labels: $labels, folds: $folds, max: $max,
            no_data: $no_data,
        };)*
        /// All families, in the order of the output.
        pub static TABLE: &[&Family] = &[$(&$id),*];
    };
}

families! {
    /// Block bytes by workload.
    BLOCK_IO_BYTES = "glake_block_io_bytes_total", Counter, "bytes",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "operation"], &[], 160,
        "Bytes of block I/O completed for a workload. Buffered writes count for the cgroup that dirtied the pages.",
        "no block probe is attached";
    /// Waiting in the host.
    BLOCK_QUEUE_DURATION = "glake_block_queue_duration_seconds", Histogram, "seconds",
        &["device", "operation"], &["device"], 680,
        "Time from the start of a block request to its issue to the driver: waiting in the host.",
        "no block probe is attached, or this kernel does not give the start of a request";
    /// Device time of disks that are not NVMe.
    BLOCK_DEVICE_DURATION = "glake_block_device_duration_seconds", Histogram, "seconds",
        &["device", "operation"], &["device"], 272,
        "Time from issue to completion of block requests, for devices that are not NVMe (those: glake_nvme_command_duration_seconds).",
        "every disk is an NVMe drive, or no block probe is attached";
    /// Failed requests.
    BLOCK_ERRORS = "glake_block_errors_total", Counter, "", &["device", "operation"], &["device"], 72,
        "Block requests completed with an error.", "no block probe is attached";
    /// Requeues.
    BLOCK_REQUEUES = "glake_block_requeues_total", Counter, "", &["device"], &["device"], 24,
        "Block requests put back by the driver.", "no block probe is attached, or this kernel does not report requeues";
    /// NVMe latency.
    NVME_COMMAND_DURATION = "glake_nvme_command_duration_seconds", Histogram, "seconds",
        &["controller", "pci_bus_id", "operation"], &["controller", "pci_bus_id"], 816,
        "Time from submission to completion of NVMe commands, all I/O queues of a controller together.",
        "no NVMe drive, or the NVMe probes are not attached";
    /// NVMe errors.
    NVME_COMMAND_ERRORS = "glake_nvme_command_errors_total", Counter, "",
        &["controller", "status_type"], &["controller"], 80,
        "NVMe commands completed with an error status, by status code type.",
        "no NVMe drive, or the NVMe probes are not attached";
    /// NVMe retries.
    NVME_COMMAND_RETRIES = "glake_nvme_command_retries_total", Counter, "", &["controller"], &["controller"], 16,
        "NVMe commands completed after a retry.", "no NVMe drive, or this kernel does not report retries";
    /// NVMe timeouts.
    NVME_COMMAND_TIMEOUTS = "glake_nvme_command_timeouts_total", Counter, "", &["controller"], &["controller"], 16,
        "NVMe commands that the kernel timed out, from the kernel log: a lower bound.", "no NVMe drive, or the kernel log cannot be read";
    /// NVMe resets.
    NVME_CONTROLLER_RESETS = "glake_nvme_controller_resets_total", Counter, "", &["controller"], &["controller"], 16,
        "Resets of an NVMe controller, from the kernel log: a lower bound.", "no NVMe drive, or the kernel log cannot be read";
    /// Submission queue fill.
    NVME_QUEUE_FILL = "glake_nvme_submission_queue_fill_ratio", Gauge, "ratio", &["controller"], &[], 16,
        "The fullest submission queue of the interval, 0 to 1. Profile `full` only.",
        "profile `light`, or queue depths are unknown";
    /// Busiest queue.
    NVME_BUSIEST_QUEUE = "glake_nvme_busiest_queue_ratio", Gauge, "ratio", &["controller"], &[], 16,
        "Share of the interval's commands on one I/O queue, 0 to 1. Every queue: /api/v1/state.",
        "no command in the interval";
    /// io_uring.
    IO_URING_PUNTED = "glake_io_uring_punted_requests_total", Counter, "", &[], &[], 1,
        "io_uring requests sent to worker threads instead of being done inline.",
        "the io_uring probe is not attached";
    /// IOMMU calls.
    IOMMU_OPERATIONS = "glake_iommu_operations_total", Counter, "", &["operation"], &[], 2,
        "IOMMU map and unmap calls of the whole host; the trace point names no device.",
        "profile `light`, or no IOMMU is in use";
    /// IOMMU bytes.
    IOMMU_BYTES = "glake_iommu_bytes_total", Counter, "bytes", &["operation"], &[], 2,
        "Bytes mapped and unmapped by the IOMMU.", "profile `light`, or no IOMMU is in use";
    /// IOMMU faults.
    IOMMU_FAULTS = "glake_iommu_faults_total", Counter, "", &["pci_bus_id", "source"], &["pci_bus_id"], 64,
        "IOMMU translation faults. The source is tracepoint or kprobe (exact), interrupts or kmsg (lower bounds: do not add sources up). No pci_bus_id: the source names no device.",
        "no IOMMU, or its faults cannot be watched on this kernel";
    /// DMA mappings.
    DMA_MAPS = "glake_dma_map_operations_total", Counter, "", &["pci_bus_id"], &["pci_bus_id"], 32,
        "DMA mappings by device. A device that is not PCI is named as the kernel names it.",
        "profile `light`, or a kernel before 6.12";
    /// swiotlb.
    SWIOTLB_BYTES = "glake_swiotlb_bounced_bytes_total", Counter, "bytes", &["pci_bus_id"], &["pci_bus_id"], 32,
        "Bytes copied through the kernel's swiotlb bounce pool, by device.", "nothing was bounced, or not watched";
    /// AER.
    AER_ERRORS = "glake_pcie_aer_errors_total", Counter, "", &["pci_bus_id", "severity"], &["pci_bus_id"], 96,
        "PCIe AER reports by device.", "AER is not watched on this host";
    /// GPU faults.
    UVM_GPU_FAULTS = "glake_uvm_gpu_page_faults_total", Counter, "",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id", "access"], &[], 160,
        "Replayable GPU page faults of managed memory: normal paging, no error. A lower bound: what the driver throws away unread is in no source.",
        "the UVM probes are not attached (see /healthz), or nothing paged";
    /// CPU faults.
    UVM_CPU_FAULTS = "glake_uvm_cpu_page_faults_total", Counter, "", &WORKLOAD, &[], 32,
        "CPU page faults of managed memory: normal paging, no error. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz), or nothing paged";
    /// Batch sizes.
    UVM_BATCH_SIZE = "glake_uvm_fault_batch_size", Histogram, "", &["UUID", "pci_bus_id"], &[], 104,
        "GPU page faults that the driver serviced in one batch; the count is that of batches. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz), or nothing paged";
    /// Service time.
    UVM_SERVICE = "glake_uvm_fault_service_duration_seconds", Histogram, "seconds",
        &["UUID", "pci_bus_id"], &[], 144,
        "Time of one run of the driver's fault service loop for GPU page faults. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz)";
    /// Migrated bytes.
    UVM_MIGRATED = "glake_uvm_migrated_bytes_total", Counter, "bytes",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id", "direction", "cause"], &[], 320,
        "Managed memory moved by the driver. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz), or nothing moved";
    /// Evictions.
    UVM_EVICTIONS = "glake_uvm_evictions_total", Counter, "",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id"], &[], 48,
        "Root chunks (2 MiB) of managed memory pushed out of GPU memory because it was short, by the workload that lost them. A chunk whose pages need not move is nobody's: other. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz)";
    /// Thrashing.
    UVM_THRASHING = "glake_uvm_thrashing_events_total", Counter, "", &WORKLOAD, &[], 32,
        "Ranges that the driver marked as thrashing between processors. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz), or nothing thrashed";
    /// Throttling.
    UVM_THROTTLED = "glake_uvm_throttled_seconds_total", Counter, "seconds", &["UUID", "pci_bus_id"], &[], 16,
        "Time that the driver held a processor back because of thrashing. No UUID: the CPU. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz), or nothing was held back";
    /// Replays.
    UVM_REPLAYS = "glake_uvm_fault_replays_total", Counter, "", &["UUID", "pci_bus_id"], &[], 16,
        "Replay commands sent to the GPU after faults were serviced. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz)";
    /// Fatal faults.
    UVM_FATAL = "glake_uvm_fatal_faults_total", Counter, "", &["UUID", "pci_bus_id", "reason"], &[], 56,
        "Faults of managed memory that the driver could not service. An Xid follows. A lower bound if glake_events_dropped_total{source=\"uvm\"} grows.",
        "the UVM probes are not attached (see /healthz), or there was none";
    /// Allocated.
    ALLOCATOR_ALLOCATED = "glake_allocator_allocated_bytes", Gauge, "bytes",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id"], &[], 64,
        "Bytes of live tensors in GLake's allocator (torch: allocated_bytes), as its processes say.",
        "no process that can be seen runs GLake's allocator";
    /// Reserved.
    ALLOCATOR_RESERVED = "glake_allocator_reserved_bytes", Gauge, "bytes",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id"], &[], 64,
        "Bytes of GPU memory that GLake's allocator holds (torch: reserved_bytes), as its processes say.",
        "no process that can be seen runs GLake's allocator";
    /// Remapped.
    ALLOCATOR_REMAPPED = "glake_allocator_remapped_bytes_total", Counter, "bytes",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id"], &[], 64,
        "Bytes of physical memory that GLake's allocator moved to new addresses.",
        "no process that can be seen runs GLake's allocator";
    /// Driver calls.
    ALLOCATOR_CALLS = "glake_allocator_driver_calls_total", Counter, "",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id", "call"], &[], 240,
        "Calls of the driver by GLake's allocator: create, map, set_access, unmap, release, other.",
        "no process that can be seen runs GLake's allocator";
    /// Out of memory.
    ALLOCATOR_OOM = "glake_allocator_oom_total", Counter, "",
        &[WORKLOAD[0], WORKLOAD[1], WORKLOAD[2], WORKLOAD[3], WORKLOAD[4], "UUID", "pci_bus_id", "outcome"], &[], 96,
        "Allocations short of memory: raised (it failed), avoided (it would have failed without remapping).",
        "no process that can be seen runs GLake's allocator";
    /// Fallbacks.
    ALLOCATOR_FALLBACKS = "glake_allocator_fallbacks_total", Counter, "", &WORKLOAD, &[], 32,
        "Times that the program's own allocator served because GLake's could not; the process says why on its standard error.",
        "no process that can be seen runs GLake's allocator";
    /// Copies.
    COPY_BYTES = "glake_copy_bytes_total", Counter, "bytes",
        &["UUID", "pci_bus_id", "direction", "route"], &[], 64,
        "Bytes copied between files and GPU memory by GLake's ways, in finished copies, programs that have ended since included.",
        "nothing was copied by GLake since the agent started";
    /// Time of copies.
    COPY_DURATION = "glake_copy_duration_seconds", Histogram, "seconds", &["route"], &[], 68,
        "Time of one finished copy, from the first read to the last byte in place.",
        "nothing was copied by GLake since the agent started";
    /// Xid.
    XID_ERRORS = "glake_gpu_xid_errors_total", Counter, "",
        &["UUID", "pci_bus_id", "xid", "action", "source"], &["xid", "action"], 128,
        "Xid reports of a GPU since agent start. Exact when source is tracepoint or kprobe, a lower bound when it is kmsg.",
        "no NVIDIA GPU, or Xid reports are not watched";
    /// Newest Xid.
    XID_LAST = "glake_gpu_xid_last_timestamp_seconds", Gauge, "seconds",
        &["UUID", "pci_bus_id", "xid", "action"], &["xid", "action"], 128,
        "When the newest Xid of this code came, in seconds since 1970. Alert on this: a counter born at 1 has no increase().",
        "no Xid since agent start";
    /// Reports without a line.
    XID_UNLOGGED = "glake_gpu_xid_unlogged_total", Counter, "", &[], &[], 1,
        "Xid reports that were counted exactly and of which the kernel log, which is rate-limited, has no line: their process is not known. Counted when their event is complete.",
        "Xid reports are not watched, or the kernel log cannot be read";
    /// GPU present.
    GPU_UP = "glake_gpu_up", Gauge, "", &["UUID", "pci_bus_id"], &[], 16,
        "1: bound to the driver. 0: fell off the bus since boot, by its Xid 79 or by NVML where that is asked.", "no NVIDIA driver, or it lists no GPU";
    /// GPU facts.
    GPU_INFO = "glake_gpu_info", Gauge, "",
        &["UUID", "pci_bus_id", "gpu", "device", "model", "driver_version"], &[], 16,
        "Static facts of a GPU, always 1. Join key: UUID.", "no NVIDIA driver, or it lists no GPU";
    /// NVML answers.
    NVML_UP = "glake_nvml_up", Gauge, "", &[], &[], 1,
        "1: NVML answered its newest reading in time. 0: it does not; then every series that comes from it is absent, and /healthz says why.",
        "nvml.enabled is false (default), or the first reading is under way";
    /// NVML's age.
    NVML_READ = "glake_nvml_last_read_timestamp_seconds", Gauge, "seconds", &[], &[], 1,
        "When NVML's newest complete reading ended, in seconds since 1970.", "nvml.enabled is false (default), or NVML never answered";
    /// NVML's failures.
    NVML_FAILED = "glake_nvml_failed_reads_total", Counter, "", &[], &[], 1,
        "Readings of NVML that failed or did not come within nvml.timeout.", "nvml.enabled is false (default)";
    /// ECC.
    GPU_ECC = "glake_gpu_ecc_errors_total", Counter, "", &["UUID", "pci_bus_id", "severity"], &[], 32,
        "ECC errors (severity: corrected, uncorrected) as NVML counts them since the driver was loaded or the GPU was reset; they start again at 0 then.",
        "nvml.enabled is false, NVML does not answer, or the GPU has no ECC or has it switched off: not 0";
    /// ECC ever.
    GPU_ECC_AGGREGATE = "glake_gpu_ecc_aggregate_errors_total", Counter, "", &["UUID", "pci_bus_id", "severity"], &[], 32,
        "ECC errors as NVML counts them over the GPU's life.",
        "as glake_gpu_ecc_errors_total";
    /// Remapped rows.
    GPU_REMAPPED = "glake_gpu_remapped_rows_total", Counter, "", &["UUID", "pci_bus_id", "cause"], &[], 32,
        "Rows of HBM replaced by spare ones, by cause: correctable or uncorrectable errors. One that keeps rising is memory that degrades.",
        "nvml.enabled is false, NVML does not answer, or the GPU does not remap rows (before Ampere: glake_gpu_retired_pages_total)";
    /// Remapping pending.
    GPU_REMAP_PENDING = "glake_gpu_row_remap_pending", Gauge, "", &["UUID", "pci_bus_id"], &[], 16,
        "1: a row remapping waits for the next reset of the GPU.", "as glake_gpu_remapped_rows_total";
    /// Remapping failed.
    GPU_REMAP_FAILURE = "glake_gpu_row_remap_failure", Gauge, "", &["UUID", "pci_bus_id"], &[], 16,
        "1: a row remapping failed: no spare row is left. A reset does not cure it; have the GPU replaced.",
        "as glake_gpu_remapped_rows_total";
    /// Retired pages.
    GPU_RETIRED = "glake_gpu_retired_pages_total", Counter, "", &["UUID", "pci_bus_id", "cause"], &[], 32,
        "Pages of GPU memory taken out of use, by cause: multiple_single_bit or double_bit errors.",
        "nvml.enabled is false, NVML does not answer, or the GPU remaps rows instead (Ampere and newer)";
    /// MIG.
    GPU_MIG = "glake_gpu_mig_enabled", Gauge, "", &["UUID", "pci_bus_id"], &[], 16,
        "1: the GPU is split into MIG instances. 0: it could be and is not.",
        "nvml.enabled is false, NVML does not answer, or the GPU has no MIG";
    /// Memory.
    GPU_MEMORY_SIZE = "glake_gpu_memory_size_bytes", Gauge, "bytes", &["UUID", "pci_bus_id"], &[], 16,
        "Memory of a GPU, whole: used, free and what the driver keeps.", "nvml.enabled is false, or NVML does not answer";
    /// Used.
    GPU_MEMORY_USED = "glake_gpu_memory_used_bytes", Gauge, "bytes", &["UUID", "pci_bus_id"], &[], 16,
        "Used memory of a GPU. Under MIG what its instances use is in it.", "as glake_gpu_memory_size_bytes";
    /// Free.
    GPU_MEMORY_FREE = "glake_gpu_memory_free_bytes", Gauge, "bytes", &["UUID", "pci_bus_id"], &[], 16,
        "Free memory of a GPU.", "as glake_gpu_memory_size_bytes";
    /// Busy.
    GPU_UTILIZATION = "glake_gpu_utilization_ratio", Gauge, "ratio", &["UUID", "pci_bus_id"], &[], 16,
        "Share of the last moments in which some kernel ran, 0 to 1: not how much of the GPU it used. Under MIG it is not defined and absent: there use DCGM_FI_PROF_GR_ENGINE_ACTIVE per instance.",
        "nvml.enabled is false, NVML does not answer, or MIG is on: not 0";
    /// Instances.
    GPU_INSTANCE_INFO = "glake_gpu_instance_info", Gauge, "",
        &["UUID", "pci_bus_id", "GPU_I_ID", "GPU_I_PROFILE", "compute_instance", "instance_uuid"], &[], 56,
        "A MIG instance, always 1. UUID is that of its GPU, as DCGM prints it; instance_uuid (MIG-...) is what a kubelet calls the device: join by it.",
        "nvml.enabled is false, NVML does not answer, or no GPU has MIG instances";
    /// Their memory.
    GPU_INSTANCE_SIZE = "glake_gpu_instance_memory_size_bytes", Gauge, "bytes", &["UUID", "pci_bus_id", "GPU_I_ID"], &[], 56,
        "Memory of a MIG instance: a part of its GPU's, never to be added to it.", "as glake_gpu_instance_info";
    /// Used.
    GPU_INSTANCE_USED = "glake_gpu_instance_memory_used_bytes", Gauge, "bytes", &["UUID", "pci_bus_id", "GPU_I_ID"], &[], 56,
        "Used memory of a MIG instance: a part of its GPU's, never to be added to it.", "as glake_gpu_instance_info";
    /// Free.
    GPU_INSTANCE_FREE = "glake_gpu_instance_memory_free_bytes", Gauge, "bytes", &["UUID", "pci_bus_id", "GPU_I_ID"], &[], 56,
        "Free memory of a MIG instance.", "as glake_gpu_instance_info";
    /// Findings.
    FINDING_ACTIVE = "glake_finding_active", Gauge, "", &["rule", "severity", "UUID", "pci_bus_id"], &[], 60,
        "1: this is wrong now; what was seen and what to do is in findings of /api/v1/state. severity: page, ticket, info.",
        "nothing is found";
    /// SXid.
    SXID_ERRORS = "glake_nvswitch_sxid_errors_total", Counter, "", &["pci_bus_id", "sxid"], &["sxid"], 48,
        "SXid reports of an NVSwitch since agent start.", "no NVSwitch, or no SXid since agent start";
    /// Drops.
    EVENTS_DROPPED = "glake_events_dropped_total", Counter, "", &["source", "reason"], &[], 32,
        "Events the agent knows it missed.", "never: if absent, the agent is down";
    /// Probes.
    PROBE_ATTACHED = "glake_probe_attached", Gauge, "", &["probe", "required"], &[], 52,
        "1: attached. 0: wanted and not attached; the reason is in /healthz. Absent: not wanted.",
        "never: if absent, the agent is down";
    /// eBPF time.
    PROBE_CPU = "glake_probe_cpu_seconds_total", Counter, "seconds", &[], &[], 1,
        "CPU time spent in the eBPF programs, as the kernel counts it.", "the kernel does not measure it";
    /// Map memory.
    PROBE_MEMORY = "glake_probe_memory_bytes", Gauge, "bytes", &[], &[], 1,
        "Kernel memory of the eBPF maps.", "never: if absent, the agent is down";
    /// Freshness.
    SAMPLE_TIMESTAMP = "glake_sample_timestamp_seconds", Gauge, "seconds", &[], &[], 1,
        "When the newest reading was taken, in seconds since 1970; its age is time() minus this.",
        "never: if absent, the agent is down";
    /// Cap.
    SERIES_REFUSED = "glake_series_refused_total", Counter, "", &[], &[], 1,
        "Label sets that got no series of their own because their family was full; their counts are in `other`.",
        "never: if absent, the agent is down";
    /// Reload.
    CONFIG_RELOAD = "glake_config_last_reload_successful", Gauge, "", &[], &[], 1,
        "1: the configuration in use is the newest one. 0: the last reload was refused; the log says why.",
        "never: if absent, the agent is down";
    /// Build.
    BUILD_INFO = "glake_build_info", Gauge, "", &["version", "revision", "arch"], &[], 1,
        "Always 1.", "never: if absent, the agent is down";
    /// CPU.
    PROCESS_CPU = "process_cpu_seconds_total", Counter, "seconds", &[], &[], 1,
        "User and system CPU time of the agent.", "/proc/self could not be read";
    /// RSS.
    PROCESS_RSS = "process_resident_memory_bytes", Gauge, "bytes", &[], &[], 1,
        "Resident memory of the agent.", "/proc/self could not be read";
    /// Address space.
    PROCESS_VIRTUAL = "process_virtual_memory_bytes", Gauge, "bytes", &[], &[], 1,
        "Address space of the agent.", "/proc/self could not be read";
    /// Start.
    PROCESS_START = "process_start_time_seconds", Gauge, "seconds", &[], &[], 1,
        "When the agent started, in seconds since 1970.", "/proc/self could not be read";
    /// Files.
    PROCESS_OPEN_FDS = "process_open_fds", Gauge, "", &[], &[], 1,
        "Open file descriptors of the agent.", "/proc/self could not be read";
    /// File limit.
    PROCESS_MAX_FDS = "process_max_fds", Gauge, "", &[], &[], 1,
        "The limit of open file descriptors of the agent.", "/proc/self could not be read";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_rules_of_both_formats() {
        for family in TABLE {
            let name = family.name;
            assert!(name.starts_with("glake_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind == Type::Counter, "{name}");
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert!(family.unit.is_empty() || stem.ends_with(&format!("_{}", family.unit)), "{name}");
            for label in family.folds {
                assert!(family.labels.contains(label), "{name}: {label}");
            }
            for bad in ["pid", "tid", "comm", "address", "queue", "stack"] {
                assert!(!family.labels.contains(&bad), "{name} must not carry {bad}");
            }
        }
        let names: BTreeSet<_> = TABLE.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), TABLE.len(), "a name stands once");
    }

    #[test]
    fn the_most_series_of_all_families_together_fit_the_host_s_budget() {
        let sum: usize = TABLE.iter().map(|f| f.max).sum();
        assert!(sum <= MAX_SERIES, "{sum} series");
    }

    #[test]
    fn every_probe_has_room_for_its_series() {
        let table: Vec<_> = crate::events::ebpf::table::probes().collect();
        let probes = table.len() + crate::events::ebpf::LOG_PROBES.len();
        assert!(probes <= PROBE_ATTACHED.max, "{probes} probes");
        // A family may miss events by recursion, the ring by what cannot be read, the log by what is overwritten.
        let families: BTreeSet<_> = table.iter().map(|p| p.family).collect();
        let drops = glake_common::stat::DROPS.len() + families.len() + 2;
        assert!(drops <= EVENTS_DROPPED.max, "{drops} drops");
    }

    #[test]
    fn histogram_bounds_are_bounds_of_the_kernel_s_slots() {
        let slots: BTreeSet<_> =
            (0..glake_common::hist::SLOTS).filter_map(glake_common::hist::upper_us).collect();
        for bound in LATENCY_BOUNDS_US {
            assert!(slots.contains(&bound), "{bound} us would split a slot");
        }
    }
}
