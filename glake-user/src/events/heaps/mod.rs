//! What the allocators of GLake inside other processes say about themselves: a small file each in `/dev/shm`, read by whoever
//! may, in every mount namespace that can be reached.
//!
//! The file's words are the process's own. What is checked: that it lives, that it started when the file says, and that the file
//! is its user's.

mod copies;
mod lookout;

pub use copies::{Copies, Direction, Route};
pub use lookout::Lookout;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};

/// Where the files lie, below the root of a mount namespace.
pub const FOLDER: &str = "dev/shm";
/// Their names begin with this; process number and start time follow.
pub const PREFIX: &str = "glake-heap.";
/// The version of the keys. Keys are added, never renamed; readers ignore what they do not know.
pub const SCHEMA: u32 = 1;
/// A file is written each second. One this old is not written any more.
pub const SILENT: Duration = Duration::from_secs(60);
/// No honest file is larger: 64 GPUs take a third of it.
pub(super) const MOST_BYTES: u64 = 64 << 10;
/// More GPUs than any host has, and longer than any name of a driver call or a PCI address.
const MOST_GPUS: usize = 64;
const LONGEST: usize = 32;

/// What one process says. All sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapFile {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// GLake's version in the process.
    pub version: String,
    /// Its number in its own pid namespace.
    pub pid: u32,
    /// Field 22 of its `/proc/PID/stat`: tells it from a later process of the same number.
    pub start_ticks: u64,
    /// Times the program's own allocator served because GLake could not, ever.
    pub fallbacks: u64,
    /// One entry for each GPU that was used.
    pub gpus: Vec<HeapGpu>,
    /// What it copied.
    pub copies: Vec<Copies>,
}

impl HeapFile {
    /// Whether the process uses GLake's allocator, or tried to; else it only copies.
    pub fn allocates(&self) -> bool {
        !self.gpus.is_empty() || self.fallbacks > 0 || self.copies.is_empty()
    }
}

/// The heap of one GPU. Everything but the first six is counted since the heap was made and never falls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapGpu {
    /// Its index among the GPUs the process sees.
    pub ordinal: u32,
    /// As sysfs spells it. `None`: no PCI device, or not told.
    pub pci: Option<String>,
    /// In blocks handed out.
    pub allocated_bytes: u64,
    /// The most since the process last reset its peaks.
    pub peak_allocated_bytes: u64,
    /// Physical memory held.
    pub reserved_bytes: u64,
    /// The most since the process last reset its peaks.
    pub peak_reserved_bytes: u64,
    /// Physical memory moved by remapping.
    pub remapped_bytes: u64,
    /// Driver calls, by name.
    pub driver_calls: BTreeMap<String, u64>,
    /// Allocations that failed for want of memory.
    pub ooms: u64,
    /// Allocations that would have failed without remapping.
    pub ooms_avoided: u64,
}

/// A process that lives, with what it says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeapProcess {
    /// Its number in the pid namespace of the /proc that was read.
    pub pid: u32,
    /// Its comm.
    pub comm: String,
    /// Path of its cgroup, where there is one.
    pub cgroup_path: Option<String>,
    /// It has said nothing for a minute: it runs another program now, or hangs. Its numbers are old.
    pub silent: bool,
    /// What it says.
    pub said: HeapFile,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Heaps {
    /// By process number.
    pub processes: Vec<HeapProcess>,
    /// What all processes copied since this is looked for, those that ended included.
    #[serde(default)]
    pub copies: Vec<Copies>,
    /// Files that are none, or are not their process's own.
    pub broken: u64,
    /// Processes whose mount namespace may not be looked into (needs CAP_SYS_PTRACE): if they have a `/dev/shm` of their own, as
    /// containers do, what lies there is not seen.
    pub hidden: u64,
}

/// Reads a file's content. Total: any bytes give a value or an error, and the value is small.
///
/// # Errors
/// `BadInput` for everything that no process of ours would say.
pub fn parse(bytes: &[u8]) -> Result<HeapFile> {
    let bad = |what: String| Error::new(Kind::BadInput, format!("a heap's statistics: {what}"));
    let file: HeapFile = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    if file.pid == 0 || file.schema == 0 {
        return Err(bad("no process or no schema".to_owned()));
    }
    let short = |text: &str| text.len() <= LONGEST && text.bytes().all(|b| b.is_ascii_graphic());
    let plain = |gpu: &HeapGpu| {
        gpu.pci.as_deref().is_none_or(|pci| crate::pci::sysfs(pci).as_deref() == Some(pci))
            && gpu.driver_calls.len() <= MOST_GPUS
            && gpu.driver_calls.keys().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
            && gpu.driver_calls.keys().all(|name| short(name))
    };
    if file.copies.len() > copies::MOST || file.copies.iter().any(Copies::odd) {
        return Err(bad("copies that no GLake counts".to_owned()));
    }
    if file.gpus.len() > MOST_GPUS || !short(&file.version) || !file.gpus.iter().all(plain) {
        return Err(bad("values that no GLake writes".to_owned()));
    }
    Ok(file)
}

/// The start time of a process, field 22 of its stat; `who` is a number or `self`. `None`: it is not there.
pub fn start_ticks(proc: &Path, who: &str) -> Option<u64> {
    let stat = fs::read_to_string(proc.join(who).join("stat")).ok()?;
    // "pid (comm) S ...": a comm may hold spaces and parentheses, so the last one counts; the state is field 3.
    stat.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &HeapFile) -> Vec<u8> {
        serde_json::to_vec(file).unwrap()
    }

    fn copies() -> Copies {
        Copies { pci: Some("0000:3b:00.0".into()), bytes: 4096, ..Copies::default() }
    }

    fn honest() -> HeapFile {
        let gpu = HeapGpu { pci: Some("0000:3b:00.0".into()), reserved_bytes: 7, ..HeapGpu::default() };
        let gpu = HeapGpu { driver_calls: [("set_access".into(), 3)].into(), ..gpu };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        HeapFile {
            schema: SCHEMA,
            version,
            pid: 5,
            start_ticks: 9,
            fallbacks: 1,
            gpus: vec![gpu],
            copies: vec![copies()],
        }
    }

    #[test]
    fn what_is_written_reads_back_and_unknown_keys_are_ignored() {
        assert_eq!(parse(&text(&honest())).unwrap(), honest());
        assert_eq!(parse(br#"{"schema": 9, "pid": 5, "later": [1]}"#).unwrap().pid, 5);
    }

    #[test]
    fn words_that_could_end_up_in_a_label_are_checked() {
        let mut name = honest();
        name.gpus[0].driver_calls.insert("x\n\"".into(), 1);
        let mut pci = honest();
        pci.gpus[0].pci = Some("a\u{1b}[2J".into());
        let mut copied = honest();
        copied.copies[0].pci = Some("gpu 0".into());
        let mut slots = honest();
        slots.copies[0].duration.slots = vec![1; 1000];
        let mut many = honest();
        many.gpus = vec![HeapGpu::default(); MOST_GPUS + 1];
        for file in [
            name,
            pci,
            copied,
            slots,
            many,
            HeapFile { pid: 0, ..honest() },
            HeapFile { schema: 0, ..honest() },
        ] {
            assert_eq!(parse(&text(&file)).unwrap_err().kind(), Kind::BadInput, "{file:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_a_value_or_an_error(bytes: Vec<u8>, at in 0usize..300, byte: u8) {
            let _ = parse(&bytes);
            let mut mutated = text(&honest());
            let at = at % mutated.len();
            mutated[at] = byte;
            let _ = parse(&mutated);
        }
    }
}
