//! The host's unchanging facts, read once at start and again on reload; the recorder keeps them in its header.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, path::Path};

/// What this host has. What could not be read is `None` or missing; it is never guessed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The host's name.
    pub hostname: String,
    /// The kernel's release: `6.12.48+deb13-amd64`.
    pub kernel: String,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// The kernel's id of this boot.
    pub boot_id: Option<String>,
    /// Version of the NVIDIA driver, where one is loaded.
    pub nvidia_driver: Option<String>,
    /// GPUs bound to the NVIDIA driver, by PCI address.
    pub gpus: Vec<Gpu>,
    /// NVMe controllers, by name.
    pub nvme: Vec<NvmeDevice>,
    /// Names of containers by id, from the links in /var/log/containers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, Container>,
}

/// A GPU, as the driver's /proc folder tells it: no device node is opened for this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// As sysfs spells it.
    pub pci: String,
    /// As DCGM prints it. `None`: the driver shows question marks until the GPU is first used.
    pub uuid: Option<String>,
    /// The number in `/dev/nvidia<minor>`.
    pub minor: Option<u32>,
    /// `NVIDIA H200`.
    pub model: Option<String>,
}

/// An NVMe controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeDevice {
    /// `nvme0`.
    pub controller: String,
    /// As sysfs spells it. `None` for fabrics.
    pub pci: Option<String>,
    /// The drive's model.
    pub model: Option<String>,
    /// The NUMA node it hangs on.
    pub numa_node: Option<u32>,
}

/// Whose container it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
}

impl Inventory {
    /// Reads the host below `root` (`/` on a live host).
    pub fn read(root: &Path) -> Inventory {
        let text = |path: &str| trimmed(&root.join(path));
        let driver = text("proc/driver/nvidia/version").and_then(|line| driver_version(&line));
        Inventory {
            hostname: text("proc/sys/kernel/hostname").unwrap_or_else(|| "unknown".into()),
            kernel: text("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            arch: std::env::consts::ARCH.into(),
            boot_id: text("proc/sys/kernel/random/boot_id"),
            nvidia_driver: driver,
            gpus: gpus(root),
            nvme: nvme(root),
            containers: containers(root),
        }
    }

    /// The UUID of a GPU, by its address in any spelling.
    pub fn gpu(&self, pci: &str) -> Option<&Gpu> {
        let pci = super::pci::sysfs(pci)?;
        self.gpus.iter().find(|gpu| gpu.pci == pci)
    }
}

/// The names of the containers that run now: `<pod>_<namespace>_<container>-<id>.log`. Cheap enough to read again
/// whenever a container id is met that has no name yet.
pub fn containers(root: &Path) -> BTreeMap<String, Container> {
    names(&root.join("var/log/containers")).into_iter().filter_map(|name| container(&name)).collect()
}

fn container(name: &str) -> Option<(String, Container)> {
    // Names of Kubernetes objects hold no underscore (RFC 1123), so the first two are the separators.
    let (pod, rest) = name.strip_suffix(".log")?.split_once('_')?;
    let (namespace, rest) = rest.split_once('_')?;
    let (container, id) = rest.rsplit_once('-')?;
    let whole = super::workload::container_id(id).is_some() && ![pod, namespace, container].contains(&"");
    whole.then(|| {
        (
            id.to_owned(),
            Container { namespace: namespace.into(), pod: pod.into(), container: container.into() },
        )
    })
}

/// The NUMA node of a PCI device. `None`: the host has one node only, or does not say.
pub fn numa_node(root: &Path, pci: &str) -> Option<u32> {
    let text = fs::read_to_string(root.join("sys/bus/pci/devices").join(pci).join("numa_node")).ok()?;
    // -1 where the firmware did not say.
    text.trim().parse().ok()
}

fn gpus(root: &Path) -> Vec<Gpu> {
    let folder = root.join("proc/driver/nvidia/gpus");
    let known = names(&folder).into_iter().filter_map(|name| {
        let text = fs::read_to_string(folder.join(&name).join("information")).ok()?;
        let field = |key: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
            // Before the GPU is first used the driver prints question marks: unknown, not a name.
            let value = line.trim();
            (!value.is_empty() && !value.contains('?')).then(|| value.to_owned())
        };
        Some(Gpu {
            pci: super::pci::sysfs(&name)?,
            uuid: field("GPU UUID"),
            minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
            model: field("Model"),
        })
    });
    known.collect()
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...`
fn driver_version(line: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    line.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn nvme(root: &Path) -> Vec<NvmeDevice> {
    let folder = root.join("sys/class/nvme");
    let found = names(&folder).into_iter().map(|controller| {
        let at = folder.join(&controller);
        NvmeDevice {
            pci: trimmed(&at.join("address")).and_then(|address| super::pci::sysfs(&address)),
            model: trimmed(&at.join("model")),
            // -1 means that the firmware names no node.
            numa_node: trimmed(&at.join("numa_node")).and_then(|node| node.parse().ok()),
            controller,
        }
    });
    found.collect()
}

/// The names in a folder, sorted; none where it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn trimmed(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    const GPU: &str = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t GPU-5c1e0000-0000-4000-8000-000000000000\n\
                       Video BIOS: \t ??.??.??.??.??\nBus Location: \t 0000:3b:00.0\nDevice Minor: \t 1\n";

    #[test]
    fn a_host_is_read_from_its_files_and_question_marks_are_unknown() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "proc/sys/kernel/hostname", "gpu-node-17\n");
        write(root, "proc/sys/kernel/osrelease", "6.12.48\n");
        write(
            root,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\nGCC version: 12.2.0\n",
        );
        write(root, "proc/driver/nvidia/gpus/0000:3b:00.0/information", GPU);
        write(
            root,
            "proc/driver/nvidia/gpus/0000:19:00.0/information",
            "Model: NVIDIA H200\nGPU UUID: GPU-????????\n",
        );
        write(root, "sys/class/nvme/nvme0/address", "0000:81:00.0\n");
        write(root, "sys/class/nvme/nvme0/numa_node", "-1\n");
        let id = "f".repeat(64);
        write(root, &format!("var/log/containers/chat-5d9_serve_vllm-main-{id}.log"), "");
        write(root, "var/log/containers/odd.log", "");

        let host = Inventory::read(root);
        assert_eq!((host.hostname.as_str(), host.kernel.as_str()), ("gpu-node-17", "6.12.48"));
        assert_eq!(host.nvidia_driver.as_deref(), Some("580.159.04"));
        assert_eq!(host.gpus[0].uuid, None, "the driver has not asked that GPU yet");
        assert_eq!(host.gpu("00000000:3B:00.0").unwrap().minor, Some(1));
        assert_eq!(host.nvme[0].pci.as_deref(), Some("0000:81:00.0"));
        assert_eq!(host.nvme[0].numa_node, None);
        assert_eq!(host.containers.len(), 1);
        assert_eq!(host.containers[&id].container, "vllm-main");
    }

    #[test]
    fn an_empty_root_is_a_host_about_which_nothing_is_known() {
        let root = tempfile::tempdir().unwrap();
        let host = Inventory::read(root.path());
        assert_eq!(host.boot_id, None);
        assert_eq!(host.hostname, "unknown");
        assert!(host.gpus.is_empty() && host.nvme.is_empty() && host.containers.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_name_and_any_line_are_taken_without_a_panic(text: String) {
            let _ = (container(&text), driver_version(&text));
        }
    }
}
