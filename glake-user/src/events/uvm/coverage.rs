//! Can UVM page faults be watched on this host, and if not, why? Three answers, nothing is opened or attached.

use super::release;
use crate::error::Kind;
use std::path::Path;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Yes, and how.
    Yes(String),
    /// No: why, and what to do.
    No {
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The question could not be answered.
    CannotTell(String),
}

/// The page faults of one chosen process, through the driver's event queue: what `glake uvm` needs.
pub fn one_process(root: &Path) -> Answer {
    let version = match release::loaded(root) {
        Ok(version) => version,
        Err(e) if e.kind() == Kind::Missing => {
            return Answer::No {
                reason: e.to_string(),
                remedy: e.remedy_text().unwrap_or("load the NVIDIA driver").to_owned(),
            };
        }
        Err(e) => return Answer::CannotTell(e.chain()),
    };
    let interface = match release::interface(&version) {
        Ok(interface) => interface,
        Err(e) => {
            return Answer::No {
                reason: e.to_string(),
                remedy: e.remedy_text().unwrap_or("use a newer GLake").to_owned(),
            };
        }
    };
    let node = root.join("dev/nvidia-uvm-tools");
    match rustix::fs::access(&node, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK) {
        Ok(()) => Answer::Yes(format!(
            "driver event queue {:?} (driver {version}); another user's process needs CAP_SYS_PTRACE",
            interface.layout
        )),
        Err(rustix::io::Errno::NOENT) => Answer::No {
            reason: "there is no /dev/nvidia-uvm-tools".into(),
            remedy: "nvidia-modprobe -u -c 0; in a container pass the node in".into(),
        },
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => Answer::No {
            reason: "/dev/nvidia-uvm-tools may not be opened by this user".into(),
            remedy: "run as root, or be given read and write on the node".into(),
        },
        Err(e) => Answer::CannotTell(format!("{}: {e}", node.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(version: Option<&str>, node: bool) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        if let Some(version) = version {
            let module = dir.path().join("sys/module/nvidia_uvm");
            std::fs::create_dir_all(&module).expect("made");
            std::fs::write(module.join("version"), version).expect("written");
        }
        std::fs::create_dir_all(dir.path().join("dev")).expect("made");
        if node {
            std::fs::write(dir.path().join("dev/nvidia-uvm-tools"), "").expect("written");
        }
        dir
    }

    #[test]
    fn each_no_has_its_own_reason() {
        let reason = |dir: &tempfile::TempDir| match one_process(dir.path()) {
            Answer::No { reason, remedy } => {
                assert!(!remedy.is_empty());
                reason
            }
            other => panic!("{other:?}"),
        };
        assert!(reason(&host(None, true)).contains("not loaded"));
        assert!(reason(&host(Some("620.05"), true)).contains("620.05"));
        assert!(reason(&host(Some("580.159.04"), false)).contains("no /dev/nvidia-uvm-tools"));
    }

    #[test]
    fn yes_and_cannot_tell_are_told_apart() {
        assert!(
            matches!(one_process(host(Some("580.159.04"), true).path()), Answer::Yes(how) if how.contains("V2"))
        );
        assert!(
            matches!(one_process(host(Some("550.163.01"), true).path()), Answer::Yes(how) if how.contains("V1"))
        );
        assert!(matches!(one_process(host(Some("garbage"), true).path()), Answer::CannotTell(_)));
    }
}
