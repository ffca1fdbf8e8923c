//! The compiler: which one, and what it says about itself.
use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use crate::cmd;

/// The oldest release that builds GLake; `rust-version` in the root manifest says the same (a test compares them).
const OLDEST: (u32, u32) = (1, 95);

/// A Rust compiler, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rustc {
    /// The compiler of the toolchain itself, not rustup's stand-in for it.
    pub rustc: PathBuf,
    /// The cargo of the same toolchain.
    pub cargo: PathBuf,
    /// The toolchain's folder.
    pub sysroot: PathBuf,
    /// What `rustc -vV` says.
    pub version: Version,
}

/// What `rustc -vV` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// `1.95.0`, without a channel.
    pub release: String,
    /// The commit the compiler was built from.
    pub commit: String,
    /// The target triple of this machine.
    pub host: String,
    /// The major version of its LLVM.
    pub llvm: u32,
}

impl Rustc {
    /// The compiler that cargo would use here: `$RUSTC`, else `rustc` on PATH.
    ///
    /// Cargo has already refused a compiler older than `rust-version` before it built this program; asking again
    /// covers a `RUSTC` or PATH that changed since.
    pub fn find() -> Result<Self> {
        let named = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = Version::parse(&cmd::output(Command::new(&named).arg("-vV"))?)?;
        version.check()?;
        let sysroot = PathBuf::from(cmd::output(Command::new(&named).args(["--print", "sysroot"]))?.trim());
        let inside = |name: &str| Some(sysroot.join("bin").join(name)).filter(|p| p.is_file());
        let rustc = inside("rustc").unwrap_or_else(|| named.into());
        let cargo = inside("cargo")
            .or_else(|| env::var_os("CARGO").map(Into::into))
            .unwrap_or_else(|| "cargo".into());
        Ok(Self { rustc, cargo, sysroot, version })
    }
}

impl Version {
    fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
            line.with_context(|| format!("`rustc -vV` has no line `{name}`"))
        };
        let release = field("release")?;
        let llvm = field("LLVM version")?;
        Ok(Self {
            release: release.split('-').next().unwrap_or(release).to_owned(),
            commit: field("commit-hash")?.to_owned(),
            host: field("host")?.to_owned(),
            llvm: llvm
                .split('.')
                .next()
                .unwrap_or(llvm)
                .parse()
                .with_context(|| format!("LLVM version {llvm}"))?,
        })
    }

    fn check(&self) -> Result<()> {
        let mut parts = self.release.split('.').map_while(|p| p.parse::<u32>().ok());
        let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if found < OLDEST {
            bail!(
                "rustc {} is too old: GLake needs {}.{} (`rustup toolchain install stable`, or `rustup default` to one \
                 that is installed)",
                self.release,
                OLDEST.0,
                OLDEST.1
            );
        }
        Ok(())
    }

    /// `x86_64` of `x86_64-unknown-linux-gnu`.
    pub fn arch(&self) -> &str {
        self.host.split('-').next().unwrap_or(&self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\ncommit-hash: 59807616e1\n\
                        commit-date: 2026-04-14\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\nLLVM version: 22.1.2\n";

    #[test]
    fn the_version_is_read_from_what_rustc_prints() {
        let v = Version::parse(TEXT).unwrap();
        assert_eq!((v.release.as_str(), v.llvm, v.arch()), ("1.95.0", 22, "x86_64"));
        v.check().unwrap();
    }

    #[test]
    fn a_nightly_counts_by_its_number() {
        let v = Version::parse(&TEXT.replace("release: 1.95.0", "release: 1.97.0-nightly")).unwrap();
        assert_eq!(v.release, "1.97.0");
        v.check().unwrap();
    }

    #[test]
    fn an_old_compiler_is_refused_with_the_remedy() {
        let v = Version::parse(&TEXT.replace("release: 1.95.0", "release: 1.94.1")).unwrap();
        let e = v.check().unwrap_err().to_string();
        assert!(e.contains("1.94.1") && e.contains("rustup toolchain install"), "{e}");
    }

    #[test]
    fn a_missing_line_is_named() {
        let e = Version::parse("rustc 1.95.0\n").unwrap_err().to_string();
        assert!(e.contains("`release`"), "{e}");
    }

    #[test]
    fn the_manifest_asks_for_the_same_release() {
        let manifest =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("rust-version = \"{}.{}\"", OLDEST.0, OLDEST.1)));
    }
}
