//! What this kernel allows: the facts that decide which probes can work. Each is looked at, not inferred from a
//! version number, and each answer is yes, no or could not tell. No privilege is needed to ask.

use crate::sys::lockdown;
use serde::Serialize;
use std::{fs, io, path::Path};

/// One of three answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Answer {
    /// It is there; how, in words.
    Yes {
        /// What was found.
        detail: String,
    },
    /// It is not.
    No {
        /// Why.
        reason: String,
        /// What to do.
        remedy: Option<String>,
    },
    /// It could not be found out.
    CannotTell {
        /// What went wrong.
        error: String,
        /// What to do to find out.
        remedy: Option<String>,
    },
}

impl Answer {
    fn yes(detail: impl Into<String>) -> Self {
        Answer::Yes { detail: detail.into() }
    }

    fn no(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Answer::No { reason: reason.into(), remedy: Some(remedy.into()) }
    }

    fn cannot_tell(error: impl Into<String>, remedy: Option<&str>) -> Self {
        Answer::CannotTell { error: error.into(), remedy: remedy.map(str::to_owned) }
    }

    /// Whether it is a yes.
    pub fn is_yes(&self) -> bool {
        matches!(self, Answer::Yes { .. })
    }
}

/// A named answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// Stable name: `btf`, `lockdown`.
    pub name: &'static str,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
}

/// All facts of the kernel below `root` (`/` on a live host), seen by this process.
pub fn facts(root: &Path) -> Vec<Fact> {
    let fact = |name, answer| Fact { name, answer };
    vec![
        fact("btf", btf(root)),
        fact("lockdown", lockdown(root)),
        fact("capabilities", capabilities(root)),
        fact("tracefs", tracefs(root)),
        fact("securityfs", securityfs(root)),
        fact("perf_event_paranoid", perf_event_paranoid(root)),
        fact("cgroup", cgroup(root)),
    ]
}

/// Types of the running kernel, from which field offsets are read.
pub fn btf(root: &Path) -> Answer {
    /// linux/btf.h: BTF_MAGIC.
    const MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();
    let path = root.join("sys/kernel/btf/vmlinux");
    let mut magic = [0u8; 2];
    let read = fs::File::open(&path).and_then(|mut f| io::Read::read_exact(&mut f, &mut magic));
    match read {
        Ok(()) if magic == MAGIC => Answer::yes("/sys/kernel/btf/vmlinux"),
        Ok(()) => Answer::cannot_tell("/sys/kernel/btf/vmlinux does not begin like BTF", None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Answer::no(
            "this kernel was built without CONFIG_DEBUG_INFO_BTF, or /sys is not mounted",
            "nothing: trace points are read by their format files instead",
        ),
        Err(e) => Answer::cannot_tell(format!("/sys/kernel/btf/vmlinux: {e}"), None),
    }
}

/// Whether the kernel's lockdown leaves probes alone. In mainline (linux/security.h, `enum lockdown_reason`) kprobes and
/// reading kernel memory are refused from `confidentiality` on; a distribution may differ, so probes are tried.
pub fn lockdown(root: &Path) -> Answer {
    match lockdown_level(root) {
        Ok(None) => Answer::yes("none"),
        Ok(Some(level)) if level == "integrity" => {
            Answer::yes("integrity: it refuses changing the kernel, not reading it")
        }
        Ok(Some(level)) => Answer::no(
            format!(
                "lockdown={level}: it refuses kprobes and reading kernel memory, which all but the block probes need"
            ),
            "boot without lockdown (usually: Secure Boot off). Your decision",
        ),
        Err(answer) => answer,
    }
}

/// `integrity`, `confidentiality`, or `None`: not locked down.
///
/// # Errors
/// The answer to give when it cannot be read.
pub fn lockdown_level(root: &Path) -> Result<Option<String>, Answer> {
    let text = match lockdown::text(root) {
        Ok(text) => text,
        // The file is missing although its file system is there: the kernel has no lockdown.
        Err(e) if e.kind() == io::ErrorKind::NotFound && securityfs(root).is_yes() => return Ok(None),
        Err(e) => {
            let asked = cmdline_value(root, "lockdown=")
                .map(|v| format!("; the kernel command line asks for lockdown={v}"))
                .unwrap_or_default();
            let why = if e.kind() == io::ErrorKind::NotFound {
                "/sys/kernel/security is empty: securityfs is not mounted here".to_owned()
            } else {
                format!("/sys/kernel/security/lockdown: {e}")
            };
            return Err(Answer::cannot_tell(
                format!("{why}{asked}"),
                Some("mount -t securityfs securityfs /sys/kernel/security (containers hide it)"),
            ));
        }
    };
    match lockdown::level(&text) {
        Some("none") => Ok(None),
        Some(level @ ("integrity" | "confidentiality")) => Ok(Some(level.to_owned())),
        _ => Err(Answer::cannot_tell(
            format!(
                "/sys/kernel/security/lockdown reads {:?}",
                text.trim().chars().take(60).collect::<String>()
            ),
            None,
        )),
    }
}

/// A capability that GLake can use, and what is lost without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// `CAP_BPF`.
    pub name: &'static str,
    /// Its bit (linux/capability.h).
    pub bit: u8,
    /// What is lost without it.
    pub without: &'static str,
}

