//! The source of Rust's core library, which the eBPF target needs because nobody ships it compiled.
//!
//! It must lie at `lib/rustlib/src/rust` of the sysroot. Rustup puts it there as a component. Where rustup is missing
//! or cannot reach its server, Debian's `rust-src` of the very same release serves: it is unpacked into the cache, and
//! a private sysroot of links, which only the eBPF build sees, joins it to the toolchain. The toolchain stays as it is.
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{apt, rustc::Rustc};
use crate::{cmd, say};

/// Where the source may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum From {
    /// The toolchain if it has it, else rustup, else Debian
    #[default]
    Auto,
    /// The toolchain or rustup, never Debian
    Rustup,
    /// Debian's package, even if the toolchain has the source
    Debian,
}

/// The `rustc` that finds the core library's source, if there is one already.
pub fn made(cache: &Path, rustc: &Rustc, from: From) -> Option<PathBuf> {
    if from != From::Debian && complete(&rustc.sysroot) {
        return Some(rustc.rustc.clone());
    }
    let sysroot = private(cache, rustc);
    let wrapper = sysroot.join("bin/rustc");
    let whole = complete(&sysroot) && wrapper.is_file() && sysroot.join("complete").is_file();
    (from != From::Rustup && whole).then_some(wrapper)
}

/// Where the private sysroot of a compiler is.
fn private(cache: &Path, rustc: &Rustc) -> PathBuf {
    cache.join(format!("sysroot-{}-{}", rustc.version.release, short(&rustc.version.commit)))
}

/// The `rustc` that finds the core library's source: the toolchain's own, or a wrapper in the cache.
pub fn ensure(cache: &Path, rustc: &Rustc, from: From) -> Result<PathBuf> {
    if let Some(made) = made(cache, rustc, from) {
        return Ok(made);
    }
    if from != From::Debian {
        match by_rustup(rustc) {
            Ok(()) => return Ok(rustc.rustc.clone()),
            Err(e) if from == From::Rustup => return Err(e),
            Err(e) => say::step("rust-src", &format!("not by rustup ({e:#}); trying Debian's package")),
        }
    }
    by_debian(cache, rustc)
        .context("no source of Rust's core library; `rustup component add rust-src` brings it too")
}

/// Whether a sysroot has the source: cargo's `build-std` starts at this lock file.
fn complete(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/Cargo.lock").is_file()
}

fn by_rustup(rustc: &Rustc) -> Result<()> {
    let rustup = cmd::on_path("rustup").context("there is no rustup")?;
    let toolchain = rustc.sysroot.file_name().context("the sysroot has no name")?;
    if rustc.sysroot.parent().and_then(Path::file_name).is_none_or(|f| f != "toolchains") {
        bail!("{} is no toolchain of rustup's", rustc.sysroot.display());
    }
    say::outside(&format!("rustup adds its component rust-src to {}", rustc.sysroot.display()));
    let mut add = Command::new("timeout");
    add.arg("300").arg(rustup).args(["component", "add", "rust-src", "--toolchain"]).arg(toolchain);
    cmd::output(&mut add)?;
    if !complete(&rustc.sysroot) {
        bail!("rustup says that it added rust-src, but {} lacks it", rustc.sysroot.display());
    }
    Ok(())
}

fn by_debian(cache: &Path, rustc: &Rustc) -> Result<PathBuf> {
    let release = &rustc.version.release;
    let sysroot = private(cache, rustc);
    let wrapper = sysroot.join("bin/rustc");
    say::step("rust-src", &format!("Debian's package for {release} into {}", sysroot.display()));
    let apt = apt::Apt::open(cache)?;
    let version = apt.version_of("rust-src", release)?;
    let source = cache.join(format!("rust-src-{release}"));
    let library = format!("./usr/src/rustc-{release}/library");
    apt.unpack(&[format!("rust-src={version}")], &[&library], &source)?;
    link_sysroot(&rustc.sysroot, &source.join(format!("usr/src/rustc-{release}")), &sysroot)?;
    let script =
        format!("#!/bin/sh\nexec '{}' --sysroot '{}' \"$@\"\n", rustc.rustc.display(), sysroot.display());
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    fs::write(sysroot.join("complete"), "")?;
    Ok(wrapper)
}

/// Makes `to` a sysroot of links into `from`, with `source` as the source of the core library.
fn link_sysroot(from: &Path, source: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to.join("bin"))?;
    fs::create_dir_all(to.join("lib/rustlib/src"))?;
    link_entries(&from.join("lib"), &to.join("lib"), "rustlib")?;
    link_entries(&from.join("lib/rustlib"), &to.join("lib/rustlib"), "src")?;
    symlink(source, to.join("lib/rustlib/src/rust"))?;
    if !complete(to) {
        bail!("{} lacks library/Cargo.lock", source.display());
    }
    Ok(())
}

fn link_entries(from: &Path, to: &Path, but: &str) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("sysroot folder {}", from.display()))? {
        let entry = entry?;
        if entry.file_name() != but {
            symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The first digits of a commit, enough to tell compilers apart.
pub fn short(commit: &str) -> &str {
    commit.get(..9).unwrap_or(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysroot_with(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        dir
    }

    #[test]
    fn the_private_sysroot_shows_the_toolchain_and_the_foreign_source() {
        let real =
            sysroot_with(&["lib/libLLVM.so", "lib/rustlib/x86_64/libcore.rlib", "lib/rustlib/src/rust/old"]);
        let source = sysroot_with(&["library/Cargo.lock"]);
        let made = tempfile::tempdir().unwrap();
        let to = made.path().join("sysroot");
        link_sysroot(real.path(), source.path(), &to).unwrap();
        assert!(complete(&to) && !complete(real.path()));
        assert!(to.join("lib/libLLVM.so").is_file() && to.join("lib/rustlib/x86_64/libcore.rlib").is_file());
        assert!(!to.join("lib/rustlib/src/rust/old").exists());
        assert!(
            real.path().join("lib/rustlib/src/rust/old").is_file(),
            "the toolchain itself must stay as it is"
        );
    }

    #[test]
    fn a_source_without_its_lock_file_is_refused() {
        let (real, source) = (sysroot_with(&["lib/rustlib/x"]), sysroot_with(&["library/core/lib.rs"]));
        let made = tempfile::tempdir().unwrap();
        let e = link_sysroot(real.path(), source.path(), &made.path().join("s")).unwrap_err().to_string();
        assert!(e.contains("library/Cargo.lock"), "{e}");
    }

    #[test]
    fn rustup_is_not_asked_about_a_toolchain_that_is_not_its_own() {
        let elsewhere = sysroot_with(&["lib/rustlib/x"]);
        let version = crate::setup::rustc::Version {
            release: "1.95.0".into(),
            commit: "59807616e1".into(),
            host: "x86_64-unknown-linux-gnu".into(),
            llvm: 22,
        };
        let sysroot = elsewhere.path().to_path_buf();
        let rustc = Rustc { rustc: "rustc".into(), cargo: "cargo".into(), sysroot, version };
        assert!(by_rustup(&rustc).is_err());
        assert!(!complete(elsewhere.path()));
    }
}
