//! Debian packages as files: kernels, QEMU, the source of Rust's core library, Prometheus.
//!
//! apt fetches and verifies them (the suite's signature, then each file's hash) with a configuration of its own that
//! lies in the cache: the machine's sources, lists and hooks are neither used nor changed. Only the mirror and how to
//! reach it are taken from the machine. Nothing is installed: packages are unpacked where the caller wants them.
mod config;
mod package;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
pub use package::Package;

use super::lock;
use crate::{cmd, files, say};

/// Package lists older than this are fetched again before a look-up.
const LISTS_AGE: Duration = Duration::from_secs(24 * 3600);

/// apt with its own sources, lists and archives under one folder of the cache, which is locked meanwhile.
#[derive(Debug)]
pub struct Apt {
    root: PathBuf,
    /// Codename of this machine's release: `bookworm`.
    codename: String,
    _lock: Arc<File>,
}

impl Apt {
    /// Opens the folder and makes sure that lists are there and not older than a day. When the mirror fails, older
    /// lists serve.
    pub fn open(cache: &Path) -> Result<Self> {
        let lock = lock::take(cache)?;
        let codename = config::codename()?;
        let apt = Self { root: cache.join("apt"), codename, _lock: lock };
        let changed = config::write(&apt.root, &apt.codename)?;
        let stamp = apt.root.join("updated");
        if changed || files::age(&stamp).is_none_or(|age| age > LISTS_AGE) {
            say::step("apt", &format!("reading Debian's package lists into {}", apt.root.display()));
            // Without this mode a list that cannot be fetched is a warning.
            match cmd::output(apt.command("apt-get").args(["-o", "APT::Update::Error-Mode=any", "update"])) {
                Ok(_) => fs::write(&stamp, "")?,
                Err(e) if stamp.exists() && !changed => {
                    say::step("apt", &format!("{e:#}; going on with the lists that are there"));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(apt)
    }

    /// The newest version of `package` in `suite`.
    pub fn show(&self, package: &str, suite: &str) -> Result<Package> {
        let out = cmd::output(self.command("apt-cache").args(["show", &format!("{package}/{suite}")]))?;
        Package::first_in(&out).with_context(|| format!("package {package} is not in {suite}"))
    }

    /// The newest Debian version of upstream's `release` of `package`: `1.95.0+dfsg1-2~bpo13+1` of 1.95.0.
    pub fn version_of(&self, package: &str, release: &str) -> Result<String> {
        let table = cmd::output(self.command("apt-cache").args(["madison", package]))?;
        let version = package::versions(&table).find(|v| package::is_release(v, release));
        version.map(str::to_owned).with_context(|| format!("Debian has no {package} {release}"))
    }

    /// Names of packages that begin with `prefix`.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let out = cmd::output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(out.lines().map(str::to_owned).collect())
    }

    /// Downloads exactly these packages (`NAME`, `NAME=VERSION` or `NAME/SUITE`) and unpacks them over `into`; of
    /// each only the paths `only`, as they stand in the package (`./usr/...`), or all of it if there are none.
    pub fn unpack(&self, packages: &[String], only: &[&str], into: &Path) -> Result<()> {
        say::step("apt", &format!("downloading {}", packages.join(", ")));
        let place = files::fresh_folder(&self.root, "get")?;
        cmd::output(self.command("apt-get").arg("download").args(packages).current_dir(&place))?;
        let done = unpack_all(&place, only, into);
        fs::remove_dir_all(&place)?;
        done
    }

    /// Downloads `package` with all that this machine lacks of its dependencies and unpacks it over `into`.
    pub fn unpack_closure(&self, package: &str, into: &Path) -> Result<()> {
        say::step("apt", &format!("downloading {package} and what it needs"));
        let place = files::fresh_folder(&self.root, "get")?;
        fs::create_dir_all(place.join("partial"))?;
        let mut apt = self.command("apt-get");
        apt.args(["-y", "--download-only", "--no-install-recommends", "-t", &self.newest_suite()]);
        apt.arg("-o").arg(format!("Dir::Cache::archives={}", place.display()));
        cmd::output(apt.args(["install", package]))?;
        let done = unpack_all(&place, &[], into);
        fs::remove_dir_all(&place)?;
        done
    }

    /// The backports of this release where we list them, else the release.
    fn newest_suite(&self) -> String {
        match self.codename.as_str() {
            "bookworm" | "trixie" => format!("{}-backports", self.codename),
            other => other.to_owned(),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.root.join("apt.conf")).env("LC_ALL", "C");
        command
    }
}

fn unpack_all(from: &Path, only: &[&str], into: &Path) -> Result<()> {
    let debs: Vec<PathBuf> = fs::read_dir(from)?.filter_map(|e| Some(e.ok()?.path())).collect();
    let debs = debs.iter().filter(|p| p.extension().is_some_and(|e| e == "deb"));
    let mut found = 0;
    for deb in debs {
        unpack(deb, only, into)?;
        found += 1;
    }
    ensure!(found > 0, "apt downloaded no package into {}", from.display());
    Ok(())
}

fn unpack(deb: &Path, only: &[&str], into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut read = Command::new("dpkg-deb");
    read.arg("--fsys-tarfile").arg(deb).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut reader = read.spawn().context("dpkg-deb")?;
    let pipe = reader.stdout.take().context("dpkg-deb has no stdout")?;
    let mut write = Command::new("tar");
    let written = write.args(["-x", "--no-same-owner", "-C"]).arg(into).args(only).stdin(pipe).output();
    let read = reader.wait()?;
    let written = written.context("tar")?;
    if !written.status.success() || !read.success() {
        let said = String::from_utf8_lossy(&written.stderr);
        bail!("unpacking {} into {}: {}", deb.display(), into.display(), said.trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_paths_asked_for_are_unpacked_and_a_broken_package_is_an_error() {
        if cmd::on_path("dpkg-deb").is_none() {
            eprintln!("skipped: no dpkg-deb on this machine");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("package");
        for file in ["DEBIAN/control", "usr/wanted/a", "usr/other/b"] {
            let text = "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n";
            fs::create_dir_all(package.join(file).parent().unwrap()).unwrap();
            fs::write(package.join(file), text).unwrap();
        }
        let deb = dir.path().join("p.deb");
        cmd::output(Command::new("dpkg-deb").arg("--build").arg(&package).arg(&deb)).unwrap();
        let into = dir.path().join("into");
        unpack_all(dir.path(), &["./usr/wanted"], &into).unwrap();
        assert!(into.join("usr/wanted/a").is_file() && !into.join("usr/other").exists());
        fs::write(&deb, "broken").unwrap();
        assert!(unpack_all(dir.path(), &[], &into).is_err());
    }

    #[test]
    fn a_download_that_brought_nothing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(unpack_all(dir.path(), &[], &dir.path().join("into")).is_err());
    }
}