/// Those that all probes need, in the order in which they are named.
pub const NEEDED: [Capability; 4] = [
    Capability { name: "CAP_BPF", bit: 39, without: "no probe can be loaded" },
    Capability { name: "CAP_PERFMON", bit: 38, without: "no probe can read kernel memory or be attached" },
    Capability { name: "CAP_DAC_READ_SEARCH", bit: 2, without: "tracefs (mode 0700) cannot be read" },
    Capability {
        name: "CAP_SYSLOG",
        bit: 34,
        without: "the kernel log and its Xid process names cannot be read",
    },
];

/// CAP_SYS_ADMIN stands for CAP_BPF, CAP_PERFMON and CAP_SYSLOG (kernel: bpf_capable, perfmon_capable, do_syslog).
const SYS_ADMIN: u8 = 21;

/// Whether this process may do what the probes need.
pub fn capabilities(root: &Path) -> Answer {
    let missing = match missing_capabilities(root) {
        Ok(missing) => missing,
        Err(error) => return Answer::cannot_tell(error, None),
    };
    if missing.is_empty() {
        return match in_user_namespace(root) {
            Some(true) => Answer::no(
                "all are there, but only within a user namespace, where eBPF does not count them",
                "run it in the host's user namespace",
            ),
            _ => Answer::yes(NEEDED.map(|c| c.name).join(", ")),
        };
    }
    let reason: Vec<String> = missing.iter().map(|c| format!("no {}: {}", c.name, c.without)).collect();
    let names: Vec<&str> = missing.iter().map(|c| c.name).collect();
    Answer::no(reason.join("; "), format!("run it with sudo, or give it {}", names.join(", ")))
}

/// Those of [`NEEDED`] that this process lacks.
///
/// # Errors
/// A sentence, when /proc cannot be read.
pub fn missing_capabilities(root: &Path) -> Result<Vec<Capability>, String> {
    let text =
        fs::read_to_string(root.join("proc/self/status")).map_err(|e| format!("/proc/self/status: {e}"))?;
    let field = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = field
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .ok_or("/proc/self/status has no readable CapEff line")?;
    let has = |bit: u8| effective & (1 << bit) != 0;
    let stands_in =
        |c: &Capability| has(SYS_ADMIN) && matches!(c.name, "CAP_BPF" | "CAP_PERFMON" | "CAP_SYSLOG");
    Ok(NEEDED.into_iter().filter(|c| !(has(c.bit) || stands_in(c))).collect())
}

