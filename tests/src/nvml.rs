//! Scenes of the stand-in `libnvidia-ml.so.1` (`tests/libnvml`), and agents that ask it.

use crate::agent::Setup;
use crate::binary;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A scene in a file, which the library reads anew at every call.
pub struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    /// A machine like this.
    ///
    /// # Panics
    /// Where there is no temporary folder.
    pub fn new(scene: &Value) -> Scene {
        let made = Scene { folder: tempfile::tempdir().expect("a temporary folder") };
        made.set(scene);
        made
    }

    /// The machine is like this from now on.
    ///
    /// # Panics
    /// Where the file cannot be written.
    pub fn set(&self, scene: &Value) {
        // At once: the library must never read half of it.
        let part = self.folder.path().join("part");
        std::fs::write(&part, scene.to_string()).expect("written");
        std::fs::rename(part, self.file()).expect("renamed");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("scene.json")
    }

    /// The functions that were called so far, one a line.
    pub fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The variables that lead a program to this machine.
    pub fn variables(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        let pairs = [
            ("GLAKE_STANDIN_NVML", path(&self.file())),
            ("GLAKE_STANDIN_NVML_CALLS", path(&self.folder.path().join("calls"))),
            ("GLAKE_NVML_LIBRARY", path(&binary::library("libnvidia_ml.so"))),
            ("GLAKE_NVML_ENABLED", "true".to_owned()),
            ("GLAKE_NVML_INTERVAL", "1s".to_owned()),
            ("GLAKE_NVML_TIMEOUT", "1s".to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// `glake run` that asks this machine.
    pub fn agent(&self, args: &[&str]) -> Setup {
        let mut all = vec!["--interval", "200ms"];
        all.extend(args);
        Setup { env: self.variables(), ..Setup::new(&all) }
    }
}

/// A data-centre GPU that has everything.
pub fn h100(bus: u32) -> Value {
    json!({"uuid": format!("GPU-5c1e0000-0000-4000-8000-0000000000{bus:02x}"), "pci": format!("00000000:{bus:02X}:00.0"),
           "name": "NVIDIA H100 80GB HBM3", "ecc": true, "volatile": [3, 1], "aggregate": [236_795, 2],
           "rows": [11, 1, 0, 0], "memory": [85_520_809_984u64, 500_000_000u64, 80_000_000_000u64, 5_020_809_984u64],
           "bar1": [137_438_953_472u64, 137_437_000_000u64, 1_953_472u64], "busy": 87, "mig": [0, 0]})
}

/// A machine with these GPUs.
pub fn machine(gpus: &[Value]) -> Value {
    json!({"driver": "580.159.04", "gpus": gpus})
}

/// A machine as `nvidia-smi -q -x` printed it. What it prints as `N/A` is not supported.
///
/// # Panics
/// Where the text is none of its output.
pub fn recorded(xml: &str) -> Value {
    let driver = within(xml, "driver_version").expect("a driver");
    let gpus: Vec<Value> = xml.split("<gpu id=\"").skip(1).map(gpu).collect();
    assert!(!gpus.is_empty(), "no GPU in it");
    json!({"driver": driver, "gpus": gpus})
}

fn gpu(xml: &str) -> Value {
    let instances: Vec<Value> = xml.split("<mig_device>").skip(1).map(instance).collect();
    // What belongs to the GPU itself stands after its instances.
    let own = xml.split("</mig_devices>").nth(1).unwrap_or(xml);
    let (volatile, aggregate) = (within(own, "volatile"), within(own, "aggregate"));
    let retired = |cause| number(within(own, cause)?, "retired_count");
    let mut gpu = json!({
        "uuid": within(own, "uuid"), "pci": xml.split('"').next(), "name": within(xml, "product_name"),
        "ecc": flag(own, "current_ecc"), "volatile": volatile.and_then(errors), "aggregate": aggregate.and_then(errors),
        "retired": retired("multiple_single_bit_retirement").zip(retired("double_bit_retirement")),
        "retirement_pending": flag(own, "pending_retirement").map(u32::from),
        "memory": memory(own), "bar1": bar1(own), "busy": number(own, "gpu_util"),
        "mig": flag(xml, "current_mig").zip(flag(xml, "pending_mig")).map(|(a, b)| [u32::from(a), u32::from(b)]),
        "instances": instances,
    });
    if let Some(map) = gpu.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    gpu
}

/// The recording has no UUID of an instance and no profile: named here by its number.
fn instance(xml: &str) -> Value {
    let (gpu, compute) = (number(xml, "gpu_instance_id"), number(xml, "compute_instance_id"));
    let id = gpu.expect("an instance has a number");
    json!({"uuid": format!("MIG-00000000-0000-0000-0000-00000000000{id}"), "name": "NVIDIA A100-SXM4-80GB MIG 2g.20gb",
           "ids": [id, compute.expect("and a second one")], "memory": memory(xml), "bar1": bar1(xml)})
}

fn within<'a>(xml: &'a str, tag: &str) -> Option<&'a str> {
    let rest = xml.split_once(&format!("<{tag}>"))?.1;
    Some(rest.split_once(&format!("</{tag}>"))?.0.trim())
}

fn number(xml: &str, tag: &str) -> Option<u64> {
    within(xml, tag)?.split_whitespace().next()?.parse().ok()
}

fn flag(xml: &str, tag: &str) -> Option<bool> {
    match within(xml, tag)? {
        "Enabled" | "Yes" => Some(true),
        "Disabled" | "No" => Some(false),
        _ => None,
    }
}

fn errors(xml: &str) -> Option<[u64; 2]> {
    let sum = |kind: &str| -> Option<u64> {
        ["sram", "dram"].into_iter().map(|memory| number(xml, &format!("{memory}_{kind}"))).sum()
    };
    Some([sum("correctable")?, sum("uncorrectable")?])
}

fn mib(xml: &str, tag: &str) -> Option<u64> {
    Some(number(xml, tag)? << 20)
}

fn memory(xml: &str) -> Option<[u64; 4]> {
    let usage = within(xml, "fb_memory_usage")?;
    Some([mib(usage, "total")?, mib(usage, "reserved")?, mib(usage, "free")?, mib(usage, "used")?])
}

fn bar1(xml: &str) -> Option<[u64; 3]> {
    let usage = within(xml, "bar1_memory_usage")?;
    Some([mib(usage, "total")?, mib(usage, "free")?, mib(usage, "used")?])
}
