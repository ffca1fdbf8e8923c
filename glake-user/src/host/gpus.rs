//! The NVIDIA GPUs of this host, as the driver lists them under /proc. Opens no device node, wakes no GPU.

use crate::error::{Error, Kind, Result};
use serde::Serialize;
use std::path::Path;

/// A PCI address, however it was spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BusId {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl BusId {
    /// Reads `0000:3b:00.0` (sysfs), `00000000:3B:00.0` (NVML, DCGM), `0000:3b:00` and `PCI:0000:3b:00` (Xid lines).
    pub fn parse(text: &str) -> Option<BusId> {
        let text = text.trim();
        let text = text.strip_prefix("PCI:").unwrap_or(text);
        let mut parts = text.split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let (device, function) = rest.split_once('.').unwrap_or((rest, "0"));
        if parts.next().is_some() || !(4..=8).contains(&domain.len()) || bus.len() != 2 || device.len() != 2 {
            return None;
        }
        let hex = |t: &str| t.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(t, 16).ok())?;
        let function = hex(function).filter(|f| *f < 8)?;
        Some(BusId {
            domain: hex(domain)?,
            bus: u8::try_from(hex(bus)?).ok()?,
            device: u8::try_from(hex(device)?).ok().filter(|d| *d < 32)?,
            function: u8::try_from(function).ok()?,
        })
    }

    /// As DCGM and NVML spell it: `00000000:3B:00.0`.
    pub fn dcgm(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.{:X}", self.domain, self.bus, self.device, self.function)
    }
}

impl std::fmt::Display for BusId {
    /// As sysfs spells it: `0000:3b:00.0`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its place among the GPUs by PCI address: the number DCGM and nvidia-smi use.
    pub index: u32,
    /// As sysfs spells it.
    pub pci: String,
    /// As DCGM spells it.
    pub pci_bus_id: String,
    /// `GPU-...`. `None` until the driver has initialised the GPU: it shows question marks then.
    pub uuid: Option<String>,
    /// `NVIDIA H200`.
    pub model: Option<String>,
    /// The number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Taken out of service by the driver.
    pub excluded: bool,
}

impl Gpu {
    /// `nvidia1`.
    pub fn device(&self) -> Option<String> {
        self.minor.map(|n| format!("nvidia{n}"))
    }
}

/// What the driver lists.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Gpus {
    /// `580.159.04`. `None`: no NVIDIA driver is loaded.
    pub driver_version: Option<String>,
    /// `open` or `proprietary`, as far as the driver says.
    pub flavour: Option<String>,
    /// By PCI address.
    pub gpus: Vec<Gpu>,
}

impl Gpus {
    /// The GPU at a PCI address in any spelling. Function numbers are not compared: an Xid line has none.
    pub fn at(&self, pci: &str) -> Option<&Gpu> {
        let want = BusId::parse(pci)?;
        self.gpus.iter().find(|g| {
            BusId::parse(&g.pci).is_some_and(|b| (b.domain, b.bus, b.device) == (want.domain, want.bus, want.device))
        })
    }

    /// The GPU with that UUID.
    pub fn with_uuid(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|g| g.uuid.as_deref() == Some(uuid))
    }

    /// The GPU behind `/dev/nvidiaN`.
    pub fn with_minor(&self, minor: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|g| g.minor == Some(minor))
    }
}

/// Reads the list under `root` (`/` on a live host). No driver is no error: the list is then empty.
///
/// # Errors
/// When /proc/driver/nvidia is there and cannot be read.
pub fn read(root: &Path) -> Result<Gpus> {
    let base = root.join("proc/driver/nvidia");
    let mut found = Gpus::default();
    match std::fs::read_to_string(base.join("version")) {
        Ok(text) => (found.driver_version, found.flavour) = driver(&text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(Error::os(format!("reading {}", base.join("version").display()), e)),
    }
    let folder = base.join("gpus");
    let items = match std::fs::read_dir(&folder) {
        Ok(items) => items,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(Error::os(format!("listing {}", folder.display()), e)),
    };
    let mut listed = Vec::new();
    for item in items.flatten() {
        let Some(bus) = item.file_name().to_str().and_then(BusId::parse) else { continue };
        // A GPU that is just going away may lose its file: it is listed with what is known.
        let text = std::fs::read_to_string(item.path().join("information")).unwrap_or_default();
        listed.push((bus, text));
    }
    listed.sort_by_key(|(bus, _)| *bus);
    found.gpus = listed.iter().zip(0..).map(|((bus, text), index)| gpu(index, *bus, text)).collect();
    Ok(found)
}

/// Finds a GPU by what a person types: `gpu:2`, `2`, a PCI address or a UUID (or a beginning of one).
///
/// # Errors
/// `Missing` when none fits, `BadInput` when the beginning fits several.
pub fn find<'a>(gpus: &'a Gpus, text: &str) -> Result<&'a Gpu> {
    let wanted = text.strip_prefix("gpu:").unwrap_or(text);
    let missing = || {
        let have: Vec<String> = gpus.gpus.iter().map(|g| format!("gpu:{} {}", g.index, g.pci)).collect();
        let have = if have.is_empty() { "this host shows no NVIDIA GPU".to_owned() } else { have.join(", ") };
        Error::new(Kind::Missing, format!("no GPU {text:?}")).remedy(have)
    };
    if let Ok(index) = wanted.parse::<u32>() {
        return gpus.gpus.iter().find(|g| g.index == index).ok_or_else(missing);
    }
    if BusId::parse(wanted).is_some() {
        return gpus.at(wanted).ok_or_else(missing);
    }
    let fits = |g: &&Gpu| wanted.len() >= 8 && g.uuid.as_deref().is_some_and(|u| u.starts_with(wanted));
    let mut fitting = gpus.gpus.iter().filter(fits);
    let first = fitting.next().ok_or_else(missing)?;
    match fitting.next() {
        None => Ok(first),
        Some(_) => Err(Error::new(Kind::BadInput, format!("{text:?} fits more than one GPU"))),
    }
}

