//! Finding a GPU in the inventory: by what a person types, by the driver's spelling, by minor number.

use super::inventory::Gpu;
use super::pci;
use crate::error::{Error, Kind, Result};

/// The GPU at a PCI address in any spelling, with its index by PCI address (the number DCGM and nvidia-smi use).
/// Function numbers are not compared: a line of the driver has none.
pub fn at<'a>(gpus: &'a [Gpu], address: &str) -> Option<(usize, &'a Gpu)> {
    let slot =
        |address: &str| pci::sysfs(address).and_then(|a| a.rsplit_once('.').map(|(s, _)| s.to_owned()));
    let want = slot(address)?;
    gpus.iter().enumerate().find(|(_, g)| slot(&g.pci).as_ref() == Some(&want))
}

/// The GPU with that UUID.
pub fn with_uuid<'a>(gpus: &'a [Gpu], uuid: &str) -> Option<(usize, &'a Gpu)> {
    gpus.iter().enumerate().find(|(_, g)| g.uuid.as_deref() == Some(uuid))
}

/// The GPU behind `/dev/nvidiaN`.
pub fn with_minor(gpus: &[Gpu], minor: u32) -> Option<(usize, &Gpu)> {
    gpus.iter().enumerate().find(|(_, g)| g.minor == Some(minor))
}

/// Finds a GPU by what a person types: `gpu:2`, `2`, a PCI address, or a UUID or its beginning.
///
/// # Errors
/// `Missing` when none fits, `BadInput` when a beginning fits several.
pub fn find<'a>(gpus: &'a [Gpu], text: &str) -> Result<(usize, &'a Gpu)> {
    let wanted = text.strip_prefix("gpu:").unwrap_or(text);
    let missing = || {
        let have: Vec<String> = gpus.iter().enumerate().map(|(i, g)| format!("gpu:{i} {}", g.pci)).collect();
        let have = if have.is_empty() { "this host shows no NVIDIA GPU".to_owned() } else { have.join(", ") };
        Error::new(Kind::Missing, format!("no GPU {text:?}")).remedy(have)
    };
    if let Ok(index) = wanted.parse::<usize>() {
        return gpus.get(index).map(|g| (index, g)).ok_or_else(missing);
    }
    if pci::sysfs(wanted).is_some() {
        return at(gpus, wanted).ok_or_else(missing);
    }
    let fits = |g: &Gpu| wanted.len() >= 8 && g.uuid.as_deref().is_some_and(|u| u.starts_with(wanted));
    let mut fitting = gpus.iter().enumerate().filter(|(_, g)| fits(g));
    let first = fitting.next().ok_or_else(missing)?;
    match fitting.next() {
        None => Ok(first),
        Some(_) => Err(Error::new(Kind::BadInput, format!("{text:?} fits more than one GPU"))),
    }
}

/// Whether memory of the whole process may page to GPUs (HMM) was switched off for nvidia_uvm. `None`: the module is not loaded,
/// or has no such switch.
pub fn hmm_off(root: &std::path::Path) -> Option<bool> {
    let path = root.join("sys/module/nvidia_uvm/parameters/uvm_disable_hmm");
    match std::fs::read_to_string(path).ok()?.trim() {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Gpu> {
        let gpu = |pci: &str, uuid: Option<&str>, minor| Gpu {
            pci: pci.into(),
            uuid: uuid.map(str::to_owned),
            minor: Some(minor),
            model: Some("NVIDIA H200".into()),
        };
        vec![gpu("0000:19:00.0", None, 1), gpu("0000:3b:00.0", Some("GPU-5c1e0000-1111"), 0)]
    }

    #[test]
    fn a_person_may_name_a_gpu_in_four_ways_and_is_told_what_there_is() {
        let gpus = two();
        for text in ["gpu:1", "1", "0000:3B:00.0", "GPU-5c1e0000", "gpu:0000:3b:00"] {
            assert_eq!(find(&gpus, text).expect(text).0, 1);
        }
        let error = find(&gpus, "gpu:7").expect_err("there are two");
        assert_eq!(error.remedy_text(), Some("gpu:0 0000:19:00.0, gpu:1 0000:3b:00.0"));
        assert_eq!(find(&gpus, "GPU").expect_err("too short").kind(), Kind::Missing);
        assert_eq!(find(&[], "0").expect_err("none").remedy_text(), Some("this host shows no NVIDIA GPU"));
    }

    #[test]
    fn the_driver_s_own_names_find_the_same_gpu() {
        let gpus = two();
        assert_eq!(at(&gpus, "PCI:0000:3b:00").map(|(i, _)| i), Some(1));
        assert_eq!(at(&gpus, "00000000:3B:00.0").map(|(i, _)| i), Some(1));
        assert_eq!(at(&gpus, "0000:3c:00.0"), None);
        assert_eq!(with_minor(&gpus, 1).map(|(i, _)| i), Some(0));
        assert_eq!(with_uuid(&gpus, "GPU-5c1e0000-1111").map(|(i, _)| i), Some(1));
    }
}
