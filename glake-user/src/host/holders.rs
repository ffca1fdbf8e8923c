//! Who has GPU device nodes open, in any namespace, and which tasks are stuck in the GPU driver. Reads /proc only: no
//! device node is opened, so a sick GPU is not touched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The major number of /dev/nvidia0 and its like (Linux Documentation/admin-guide/devices.txt, 195).
const NVIDIA_MAJOR: u32 = 195;
/// Minors of that major that are no GPU.
const CTL_MINOR: u32 = 255;
const MODESET_MINOR: u32 = 254;

/// A device node of the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// `/dev/nvidiaN`.
    Gpu(u32),
    /// `/dev/nvidiactl`, `nvidia-modeset`, `nvidia-uvm`, `nvidia-uvm-tools`, `nvidia-caps`, `nvidia-nvswitch`: by name.
    Other(&'static str),
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Node::Gpu(minor) => write!(f, "nvidia{minor}"),
            Node::Other(name) => f.write_str(name),
        }
    }
}

/// A process with nodes open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// In the pid namespace of the /proc that was read.
    pub pid: i32,
    /// Its number in its own, innermost pid namespace, where that differs.
    pub inner_pid: Option<i32>,
    /// Its comm.
    pub comm: String,
    /// Its real uid.
    pub uid: Option<u32>,
    /// Its state letter: R, S, D, Z.
    pub state: Option<char>,
    /// Its cgroup path.
    pub cgroup: Option<String>,
    /// Open descriptors by node.
    pub nodes: BTreeMap<Node, u32>,
}

/// A task that waits or spins in the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Thread group.
    pub pid: i32,
    /// The task.
    pub tid: i32,
    /// Its comm.
    pub comm: String,
    /// D: waits uninterruptibly. R: runs, here inside the driver.
    pub state: char,
    /// Its kernel stack, innermost first. `None`: may not be read (needs CAP_SYS_ADMIN).
    pub stack: Option<Vec<String>>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holders {
    /// By pid.
    pub holders: Vec<Holder>,
    /// Tasks stuck in the driver, or that may be (stack not readable) because their process holds a node.
    pub stuck: Vec<Stuck>,
    /// Processes whose descriptors may not be listed.
    pub refused: u32,
    /// Processes looked at.
    pub looked: u32,
    /// False: this /proc shows only one pid namespace of several.
    pub whole_host: bool,
}

/// The inode of the initial pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const INITIAL_PID_NS: &str = "pid:[4026531836]";

/// Looks at every process below `root` (`/` on a live host).
pub fn look(root: &Path) -> Holders {
    let proc = root.join("proc");
    let majors = majors(&proc);
    let whole_host = fs::read_link(proc.join("self/ns/pid")).is_ok_and(|l| l == Path::new(INITIAL_PID_NS));
    let mut found = Holders { whole_host, ..Holders::default() };
    let mut pids: Vec<i32> = fs::read_dir(&proc)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    for pid in pids {
        let at = proc.join(pid.to_string());
        found.looked += 1;
        let nodes = match nodes(&at, &majors) {
            Ok(nodes) => nodes,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                found.refused += 1;
                BTreeMap::new()
            }
            // It ended meanwhile.
            Err(_) => continue,
        };
        let comm = trimmed(&at.join("comm")).unwrap_or_default();
        // The driver's own threads hold no descriptors.
        let driver_thread = comm.starts_with("UVM ") || comm.starts_with("nv_") || comm.contains("-nvidia");
        if !nodes.is_empty() || driver_thread {
            found.stuck.extend(stuck(&at, pid));
        }
        if !nodes.is_empty() {
            found.holders.push(holder(&at, pid, comm, nodes));
        }
    }
    found
}

/// Major numbers of the driver's nodes, from /proc/devices.
fn majors(proc: &Path) -> BTreeMap<u32, &'static str> {
    const NAMES: [&str; 4] = ["nvidia-uvm", "nvidia-caps", "nvidia-nvswitch", "nvidia-nvlink"];
    let text = fs::read_to_string(proc.join("devices")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (major, name) = line.trim().split_once(' ')?;
            let known = NAMES.iter().find(|n| **n == name.trim())?;
            Some((major.parse().ok()?, *known))
        })
        .collect()
}

/// By device number, not by path: a container may have the node under another name or in another mount namespace.
fn nodes(at: &Path, majors: &BTreeMap<u32, &'static str>) -> std::io::Result<BTreeMap<Node, u32>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(at.join("fd"))?.flatten() {
        // This follows the link of /proc, which asks the file's inode and does not open the device.
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if !meta.file_type().is_char_device() {
            continue;
        }
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        if let Some(node) = node(major, minor, majors) {
            *found.entry(node).or_default() += 1;
        }
    }
    Ok(found)
}

fn node(major: u32, minor: u32, majors: &BTreeMap<u32, &'static str>) -> Option<Node> {
    match (major, minor) {
        (NVIDIA_MAJOR, CTL_MINOR) => Some(Node::Other("nvidiactl")),
        (NVIDIA_MAJOR, MODESET_MINOR) => Some(Node::Other("nvidia-modeset")),
        (NVIDIA_MAJOR, minor) => Some(Node::Gpu(minor)),
        (major, minor) => match majors.get(&major).copied() {
            Some("nvidia-uvm") if minor == 1 => Some(Node::Other("nvidia-uvm-tools")),
            other => other.map(Node::Other),
        },
    }
}

