//! The record of one GPU event. Its JSON is an interface: keys are added, never renamed; readers ignore what they do
//! not know, so that an older GLake reads a newer one's store.

use super::condition::Condition;
use crate::clock::Stamp;
use crate::events::xid::parse::{MmuFault, SmException};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the keys.
pub const SCHEMA: u32 = 1;

/// Where a report came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `nvidia:nvidia_dev_xid`: every report, at its exact time.
    Tracepoint,
    /// A kprobe on the driver's reporting function: every report.
    Kprobe,
    /// The kernel log: it is rate-limited, so its count is a lower bound.
    Kmsg,
}

impl Source {
    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Source::Tracepoint => "tracepoint",
            Source::Kprobe => "kprobe",
            Source::Kmsg => "kmsg",
        }
    }

    /// From the name an event carries: `nvidia:nvidia_dev_xid (trace point)`, `kernel log`.
    pub fn of(name: &str) -> Source {
        let trace = ["trace point", "tracepoint", "nvidia_dev_xid", "nvswitch_dev_sxid"];
        if trace.iter().any(|t| name.contains(t)) {
            Source::Tracepoint
        } else if name.contains("kprobe") {
            Source::Kprobe
        } else {
            Source::Kmsg
        }
    }
}

/// The process the event belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    /// In the initial pid namespace.
    pub pid: Option<u32>,
    /// As the driver or the kernel names it.
    pub name: Option<String>,
    /// Its cgroup, if it still lived when it was looked up.
    pub cgroup: Option<String>,
    /// `serve/chat-5d9`, `slurm 4711`: for people and for telling jobs apart.
    pub workload: Option<String>,
    /// Labels of the workload, as the metrics have them.
    pub labels: BTreeMap<String, String>,
    /// What told it: `driver message`, `driver message + /proc`.
    pub source: String,
    /// How long after the report the source spoke, in ns.
    pub lag_ns: u64,
}

/// Something that happened on the host near the event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fact {
    /// When.
    pub at: Stamp,
    /// How far off `at` may be.
    pub clock_error_ns: u64,
    /// `aer`, `iommu`, `nvme`, `uvm`, `xid`.
    pub family: String,
    /// The device, where one is named.
    pub device: Option<String>,
    /// In words.
    pub text: String,
    /// What told it.
    pub source: String,
    /// How many times; equal facts in a row are one.
    pub count: u64,
}

/// SMs remembered of one record: more than any GPU has.
const MOST_SMS: usize = 512;

/// Exceptions of SMs, which come in bursts: one program error on many SMs at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SmFaults {
    /// The first warp's, in the driver's words.
    pub words: String,
    /// `words` is a warp's, and not only the SM's that there were several.
    pub of_a_warp: bool,
    /// `GPC 9, TPC 1, SM 1`.
    pub places: BTreeSet<String>,
}

impl SmFaults {
    /// Takes one more.
    pub fn add(&mut self, one: SmException) {
        if self.words.is_empty() || (one.of_a_warp && !self.of_a_warp) {
            (self.words, self.of_a_warp) = (one.words, one.of_a_warp);
        }
        if self.places.len() < MOST_SMS {
            self.places.insert(one.place);
        }
    }
}

/// How often one code was reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// By the trace point or the kprobe: exact.
    pub exact: u64,
    /// By the kernel log: a lower bound.
    pub log: u64,
}

impl Seen {
    /// The best count: the log never has more than happened.
    pub fn count(self) -> u64 {
        self.exact.max(self.log)
    }
}

/// One GPU event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Unique on this host: time, place and code of the first report.
    pub id: String,
    /// The host's name.
    pub host: String,
    /// The first report.
    pub at: Stamp,
    /// How far off `at` may be.
    pub clock_error_ns: u64,
    /// The newest report.
    pub last: Stamp,
    /// The time as a saved log spells it, where that is no Unix time; `at.realtime_ns` is 0 then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_time: Option<String>,
    /// As sysfs spells it. `None`: the driver did not say which GPU.
    pub pci: Option<String>,
    /// As DCGM spells it.
    pub pci_bus_id: Option<String>,
    /// `None`: not known to the driver's list then.
    #[serde(rename = "UUID")]
    pub uuid: Option<String>,
    /// Index by PCI address.
    pub gpu: Option<u32>,
    /// MIG: GPU instance.
    pub gpu_instance: Option<u32>,
    /// An NVSwitch's SXid.
    pub nvswitch: bool,
    /// The code that explains the others.
    pub code: u32,
    /// False: the driver gave no code (a GPU that fell off the bus) and `code` is the one of the same meaning.
    pub code_told: bool,
    /// What it means.
    pub meaning: String,
    /// The label value of what to do.
    pub action: String,
    /// What to do, in words.
    pub do_now: String,
    /// Who.
    pub who: Option<Who>,
    /// The driver's text of the root.
    pub message: String,
    /// Where the text came from.
    pub message_source: String,
    /// What an MMU fault's text says.
    pub mmu: Option<MmuFault>,
    /// What the SMs say, where a report of this record tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm: Option<SmFaults>,
    /// The place in memory that failed, where a report of this record names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_site: Option<String>,
    /// By code, all of this record.
    pub codes: BTreeMap<u32, Seen>,
    /// Facts of the seconds before, oldest first.
    pub before: Vec<Fact>,
    /// What was looked for and not seen.
    pub not_seen: Vec<String>,
    /// What cannot be told, and what would tell it.
    pub cannot_tell: Vec<String>,
    /// Earlier records of the same device by code, in the 30 days before.
    pub history: BTreeMap<u32, u64>,
    /// The GPU's memory as NVML last told it, and as it was when the event began. `None`: not known.
    pub condition: Option<Condition>,
    /// See above.
    pub condition_before: Option<Condition>,
    /// Events known to be missed in this window.
    pub dropped: u64,
    /// No more reports are expected.
    pub closed: bool,
}

impl Record {
    /// Is each count exact?
    pub fn exact(&self) -> bool {
        self.dropped == 0 && self.codes.values().all(|s| s.exact > 0 && s.exact >= s.log)
    }

    /// Codes that were folded in as consequences.
    pub fn folded(&self) -> impl Iterator<Item = (u32, u64)> {
        self.codes.iter().filter(|(code, _)| **code != self.code).map(|(code, seen)| (*code, seen.count()))
    }
}