fn driver(text: &str) -> (Option<String>, Option<String>) {
    let Some(line) = text.lines().find(|l| l.starts_with("NVRM version:")) else { return (None, None) };
    let version = line.split_whitespace().find(|w| {
        w.contains('.') && w.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    });
    let flavour = if line.contains("Open Kernel Module") { "open" } else { "proprietary" };
    (version.map(str::to_owned), Some(flavour.to_owned()))
}

fn gpu(index: u32, bus: BusId, text: &str) -> Gpu {
    let field = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
            .filter(|v| !v.is_empty())
    };
    Gpu {
        index,
        pci: bus.to_string(),
        pci_bus_id: bus.dcgm(),
        uuid: field("GPU UUID").filter(|u| !u.contains('?')),
        model: field("Model").filter(|m| m != "Unknown"),
        minor: field("Device Minor").and_then(|m| m.parse().ok()),
        excluded: field("GPU Excluded").is_some_and(|e| e == "Yes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(gpus: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        let base = dir.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(base.join("gpus")).expect("made");
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (b@h)\n";
        std::fs::write(base.join("version"), version).expect("written");
        for (pci, text) in gpus {
            std::fs::create_dir_all(base.join("gpus").join(pci)).expect("made");
            std::fs::write(base.join("gpus").join(pci).join("information"), text).expect("written");
        }
        dir
    }

    const H200: &str = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 301\nGPU UUID: \t GPU-5c1e0000-1111-2222-3333-444455556666\n\
                        Video BIOS: \t 96.00.d0.00.01\nBus Type: \t PCIe\nBus Location: \t 0000:3b:00.0\n\
                        Device Minor: \t 1\nGPU Excluded:\t No\n";
    const ASLEEP: &str = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????-????-????-????????????\n\
                          Device Minor: \t 0\nGPU Excluded:\t No\n";

    #[test]
    fn every_spelling_of_an_address_is_the_same_address() {
        for text in ["0000:3b:00.0", "00000000:3B:00.0", "0000:3b:00", "PCI:0000:3b:00", " 0000:3b:00.0\n"] {
            let bus = BusId::parse(text).expect(text);
            assert_eq!(bus.to_string(), "0000:3b:00.0");
            assert_eq!(bus.dcgm(), "00000000:3B:00.0");
        }
        for text in ["", "3b:00.0", "0000:3b:00.8", "0000:3b:20.0", "0000:3b:00.0:1", "zzzz:3b:00.0", "0000:+b:00.0"] {
            assert_eq!(BusId::parse(text), None, "{text:?}");
        }
        assert_eq!(BusId::parse("10000:01:00.0").expect("a VMD domain").to_string(), "10000:01:00.0");
    }

    #[test]
    fn a_uuid_of_question_marks_is_unknown_not_a_guess() {
        let dir = host(&[("0000:3b:00.0", H200), ("0000:19:00.0", ASLEEP)]);
        let found = read(dir.path()).expect("readable");
        assert_eq!(found.driver_version.as_deref(), Some("580.159.04"));
        assert_eq!(found.flavour.as_deref(), Some("open"));
        assert_eq!(found.gpus[0].pci, "0000:19:00.0", "numbered by PCI address");
        assert_eq!(found.gpus[0].uuid, None);
        assert_eq!(found.gpus[1].uuid.as_deref(), Some("GPU-5c1e0000-1111-2222-3333-444455556666"));
        assert_eq!(found.gpus[1].device().as_deref(), Some("nvidia1"));
        assert_eq!(found.at("PCI:0000:3b:00").map(|g| g.index), Some(1));
        assert_eq!(found.with_minor(0).map(|g| g.index), Some(0));
    }

    #[test]
    fn a_host_without_the_driver_has_an_empty_list() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(read(dir.path()).expect("no error"), Gpus::default());
    }

    #[test]
    fn a_person_may_name_a_gpu_in_four_ways_and_is_told_what_there_is() {
        let dir = host(&[("0000:3b:00.0", H200), ("0000:19:00.0", ASLEEP)]);
        let gpus = read(dir.path()).expect("readable");
        for text in ["gpu:1", "1", "0000:3B:00.0", "GPU-5c1e0000", "gpu:0000:3b:00"] {
            assert_eq!(find(&gpus, text).expect(text).index, 1);
        }
        let error = find(&gpus, "gpu:7").expect_err("there are two");
        assert_eq!(error.remedy_text(), Some("gpu:0 0000:19:00.0, gpu:1 0000:3b:00.0"));
        assert_eq!(find(&gpus, "GPU").expect_err("too short").kind(), Kind::Missing);
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_not(text in "\\PC{0,24}") {
            if let Some(bus) = BusId::parse(&text) {
                prop_assert_eq!(BusId::parse(&bus.to_string()), Some(bus));
                prop_assert_eq!(BusId::parse(&bus.dcgm()), Some(bus));
            }
        }
    }
}
