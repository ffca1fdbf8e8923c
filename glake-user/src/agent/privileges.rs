//! What the agent keeps of its privileges once its probes are attached, and what is lost without each of them.
//! `docs/permissions.md` is this table.

use crate::{
    error::{Error, Kind, Result},
    sys::caps::{self, CapabilitySet, Identity},
};
use std::path::Path;

/// One capability of the agent.
#[derive(Debug)]
pub struct Need {
    /// Its name.
    pub name: &'static str,
    /// Its bit.
    pub bit: CapabilitySet,
    /// Whether it is kept once the probes are attached.
    pub kept: bool,
    /// What it is for.
    pub why: &'static str,
    /// What is lost without it.
    pub lost: &'static str,
}

/// Every capability that the agent uses.
pub static NEEDS: &[Need] = &[
    Need {
        name: "CAP_BPF",
        bit: CapabilitySet::BPF,
        kept: true,
        why: "loads the eBPF programs and makes their maps",
        lost: "at start: every eBPF probe. Later: a probe cannot be attached again (an NVMe driver that is loaded late); \
               counting goes on",
    },
    Need {
        name: "CAP_PERFMON",
        bit: CapabilitySet::PERFMON,
        kept: true,
        why: "lets eBPF programs read kernel memory and attach to trace points",
        lost: "at start: every eBPF probe. Later: as CAP_BPF",
    },
    Need {
        name: "CAP_DAC_READ_SEARCH",
        bit: CapabilitySet::DAC_READ_SEARCH,
        kept: true,
        why: "reads tracefs (mode 0700), /var/log/containers and TLS keys as another user than root",
        lost: "field offsets of classic trace points, names of pods, a reload of TLS keys that only root may read",
    },
    Need {
        name: "CAP_SYSLOG",
        bit: CapabilitySet::SYSLOG,
        kept: true,
        why: "reads the kernel log and kernel addresses in /proc/kallsyms",
        lost: "what only the kernel log tells: the process of an Xid, Xids themselves where neither their trace point nor a kprobe can be had, the address of an Intel IOMMU fault",
    },
    Need {
        name: "CAP_SYS_ADMIN",
        bit: CapabilitySet::SYS_ADMIN,
        kept: false,
        why: "switches on the kernel's clock for eBPF programs (bpf_enable_stats), and mounts tracefs for this process alone where the host has none, and looks up the types of nvidia_uvm for fentry; dropped right after",
        lost: "what each probe costs is unknown, and the watchdog that detaches a costly one is off; classic trace points, where tracefs is not mounted; fentry on nvidia_uvm",
    },
    Need {
        name: "CAP_SETUID, CAP_SETGID, CAP_SETPCAP",
        bit: CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::SETPCAP),
        kept: false,
        why: "becomes privileges.user and shrinks the bounding set; dropped right after",
        lost: "privileges.user is refused at start, with a sentence",
    },
];

/// What is kept of the capabilities.
pub fn kept(seal: bool) -> CapabilitySet {
    let kept = NEEDS.iter().filter(|need| need.kept && !seal);
    kept.fold(CapabilitySet::empty(), |set, need| set | need.bit)
}

/// Drops everything that a running agent does not need. What it says about it is the answer.
///
/// # Errors
/// When the user is unknown or the kernel refuses.
pub fn drop_privileges(user: Option<&str>, seal: bool) -> Result<String> {
    let identity = user.map(|user| identity(user, Path::new("/etc/passwd"))).transpose()?;
    caps::drop_to(kept(seal), identity)?;
    let held = caps::held()?;
    let names: Vec<&str> = NEEDS.iter().filter(|n| n.kept && held.contains(n.bit)).map(|n| n.name).collect();
    let who = identity.map_or_else(String::new, |id| format!("uid {} gid {}, ", id.uid, id.gid));
    Ok(match (seal, names.is_empty()) {
        (true, _) => format!(
            "sealed: {who}no capability is left. Counting goes on; refused from now on: attaching a probe again, new maps, \
             the kernel log, a reload of files that only root may read"
        ),
        (false, true) => format!("{who}no capability is held; counting goes on"),
        (false, false) => format!("{who}capabilities kept: {}", names.join(", ")),
    })
}

/// `name`, `uid` or `uid:gid`.
fn identity(user: &str, passwd: &Path) -> Result<Identity> {
    if let Some((uid, gid)) = user.split_once(':')
        && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
    {
        return Ok(Identity { uid, gid });
    }
    if let Ok(id) = user.parse() {
        return Ok(Identity { uid: id, gid: id });
    }
    let text =
        std::fs::read_to_string(passwd).map_err(|e| Error::os(format!("reading {}", passwd.display()), e))?;
    // passwd(5): name:password:uid:gid:comment:home:shell.
    let found = text.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == user);
    let identity = found.and_then(|fields| {
        Some(Identity { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? })
    });
    identity.ok_or_else(|| {
        Error::new(
            Kind::Misuse,
            format!("privileges.user = {user:?}: there is no such user in {}", passwd.display()),
        )
        .remedy("create it (deploy/systemd/glake.sysusers.conf), or name uid:gid")
    })
}

/// `docs/permissions.md`, made from the table.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Permissions\n\nMade from the program's own table by `glake permissions-reference`; a test compares the two, and \
         one test per row takes the capability away.\n\n\
         The agent attaches its probes, then drops everything but the rows marked *kept*, becomes `privileges.user` if one \
         is set, and sets no_new_privs. `--seal` (`privileges.seal`) drops the kept ones too. It never needs \
         `privileged: true`, opens no `/dev/nvidia*` unless `nvml.enabled` is set, and makes no outbound connection.\n\n\
         | capability | why | kept | what is lost without it |\n|---|---|---|---|\n",
    );
    for need in NEEDS {
        let kept = if need.kept { "kept" } else { "only at start" };
        page.push_str(&format!("| {} | {} | {kept} | {} |\n", need.name, need.why, need.lost));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_or_numbers_and_a_stranger_is_refused_with_the_remedy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "root:x:0:0::/:/bin/sh\nglake:x:995:994:GLake:/:/usr/sbin/nologin\nodd\n",
        )
        .unwrap();
        assert_eq!(identity("glake", file.path()).unwrap(), Identity { uid: 995, gid: 994 });
        assert_eq!(identity("65534", file.path()).unwrap(), Identity { uid: 65534, gid: 65534 });
        assert_eq!(identity("1:2", file.path()).unwrap(), Identity { uid: 1, gid: 2 });
        for user in ["nobody-here", "odd", "1:x", ""] {
            let error = identity(user, file.path()).unwrap_err();
            assert!(error.chain().contains("sysusers"), "{user}: {}", error.chain());
        }
    }

    #[test]
    fn sealing_keeps_nothing() {
        assert!(kept(true).is_empty());
        assert_eq!(kept(false).bits().count_ones(), 4);
    }

    #[test]
    fn the_permissions_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/permissions.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/permissions.md differs: `glake permissions-reference > docs/permissions.md`"
        );
    }
}
