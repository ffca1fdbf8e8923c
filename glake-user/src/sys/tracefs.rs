//! Trace points as tracefs describes them: which exist, and where their fields are.

use crate::error::{Error, Kind, Result};
use std::path::{Path, PathBuf};

/// One field of a trace point's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name, without an array's length.
    pub name: String,
    /// Its C type as the kernel prints it; `__data_loc` first where the bytes are elsewhere in the record.
    pub ctype: String,
    /// Offset in the record in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Whether it is signed.
    pub signed: bool,
}

/// A mounted tracefs.
#[derive(Debug, Clone)]
pub struct Tracefs {
    dir: PathBuf,
}

impl Tracefs {
    /// Finds tracefs below `root`: `sys/kernel/tracing`, else `sys/kernel/debug/tracing`.
    ///
    /// # Errors
    /// `Denied` when it is there and closed to this process (it is 0700, root's); `Missing` when it is not mounted.
    pub fn find(root: &Path) -> Result<Tracefs> {
        for dir in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
            let dir = root.join(dir);
            match std::fs::read_dir(dir.join("events")) {
                Ok(_) => return Ok(Tracefs { dir }),
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Err(Error::os(format!("reading {}", dir.display()), e)
                        .remedy("run as root or with CAP_DAC_READ_SEARCH: tracefs is closed to others"));
                }
                Err(_) => {}
            }
        }
        Err(Error::new(
            Kind::Missing,
            "looking for tracefs: it is mounted at neither /sys/kernel/tracing nor /sys/kernel/debug/tracing",
        )
        .remedy("mount -t tracefs tracefs /sys/kernel/tracing (in a container: mount the host's)"))
    }

    /// Whether a trace point exists now; a module's appears with the module.
    pub fn has(&self, category: &str, event: &str) -> bool {
        self.dir.join("events").join(category).join(event).is_dir()
    }

    /// The fields of a trace point.
    ///
    /// # Errors
    /// `Missing` when this kernel has no such trace point; `BadInput` when its description cannot be understood.
    pub fn format(&self, category: &str, event: &str) -> Result<Vec<Field>> {
        let path = self.dir.join("events").join(category).join(event).join("format");
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Error::os(format!("reading {}", path.display()), e))?;
        let fields = parse_format(&text);
        if fields.is_empty() {
            return Err(Error::new(
                Kind::BadInput,
                format!("reading {}: it describes no field", path.display()),
            ));
        }
        Ok(fields)
    }
}

/// Where the kernel keeps an empty folder for it.
const PLACE: &str = "/sys/kernel/tracing";

/// Mounts tracefs where it is missing, for this process and its children only: in a mount namespace of their own, so
/// that nobody else on the host sees a change. Gives whether it did; `false` where tracefs is there already. Needs
/// CAP_SYS_ADMIN, and one thread, since the others would stay where they are.
///
/// # Errors
/// When the kernel refuses a step. Nothing outside of this process has changed then either.
pub fn mount_for_this_process() -> Result<bool> {
    use rustix::{
        mount::{MountFlags, MountPropagationFlags, mount, mount_change},
        thread::{UnshareFlags, unshare_unsafe},
    };
    if !matches!(Tracefs::find(Path::new("/")), Err(e) if e.kind() == Kind::Missing) {
        return Ok(false);
    }
    if !super::caps::single_threaded() {
        return Err(Error::new(Kind::Misuse, "mounting tracefs for this process, which has other threads"));
    }
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: rustix::io::Errno| {
            Error::os(what, e.into()).remedy("mount -t tracefs tracefs /sys/kernel/tracing")
        }
    };
    // SAFETY: the function is unsafe for the sake of file descriptor tables, which NEWNS leaves shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed("making a mount namespace"))?;
    // What the host mounts or unmounts from now on arrives here too; nothing goes back.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(failed("keeping mounts of this process from the host"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tracefs", PLACE, "tracefs", flags, None).map_err(failed("mounting tracefs for this process"))?;
    Ok(true)
}

/// Parses a `format` file. Total: a line that cannot be understood is left out, since a missing field only costs its metric.
pub fn parse_format(text: &str) -> Vec<Field> {
    text.lines().filter_map(parse_field).collect()
}

/// `field:char rwbs[10]; offset:34; size:10; signed:0;`
fn parse_field(line: &str) -> Option<Field> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?.trim();
    let (mut offset, mut size, mut signed) = (None, None, false);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", v)) => offset = v.trim().parse().ok(),
            Some(("size", v)) => size = v.trim().parse().ok(),
            Some(("signed", v)) => signed = v.trim() == "1",
            _ => {}
        }
    }
    let start = declaration.rfind([' ', '*'])? + 1;
    let (ctype, name) = declaration.split_at(start);
    let name = name.split('[').next()?;
    if name.is_empty() {
        return None;
    }
    Some(Field {
        name: name.to_owned(),
        ctype: ctype.trim().to_owned(),
        offset: offset?,
        size: size?,
        signed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMPLETE: &str = "name: block_rq_complete\nID: 1\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:int error;\toffset:28;\tsize:4;\tsigned:1;\n\
        \tfield:char rwbs[10];\toffset:34;\tsize:10;\tsigned:0;\n\
        \tfield:__data_loc char[] cmd;\toffset:44;\tsize:4;\tsigned:0;\n\
        \tfield:void * ctx;\toffset:48;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"%d,%d field:x;\", REC->rwbs\n";

    #[test]
    fn fields_are_read_as_the_kernel_prints_them() {
        let fields = parse_format(COMPLETE);
        let get = |name: &str| fields.iter().find(|f| f.name == name).unwrap();
        assert_eq!(fields.len(), 6);
        assert_eq!((get("dev").offset, get("dev").size), (8, 4));
        assert!(get("error").signed);
        assert_eq!((get("rwbs").ctype.as_str(), get("rwbs").size), ("char", 10));
        assert_eq!(get("cmd").ctype, "__data_loc char[]");
        assert_eq!(get("ctx").ctype, "void *");
    }

    #[test]
    fn a_host_without_tracefs_is_told_how_to_mount_it() {
        let empty = tempfile::tempdir().unwrap();
        let error = Tracefs::find(empty.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.remedy_text().unwrap().contains("mount -t tracefs"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in "\\PC*") { parse_format(&text); }

        #[test]
        fn a_damaged_format_costs_at_most_its_damaged_lines(at in 0usize..400, byte in 0x20u8..0x7f) {
            let mut bytes = COMPLETE.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            prop_assert!(parse_format(&String::from_utf8(bytes).unwrap()).len() >= 4);
        }
    }
}
