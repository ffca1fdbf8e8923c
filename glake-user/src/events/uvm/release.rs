//! Which interface of the driver's event queue belongs to which driver release.
//!
//! The interface is not promised to be stable, and it was not: between 535 and 595 the call that makes a tracker had
//! four shapes. Every shape here was read from the headers of NVIDIA's open kernel modules (`uvm_types.h`,
//! `uvm_ioctl.h`) at each tag of that branch. A branch that is not listed is refused: garbage is worse than nothing.

use crate::error::{Error, Kind, Result};
use std::path::Path;

/// A driver version such as `580.159.04`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The branch: 580.
    pub branch: u32,
    /// The rest: 159 and 4.
    pub rest: Vec<u32>,
}

impl Version {
    /// Reads `580.159.04` and `535.98`; surrounding blanks are ignored.
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text.trim().split('.').map(|p| p.parse::<u32>().ok());
        let branch = parts.next()??;
        let rest: Option<Vec<u32>> = parts.collect();
        let rest = rest.filter(|r| (1..=3).contains(&r.len()))?;
        Some(Version { branch, rest })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.branch)?;
        // NVIDIA prints the second and later numbers with at least two digits: 580.159.04.
        self.rest.iter().try_for_each(|n| write!(f, ".{n:02}"))
    }
}

/// How a tracker is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// Request 56, 56 bytes, status at 48. No version word.
    Plain,
    /// Request 56, 64 bytes: status at 48, wanted version at 52, granted version at 56.
    Requested,
    /// Request 56, 56 bytes: wanted version at 48, status at 52.
    VersionFirst,
    /// Request 76, 56 bytes, status at 48: always V2.
    Second,
}

/// Layout of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// 64 bytes, the same in every release from 535 to 595.
    V1,
    /// 72 bytes, as from 565 on. (The V2 of 550 had other offsets; there V1 is used.)
    V2,
}

impl Layout {
    /// Bytes of one entry.
    pub fn entry_size(self) -> usize {
        match self {
            Layout::V1 => 64,
            Layout::V2 => 72,
        }
    }
}

/// How the table of processor UUIDs is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// 64, or 77 for V2.
    pub request: u32,
    /// Where the driver puts its status.
    pub status_at: usize,
    /// Where the wanted version goes, if there is such a word.
    pub version_at: Option<usize>,
    /// Entries of 16 bytes the driver may write.
    pub entries: usize,
}

/// The interface of one release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// How a tracker is made.
    pub init: Init,
    /// What its entries look like.
    pub layout: Layout,
    /// How the processor table is read.
    pub table: Table,
    /// Does a CPU fault carry the CPU's number (from 565)?
    pub cpu_number: bool,
}

/// V1 tables hold 33 processors, V2 tables 257 (32 GPUs of 8 instances and the CPU).
const V1_PROCESSORS: usize = 33;
const V2_PROCESSORS: usize = 257;

/// The interface of `version`.
///
/// # Errors
/// `Unsupported` for a branch whose headers were not read.
pub fn interface(version: &Version) -> Result<Interface> {
    let plain_table = Table { request: 64, status_at: 8, version_at: None, entries: V1_PROCESSORS };
    let v1 = |init, table| Interface { init, layout: Layout::V1, table, cpu_number: false };
    match version.branch {
        535 | 545 => Ok(v1(Init::Plain, plain_table)),
        // 550.40.07 still had the plain call; the version words came with 550.40.53.
        550 if version.rest.as_slice() < [40, 53].as_slice() => Ok(v1(Init::Plain, plain_table)),
        550 | 555 => {
            // The word at 8 is a count; 0 asks for the V1 table.
            let table = Table { status_at: 12, ..plain_table };
            Ok(v1(Init::Requested, table))
        }
        560 => {
            let table = Table { status_at: 12, version_at: Some(8), ..plain_table };
            Ok(v1(Init::VersionFirst, table))
        }
        565 | 570 | 575 | 580 | 590 | 595 => {
            let table = Table { request: 77, entries: V2_PROCESSORS, ..plain_table };
            Ok(Interface { init: Init::Second, layout: Layout::V2, table, cpu_number: true })
        }
        _ => Err(Error::new(
            Kind::Unsupported,
            format!(
                "the event queue of NVIDIA driver {version} is not known to this GLake (known: 535 to 595)"
            ),
        )
        .remedy("use a newer GLake; reading it by guess would print wrong numbers")),
    }
}