/// Whether this process is in a user namespace of its own; `None`: could not tell.
pub fn in_user_namespace(root: &Path) -> Option<bool> {
    let map = fs::read_to_string(root.join("proc/self/uid_map")).ok()?;
    // The initial namespace maps all of 2^32 - 1 ids onto themselves.
    Some(map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"])
}

/// The trace points' own description.
pub fn tracefs(root: &Path) -> Answer {
    let mut last = None;
    for place in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
        match fs::read_dir(root.join(place).join("events")) {
            Ok(_) => return Answer::yes(format!("/{place}")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => last = Some((place, e)),
        }
    }
    match last {
        None => Answer::no(
            "tracefs is not mounted",
            "mount -t tracefs tracefs /sys/kernel/tracing (in a container: mount the host's)",
        ),
        Some((place, e)) if e.kind() == io::ErrorKind::PermissionDenied => Answer::no(
            format!("/{place} is closed to this user (mode 0700)"),
            "run it with sudo, or give it CAP_DAC_READ_SEARCH",
        ),
        Some((place, e)) => Answer::cannot_tell(format!("/{place}/events: {e}"), None),
    }
}

/// Where the kernel tells of lockdown and LSMs.
pub fn securityfs(root: &Path) -> Answer {
    match fs::read_dir(root.join("sys/kernel/security")).map(|mut d| d.next().is_some()) {
        Ok(true) => Answer::yes("/sys/kernel/security"),
        Ok(false) => Answer::no(
            "securityfs is not mounted (containers hide it)",
            "mount -t securityfs securityfs /sys/kernel/security; without it lockdown cannot be told",
        ),
        Err(e) => Answer::cannot_tell(format!("/sys/kernel/security: {e}"), None),
    }
}

/// Whether perf_event_open is open to us. GLake prefers raw trace points and links, which do not pass there.
pub fn perf_event_paranoid(root: &Path) -> Answer {
    let path = root.join("proc/sys/kernel/perf_event_paranoid");
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) => return Answer::cannot_tell(format!("/proc/sys/kernel/perf_event_paranoid: {e}"), None),
    };
    match text.trim().parse::<i32>() {
        // Mainline's scale ends at 2 and lets CAP_PERFMON pass; 3 and 4 are Debian's and Ubuntu's, and refuse it too.
        Ok(level @ ..=2) => Answer::yes(format!("{level}: open to CAP_PERFMON")),
        Ok(level) if admin(root) => Answer::yes(format!("{level}: closed, but not to CAP_SYS_ADMIN")),
        Ok(level) => Answer::no(
            format!("{level}: refuses perf_event_open even to CAP_PERFMON (a distribution's patch)"),
            "sysctl kernel.perf_event_paranoid=2; raw trace points work all the same",
        ),
        Err(_) => Answer::cannot_tell(format!("perf_event_paranoid reads {:?}", text.trim()), None),
    }
}

fn admin(root: &Path) -> bool {
    let text = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let field = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    field
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|caps| caps & (1 << SYS_ADMIN) != 0)
}

/// Whether workloads can be told by their cgroup.
pub fn cgroup(root: &Path) -> Answer {
    let at = root.join("sys/fs/cgroup");
    if at.join("cgroup.controllers").exists() {
        return Answer::yes("v2");
    }
    if at.join("unified/cgroup.procs").exists() {
        return Answer::no(
            "cgroup v1 with an empty v2 tree beside it: buffered writes cannot be booked to a workload",
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    match fs::read_dir(&at).map(|mut d| d.next().is_some()) {
        Ok(true) => Answer::no(
            "cgroup v1: workloads cannot be told by their cgroup",
            "boot with systemd.unified_cgroup_hierarchy=1",
        ),
        Ok(false) => {
            Answer::no("no cgroup file system is mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
        }
        Err(e) => Answer::cannot_tell(format!("/sys/fs/cgroup: {e}"), None),
    }
}

/// What surrounds this process and limits what it can see, one sentence each; empty on a plain host.
pub fn surroundings(root: &Path) -> Vec<String> {
    let exists = |path: &str| root.join(path).exists();
    let mut found = Vec::new();
    let version = fs::read_to_string(root.join("proc/version")).unwrap_or_default().to_lowercase();
    if version.contains("microsoft") || exists("dev/dxg") {
        found.push(
            "WSL2: the GPU is a Windows device (/dev/dxg), so Xid, UVM and PCIe errors are not visible here; block and \
             io_uring are"
                .to_owned(),
        );
    }
    let container = exists(".dockerenv") || exists("run/.containerenv");
    // A container that shares the host's pid namespace sees all there is to see.
    match pid_namespace(root) {
        Some(true) => found.push(
            "in a pid namespace of its own: names of processes outside are unknown -> run it with --pid=host \
             (Kubernetes: hostPID)"
                .to_owned(),
        ),
        None if container => found.push(
            "in a container whose pid namespace cannot be told: names of processes outside may be unknown"
                .to_owned(),
        ),
        Some(false) | None => {}
    }
    if in_user_namespace(root) == Some(true) {
        found.push("in a user namespace: capabilities do not reach the kernel's eBPF".to_owned());
    }
    found
}

/// Whether this process is in a pid namespace of its own; `None`: could not tell.
fn pid_namespace(root: &Path) -> Option<bool> {
    let link = fs::read_link(root.join("proc/self/ns/pid")).ok()?;
    // linux/proc_ns.h: PROC_PID_INIT_INO.
    Some(link.to_str()? != "pid:[4026531836]")
}

/// Value of a `key=` word on the kernel's command line.
pub fn cmdline_value(root: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/cmdline")).ok()?;
    text.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned)
}

#[cfg(test)]
mod tests;
