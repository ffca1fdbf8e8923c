//! Rare or slow things, one by one: what the ring buffer carries. Frequent things are only counted, in [`super::sample`].

use crate::clock::Stamp;
use serde::{Deserialize, Serialize};

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, on the agent's clocks.
    pub at: Stamp,
    /// How far `at` may be off, in ns: 0 for BPF's own clock, more where clocks had to be converted.
    pub clock_error_ns: u64,
    /// Where it comes from: `nvidia:nvidia_dev_xid (trace point)`, `kernel log`.
    pub source: String,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum What {
    /// The GPU driver reported an Xid (or, for an NVSwitch, an SXid).
    Xid {
        /// As sysfs spells it.
        pci: String,
        /// An NVSwitch's SXid.
        nvswitch: bool,
        /// The code.
        code: u32,
        /// The driver's text.
        message: String,
    },
    /// A PCIe AER report.
    Aer {
        /// As sysfs spells it.
        pci: String,
        /// `corrected`, `nonfatal` or `fatal`.
        severity: String,
        /// The status bits.
        status: u32,
    },
    /// An IOMMU translation fault.
    IommuFault {
        /// As sysfs spells it, where told.
        pci: Option<String>,
        /// The faulting I/O virtual address, where told.
        iova: Option<u64>,
        /// The kernel's words: `DMA Write`, `reason 0x05`.
        detail: String,
    },
    /// An NVMe command timed out.
    NvmeTimeout {
        /// `nvme0`.
        controller: String,
        /// The kernel's words.
        detail: String,
    },
    /// An NVMe controller was reset.
    NvmeReset {
        /// `nvme0`.
        controller: String,
    },
    /// An NVMe asynchronous event.
    NvmeAsync {
        /// `nvme0`.
        controller: String,
        /// The raw result dword.
        result: u32,
    },
    /// A command or request ended with an error.
    IoError {
        /// Block device or controller.
        device: String,
        /// `read`, or the opcode.
        operation: String,
        /// The errno or NVMe status in words and number.
        status: String,
    },
    /// A request took longer than `slow_io` of the settings.
    SlowIo {
        /// Block device.
        device: String,
        /// `read`.
        operation: String,
        /// Waiting in the host and in the device together.
        took_ns: u64,
    },
    /// A UVM page fault that the driver could not service: the program ends, and an Xid 31 follows.
    UvmFatal {
        /// The process, where known.
        tgid: Option<u32>,
        /// UUID of the GPU, where known.
        uuid: Option<String>,
        /// What was touched.
        address: u64,
        /// `read`, `write`, `atomic` or `prefetch`; `None`: not told.
        access: Option<String>,
        /// In the driver's words.
        reason: String,
    },
    /// A probe went on, off or was detached.
    Probe {
        /// Its name.
        probe: String,
        /// What changed and why.
        detail: String,
    },
}