/// The version of the loaded nvidia-uvm module, read under `root` (`/` on a live host).
///
/// # Errors
/// `Missing` when the module is not loaded, `BadInput` when its version does not read like one.
pub fn loaded(root: &Path) -> Result<Version> {
    let path = root.join("sys/module/nvidia_uvm/version");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return loaded_from_proc(root),
        Err(e) => return Err(Error::os(format!("reading {}", path.display()), e)),
    };
    Version::parse(&text).ok_or_else(|| {
        Error::new(Kind::BadInput, format!("{} holds {:?}, not a version", path.display(), text.trim()))
    })
}

/// Some builds leave the module version out: the line of nvidia.ko has the same number.
fn loaded_from_proc(root: &Path) -> Result<Version> {
    let missing = || {
        Error::new(Kind::Missing, "the nvidia-uvm kernel module is not loaded")
            .remedy("start a CUDA program once, or run: modprobe nvidia-uvm")
    };
    if !root.join("sys/module/nvidia_uvm").exists() {
        return Err(missing());
    }
    let text = std::fs::read_to_string(root.join("proc/driver/nvidia/version")).map_err(|_| missing())?;
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
    text.split_whitespace()
        .filter(|w| w.contains('.'))
        .find_map(Version::parse)
        .ok_or_else(|| Error::new(Kind::BadInput, "no driver version in /proc/driver/nvidia/version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        Version::parse(text).expect("a version")
    }

    #[test]
    fn versions_read_and_print_as_nvidia_writes_them() {
        for text in ["580.159.04", "535.98", "550.40.07", "550.100", "595.45.04"] {
            assert_eq!(v(text).to_string(), text);
        }
        for text in ["", "580", "580.x", "580.1.2.3.4", "-1.2", "stub"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn each_branch_gets_the_interface_of_its_headers() {
        let is = |text: &str| interface(&v(text)).expect("known");
        assert_eq!(is("535.288.01").init, Init::Plain);
        assert_eq!(is("545.29.06").init, Init::Plain);
        assert_eq!(is("550.40.07").init, Init::Plain);
        assert_eq!(is("550.40.53").init, Init::Requested);
        assert_eq!(is("550.100").init, Init::Requested);
        assert_eq!(is("550.163.01").layout, Layout::V1);
        assert_eq!(is("555.58").init, Init::Requested);
        assert_eq!(is("560.35.03").init, Init::VersionFirst);
        assert_eq!(is("565.57.01").init, Init::Second);
        assert_eq!(is("580.159.04").layout, Layout::V2);
        assert_eq!(is("595.45.04").init, Init::Second);
    }

    #[test]
    fn an_unknown_release_is_refused_by_name() {
        for text in ["470.10.01", "530.41.03", "540.10", "600.10.01", "620.05"] {
            let error = interface(&v(text)).expect_err("unknown");
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_host_without_the_module_says_so() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(loaded(dir.path()).expect_err("nothing there").kind(), Kind::Missing);
        let module = dir.path().join("sys/module/nvidia_uvm");
        std::fs::create_dir_all(&module).expect("made");
        let proc = dir.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(&proc).expect("made");
        let line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\n\
                    GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        std::fs::write(proc.join("version"), line).expect("written");
        assert_eq!(loaded(dir.path()).expect("from proc"), v("580.159.04"));
        std::fs::write(module.join("version"), "595.45.04\n").expect("written");
        assert_eq!(loaded(dir.path()).expect("from sysfs"), v("595.45.04"));
        std::fs::write(module.join("version"), "stub\n").expect("written");
        assert_eq!(loaded(dir.path()).expect_err("not a version").kind(), Kind::BadInput);
    }
}
