//! QEMU: the one on PATH if it is new enough, else Debian's, unpacked into the cache.

use crate::{
    cmd, files,
    setup::{apt::Apt, lock},
};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "qemu-system-x86_64";
/// The first version with everything the lab's machine is made of.
const OLDEST: (u32, u32) = (7, 2);

/// A QEMU that can be started.
#[derive(Debug, Clone)]
pub(super) struct Qemu {
    program: PathBuf,
    /// Root that Debian's packages were unpacked into; `None` for an installed QEMU.
    root: Option<PathBuf>,
}

impl Qemu {
    /// Finds or fetches it.
    pub(super) fn get(cache: &Path) -> Result<Qemu> {
        let installed = Qemu { program: PathBuf::from(PROGRAM), root: None };
        if installed.version().is_ok_and(|v| v >= OLDEST) {
            return Ok(installed);
        }
        let _lock = lock::take(cache)?;
        let root = cache.join("qemu");
        let qemu = Qemu { program: root.join("usr/bin").join(PROGRAM), root: Some(root.clone()) };
        // A cache that came from another machine may lack a library that was installed there: fetch it anew.
        if qemu.version().is_ok() {
            return Ok(qemu);
        }
        eprintln!("xtask: fetching QEMU into {}", root.display());
        let place = files::fresh_folder(cache, "qemu.part")?;
        Apt::open(cache)?.unpack_closure("qemu-system-x86", &place)?;
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        fs::rename(&place, &root)?;
        let version = qemu.version().context("Debian's QEMU does not start from the cache")?;
        ensure!(version >= OLDEST, "QEMU {version:?} is too old, 7.2 is needed: install a newer one");
        Ok(qemu)
    }

    /// A command that starts it. Where util-linux's setpriv exists the kernel ends QEMU when xtask ends, however it ends.
    pub(super) fn command(&self) -> Command {
        let guarded = Command::new("setpriv").arg("--version").output().is_ok_and(|o| o.status.success());
        let mut command = if guarded {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        if let Some(root) = &self.root {
            let lib = |below: &str| {
                root.join(below).join(format!("{}-linux-gnu", std::env::consts::ARCH)).display().to_string()
            };
            command.env("LD_LIBRARY_PATH", format!("{}:{}", lib("usr/lib"), lib("lib")));
            command.env("QEMU_MODULE_DIR", format!("{}/qemu", lib("usr/lib")));
            for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
                command.arg("-L").arg(root.join(data));
            }
        }
        command
    }

    fn version(&self) -> Result<(u32, u32)> {
        let out = cmd::output(self.command().arg("--version"))?;
        parse_version(&out).with_context(|| format!("no version in {out:?}"))
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let number = text.split("version ").nth(1)?;
    let mut parts = number.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_compared_as_numbers() {
        assert_eq!(parse_version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)"), Some((10, 0)));
        assert!(parse_version("QEMU emulator version 10.0.2") > Some(OLDEST));
        assert!(parse_version("QEMU emulator version 6.9.0").unwrap() < OLDEST);
        assert_eq!(parse_version("nothing"), None);
    }
}
