//! Whether a module of the driver is loaded, and whether it is still the same one. A kprobe on a module's function dies with
//! the module, silently, and does not come back with it.

use std::{os::unix::fs::MetadataExt, path::Path};

/// One life of the module: another one has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Module {
    /// sysfs gives every folder a number of its own, and a new one when it comes back.
    inode: u64,
    /// `major << 20` of /dev/nvidia-uvm, as the kernel keeps device numbers (MINORBITS).
    pub(crate) device: u32,
}

impl Module {
    /// The nvidia-uvm that is loaded on the host below `root` now. `None`: none is.
    pub(crate) fn loaded(root: &Path) -> Option<Module> {
        let inode = live_module(root, "nvidia_uvm")?;
        let devices = std::fs::read_to_string(root.join("proc/devices")).unwrap_or_default();
        Some(Module { inode, device: major(&devices).unwrap_or(u32::MAX >> 20) << 20 })
    }
}

/// A number of the module that is loaded now, which another one does not have. `None`: none is, or it is built in.
pub(crate) fn live_module(root: &Path, module: &str) -> Option<u64> {
    let folder = root.join("sys/module").join(module);
    // A module on its way in or out has no functions to probe.
    let state = std::fs::read_to_string(folder.join("initstate")).ok()?;
    if state.trim() != "live" {
        return None;
    }
    Some(std::fs::metadata(&folder).ok()?.ino())
}

/// How many open files, modules and programs hold nvidia-uvm. `None`: the kernel does not tell.
pub(crate) fn holders(root: &Path) -> Option<u64> {
    std::fs::read_to_string(root.join("sys/module/nvidia_uvm/refcnt")).ok()?.trim().parse().ok()
}

fn major(devices: &str) -> Option<u32> {
    let line = |l: &str| l.trim().strip_suffix(" nvidia-uvm").and_then(|n| n.trim().parse().ok());
    devices.lines().find_map(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(state: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        let module = dir.path().join("sys/module/nvidia_uvm");
        std::fs::create_dir_all(&module).expect("made");
        std::fs::write(module.join("initstate"), state).expect("written");
        std::fs::create_dir_all(dir.path().join("proc")).expect("made");
        let devices = "Character devices:\n  1 mem\n195 nvidia\n243 nvidia-uvm\n  9 nvidia-uvm-x\n";
        std::fs::write(dir.path().join("proc/devices"), devices).expect("written");
        dir
    }

    #[test]
    fn a_module_that_comes_back_is_another_one() {
        let dir = host("live\n");
        let first = Module::loaded(dir.path()).expect("loaded");
        assert_eq!(first.device, 243 << 20);
        assert_eq!(Module::loaded(dir.path()), Some(first));
        let folder = dir.path().join("sys/module/nvidia_uvm");
        // Moved away and not removed, or the file system might use the number again at once; sysfs does not.
        std::fs::rename(&folder, dir.path().join("old")).expect("moved");
        assert_eq!(Module::loaded(dir.path()), None);
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("initstate"), "live\n").expect("written");
        assert!(Module::loaded(dir.path()).is_some_and(|second| second != first));
    }

    #[test]
    fn a_module_on_its_way_is_not_loaded() {
        for state in ["coming\n", "going\n", ""] {
            assert_eq!(Module::loaded(host(state).path()), None, "{state:?}");
        }
    }
}
