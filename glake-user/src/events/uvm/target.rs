//! Getting at the UVM descriptor of another process, and noticing when that process ends.
//!
//! `pidfd_getfd` copies a descriptor of the target into this process. It needs the right to ptrace the target: the
//! same user and a dumpable target (and, with yama, a descendant), or CAP_SYS_PTRACE. It does not stop the target.

use super::queue::{Queue, processors};
use super::release::{Interface, Version};
use crate::error::{Error, Kind, Result};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The name of the node whose descriptors are looked for.
const NODE: &str = "/dev/nvidia-uvm";

/// A process being watched.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    pidfd: OwnedFd,
}

impl Target {
    /// Holds on to process `pid`: its number cannot be taken by another while this lives.
    ///
    /// # Errors
    /// `Missing` when there is no such process, `Unsupported` before Linux 5.3.
    pub fn new(pid: i32) -> Result<Target> {
        let no_such = || Error::new(Kind::Missing, format!("there is no process {pid}"));
        let raw = if pid > 0 { Pid::from_raw(pid) } else { None }.ok_or_else(no_such)?;
        match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Target { pid, pidfd }),
            Err(rustix::io::Errno::SRCH) => Err(no_such()),
            Err(rustix::io::Errno::INVAL) => {
                Err(Error::new(Kind::Missing, format!("{pid} is a thread, not a process"))
                    .remedy(format!("give the process id: grep Tgid /proc/{pid}/status")))
            }
            Err(e) => Err(Error::os(format!("opening a descriptor of process {pid}"), e.into())),
        }
    }

    /// Its number in this pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Has it ended?
    pub fn ended(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0)
    }

    /// Descriptor numbers in the target that are open on `/dev/nvidia-uvm`, ascending. Empty: UVM is not open (yet).
    ///
    /// # Errors
    /// `Denied` when /proc/PID/fd may not be read, `Missing` when the process is gone.
    pub fn uvm_descriptors(&self) -> Result<Vec<i32>> {
        uvm_descriptors_under(Path::new("/proc"), self.pid)
    }

    /// Copies descriptor `number` of the target into this process.
    ///
    /// # Errors
    /// `Denied` without the right to ptrace the target, `Missing` when it or the descriptor is gone.
    pub fn take(&self, number: i32) -> Result<OwnedFd> {
        pidfd_getfd(self.pidfd.as_fd(), number, PidfdGetfdFlags::empty()).map_err(|e| match e {
            rustix::io::Errno::PERM => Error::new(
                Kind::Denied,
                format!("copying descriptor {number} of process {} (pidfd_getfd)", self.pid),
            )
            .because(std::io::Error::from(e))
            .remedy(ptrace_remedy(Path::new("/proc"))),
            rustix::io::Errno::SRCH | rustix::io::Errno::BADF => {
                Error::new(Kind::Missing, format!("process {} or its descriptor {number} is gone", self.pid))
            }
            rustix::io::Errno::NOSYS => {
                Error::new(Kind::Unsupported, "this kernel has no pidfd_getfd (Linux 5.6 and newer have it)")
            }
            e => Error::os(format!("copying descriptor {number} of process {}", self.pid), e.into()),
        })
    }

    /// Makes an event queue on the target's address space. `Ok(None)`: the target has not opened UVM yet, or has not
    /// initialised it.
    ///
    /// # Errors
    /// When the target is gone, or access is refused, or the driver refuses for another reason.
    pub fn attach(&self, version: &Version, interface: Interface, entries: u32) -> Result<Option<Queue>> {
        // CUDA opens the node twice: one descriptor has the address space, the other only keeps the process's
        // memory alive and is refused by the driver. Before initialisation both are.
        for number in self.uvm_descriptors()? {
            let descriptor = match self.take(number) {
                Ok(descriptor) => descriptor,
                // Closed between listing and copying: the next look sees the truth.
                Err(e) if e.kind() == Kind::Missing && !self.ended() => continue,
                Err(e) => return Err(e),
            };
            // A cheap question first: making a queue pins megabytes.
            match processors(interface, descriptor.as_fd()) {
                Ok(_) => return Queue::open(version, interface, descriptor, entries).map(Some),
                Err(e) if e.kind() == Kind::Misuse => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// What is missing for pidfd_getfd, in words.
fn ptrace_remedy(proc: &Path) -> String {
    let yama = std::fs::read_to_string(proc.join("sys/kernel/yama/ptrace_scope")).unwrap_or_default();
    let yama = match yama.trim() {
        "1" => "; kernel.yama.ptrace_scope=1 allows only own children: start it with `glake uvm -- COMMAND`",
        "2" => "; kernel.yama.ptrace_scope=2 asks for CAP_SYS_PTRACE",
        "3" => "; kernel.yama.ptrace_scope=3 forbids it to everybody until reboot",
        _ => "",
    };
    format!("run as root or with CAP_SYS_PTRACE{yama}")
}

fn uvm_descriptors_under(proc: &Path, pid: i32) -> Result<Vec<i32>> {
    let folder = proc.join(pid.to_string()).join("fd");
    let reading = |e| {
        let error = Error::os(format!("listing {}", folder.display()), e);
        match error.kind() {
            Kind::Denied => error.remedy("run as root or with CAP_SYS_PTRACE"),
            _ => error,
        }
    };
    let mut numbers = Vec::new();
    for item in std::fs::read_dir(&folder).map_err(reading)? {
        let Ok(item) = item else { continue };
        let Some(number) = item.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if std::fs::read_link(item.path()).is_ok_and(|path| path == Path::new(NODE)) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// `pid` and all its descendants, parents first, as /proc tells them now. Needs CONFIG_PROC_CHILDREN (all
/// distributions have it); without it only `pid` itself.
pub fn family(pid: i32) -> Vec<i32> {
    family_under(Path::new("/proc"), pid)
}

fn family_under(proc: &Path, pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    let mut next = 0;
    // A bound, not a limit anybody should meet: a fork bomb must not keep us here.
    while let Some(&parent) = found.get(next).filter(|_| found.len() < 4096) {
        next += 1;
        for child in children(&proc.join(parent.to_string()).join("task")) {
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found
}

fn children(tasks: &PathBuf) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(tasks) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = Target::new(0).expect_err("no process 0");
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains("no process 0"));
        assert_eq!(Target::new(i32::MAX).expect_err("beyond pid_max").kind(), Kind::Missing);
        assert_eq!(Target::new(-5).expect_err("no group").kind(), Kind::Missing);
    }

    #[test]
    fn a_target_is_seen_to_end() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        let target = Target::new(i32::try_from(child.id()).expect("fits")).expect("it runs");
        assert!(!target.ended());
        assert!(target.uvm_descriptors().expect("our own child").is_empty());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(target.ended());
        assert_eq!(target.take(0).expect_err("gone").kind(), Kind::Missing);
    }

    #[test]
    fn a_descriptor_of_a_child_can_be_copied() {
        let child = std::process::Command::new("sleep").arg("5").spawn();
        let mut child = child.expect("sleep starts");
        let target = Target::new(i32::try_from(child.id()).expect("fits")).expect("it runs");
        let copied = target.take(2);
        child.kill().expect("ours");
        child.wait().expect("ours");
        copied.expect("own child, no privilege needed");
    }

    #[test]
    fn only_links_to_the_uvm_node_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let fd = dir.path().join("7/fd");
        std::fs::create_dir_all(&fd).expect("made");
        for (name, to) in [
            ("13", "/dev/nvidia-uvm"),
            ("4", "/dev/nvidia-uvm-tools"),
            ("5", "/dev/nvidia0"),
            ("12", "/dev/nvidia-uvm"),
            ("x", "/dev/nvidia-uvm"),
        ] {
            std::os::unix::fs::symlink(to, fd.join(name)).expect("linked");
        }
        assert_eq!(uvm_descriptors_under(dir.path(), 7).expect("readable"), [12, 13]);
        assert_eq!(uvm_descriptors_under(dir.path(), 8).expect_err("none").kind(), Kind::Missing);
    }

    #[test]
    fn a_family_is_found_through_every_thread() {
        let dir = tempfile::tempdir().expect("a folder");
        let make = |pid: i32, tid: i32, children: &str| {
            let task = dir.path().join(format!("{pid}/task/{tid}"));
            std::fs::create_dir_all(&task).expect("made");
            std::fs::write(task.join("children"), children).expect("written");
        };
        make(10, 10, "11 ");
        make(10, 15, "12 ");
        make(12, 12, "13 11 ");
        make(11, 11, "");
        let mut found = family_under(dir.path(), 10);
        assert_eq!(found[0], 10);
        found.sort_unstable();
        assert_eq!(found, [10, 11, 12, 13]);
    }
}