fn holder(at: &Path, pid: i32, comm: String, nodes: BTreeMap<Node, u32>) -> Holder {
    let status = fs::read_to_string(at.join("status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    let inner = field("NSpid:").and_then(|v| v.split_whitespace().last()).and_then(|v| v.parse().ok());
    let cgroup = fs::read_to_string(at.join("cgroup")).unwrap_or_default();
    Holder {
        pid,
        inner_pid: inner.filter(|i| *i != pid),
        comm,
        uid: field("Uid:").and_then(|v| v.split_whitespace().next()).and_then(|v| v.parse().ok()),
        state: field("State:").and_then(|v| v.chars().next()),
        cgroup: cgroup.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned),
        nodes,
    }
}

/// Tasks of the process in state D, or running inside the driver.
fn stuck(at: &Path, pid: i32) -> Vec<Stuck> {
    let tasks = fs::read_dir(at.join("task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let tid = task.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            // "pid (comm) S ...": a comm may hold spaces and parentheses, so the last one counts.
            let (head, rest) = stat.rsplit_once(')')?;
            let state = rest.trim_start().chars().next().filter(|s| matches!(s, 'D' | 'R'))?;
            let comm = head.split_once('(').map_or("", |(_, c)| c).to_owned();
            let stack = stack(&task.path());
            let in_driver = stack.as_ref().is_some_and(|s| s.iter().any(|f| f.contains("[nvidia")));
            let unknown = stack.is_none() && state == 'D';
            (in_driver || unknown).then_some(Stuck { pid, tid, comm, state, stack })
        })
        .collect()
}

fn stack(task: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(task.join("stack")).ok()?;
    // "[<0>] uvm_spin_loop+0x1c/0x60 [nvidia_uvm]"
    Some(text.lines().map(|l| l.split_once("] ").map_or(l, |(_, f)| f).trim().to_owned()).collect())
}

fn trimmed(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_known_by_number() {
        let majors = BTreeMap::from([(510, "nvidia-uvm"), (511, "nvidia-nvswitch")]);
        let name = |major, minor| node(major, minor, &majors).map(|n| n.to_string());
        assert_eq!(name(195, 0).as_deref(), Some("nvidia0"));
        assert_eq!(name(195, 255).as_deref(), Some("nvidiactl"));
        assert_eq!(name(510, 0).as_deref(), Some("nvidia-uvm"));
        assert_eq!(name(510, 1).as_deref(), Some("nvidia-uvm-tools"));
        assert_eq!(name(511, 255).as_deref(), Some("nvidia-nvswitch"));
        assert_eq!(name(1, 3), None, "/dev/null");
    }

    #[test]
    fn a_process_is_described_and_its_tasks_in_the_driver_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = dir.path().join("proc/77");
        let task = |tid: &str, state: char, stack: Option<&str>| {
            let path = at.join("task").join(tid);
            fs::create_dir_all(&path).expect("made");
            fs::write(path.join("stat"), format!("{tid} (a) b) {state} 1 77 77 0")).expect("written");
            if let Some(stack) = stack {
                fs::write(path.join("stack"), stack).expect("written");
            }
        };
        task("77", 'D', Some("[<0>] uvm_spin_loop+0x1c/0x60 [nvidia_uvm]\n[<0>] do_syscall_64+0x1/0x2\n"));
        task("78", 'D', Some("[<0>] io_schedule+0x1/0x2\n"));
        task("79", 'S', Some("[<0>] x [nvidia]\n"));
        task("80", 'D', None);
        fs::write(
            at.join("status"),
            "Name:\tpython\nState:\tD (disk sleep)\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t77\t5\n",
        )
        .expect("written");
        fs::write(at.join("cgroup"), "0::/kubepods/pod1\n").expect("written");
        let mut found = stuck(&at, 77);
        found.sort_by_key(|s| s.tid);
        assert_eq!(found.iter().map(|s| s.tid).collect::<Vec<_>>(), [77, 80]);
        assert_eq!(found[0].comm, "a) b");
        assert_eq!(found[0].stack.as_ref().expect("readable")[0], "uvm_spin_loop+0x1c/0x60 [nvidia_uvm]");
        assert_eq!(found[1].stack, None, "not readable: may be stuck, cannot tell");
        let holder = holder(&at, 77, "python".into(), BTreeMap::new());
        assert_eq!((holder.inner_pid, holder.uid, holder.state), (Some(5), Some(1000), Some('D')));
        assert_eq!(holder.cgroup.as_deref(), Some("/kubepods/pod1"));
    }

    #[test]
    fn our_own_open_device_is_found_by_its_number() {
        // /dev/null stands for a GPU: number 1:3 under a table that calls major 1 a driver's.
        let _file = fs::File::open("/dev/null").expect("/dev/null");
        let majors = BTreeMap::from([(1, "nvidia-caps")]);
        let found = nodes(Path::new("/proc/self"), &majors).expect("our own");
        assert!(found.contains_key(&Node::Other("nvidia-caps")), "{found:?}");
    }
}
