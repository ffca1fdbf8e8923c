//! Debian packages as files: kernels, QEMU, the source of Rust's core library, Prometheus.
//!
//! apt fetches and verifies them (the suite's signature, then each file's hash) with a configuration of its own that
//! lies in the cache: the machine's own sources, lists and installed packages are neither used nor changed. Only the
//! mirror and how to reach it are taken from the machine. Nothing is installed: packages are unpacked where asked.
mod config;
mod index;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

pub use index::{Index, Package};

use super::lock;
use crate::{cmd, say};

/// How long a set of packages counts as the newest.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// Fetches the packages that `resolve` picks from `suites` (one or more, by spaces) and returns their files.
///
/// The files are remembered under the name `set`. A set fetched within the last day is returned as it is, and when the
/// mirror fails, the last good set serves: a newer package is worth less than a test that runs.
pub fn fetch(
    cache: &Path,
    set: &str,
    suites: &str,
    resolve: impl FnOnce(&Index) -> Result<Vec<Package>>,
) -> Result<Vec<PathBuf>> {
    let _lock = lock::take(cache)?;
    let record = cache.join("apt/sets").join(set);
    let last = Remembered::read(&record);
    if let Some(last) = &last
        && last.age < FRESH
    {
        return Ok(last.files.clone());
    }
    match fetch_new(cache, suites, resolve) {
        Ok(files) => {
            Remembered::write(&record, &files)?;
            Ok(files)
        }
        Err(e) => match last {
            Some(last) => {
                say::step("apt", &format!("{set}: {e:#}; going on with the last good files"));
                Ok(last.files)
            }
            None => Err(e.context(format!("Debian packages for {set}"))),
        },
    }
}

fn fetch_new(
    cache: &Path,
    suites: &str,
    resolve: impl FnOnce(&Index) -> Result<Vec<Package>>,
) -> Result<Vec<PathBuf>> {
    let index = Index::update(&cache.join("apt"), suites)?;
    let debs = cache.join("apt/debs");
    resolve(&index)?.iter().map(|package| download(&index, package, &debs)).collect()
}

/// Puts one package's file into `debs`, under a name that holds its version.
fn download(index: &Index, package: &Package, debs: &Path) -> Result<PathBuf> {
    let file = debs.join(package.file_name());
    if file.is_file() {
        return Ok(file);
    }
    say::step("apt", &format!("downloading {} {}", package.name, package.version));
    let partial = debs.join("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    cmd::output(index.apt("apt-get").arg("download").arg(package.to_string()).current_dir(&partial))?;
    let got = fs::read_dir(&partial)?.next().with_context(|| format!("apt downloaded no {package}"))??;
    fs::rename(got.path(), &file)?;
    Ok(file)
}

/// Unpacks the paths `only` of a package (all if empty; as they stand in the package: `./usr/...`) into `into`.
pub fn unpack(deb: &Path, into: &Path, only: &[&str]) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut read = Command::new("dpkg-deb");
    let mut reader =
        read.arg("--fsys-tarfile").arg(deb).stdout(Stdio::piped()).spawn().context("dpkg-deb")?;
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

/// The files of a set that was fetched before, all of them still there.
struct Remembered {
    files: Vec<PathBuf>,
    age: Duration,
}

impl Remembered {
    fn read(record: &Path) -> Option<Self> {
        let debs = record.parent()?.parent()?.join("debs");
        let files: Vec<_> = fs::read_to_string(record).ok()?.lines().map(|name| debs.join(name)).collect();
        let age = record.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default();
        (!files.is_empty() && files.iter().all(|f| f.is_file())).then_some(Self { files, age })
    }

    fn write(record: &Path, files: &[PathBuf]) -> Result<()> {
        let names = files.iter().filter_map(|f| f.file_name()?.to_str()).collect::<Vec<_>>().join("\n");
        fs::create_dir_all(record.parent().context("record without a folder")?)?;
        fs::write(record, names).with_context(|| format!("record {}", record.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// A cache whose set `kernel` was fetched `age` ago, and its one file.
    fn cache_with_a_set(age: Duration) -> (tempfile::TempDir, PathBuf) {
        let cache = tempfile::tempdir().unwrap();
        let deb = cache.path().join("apt/debs/linux_6.12.deb");
        fs::create_dir_all(deb.parent().unwrap()).unwrap();
        fs::write(&deb, "deb").unwrap();
        let record = cache.path().join("apt/sets/kernel");
        Remembered::write(&record, std::slice::from_ref(&deb)).unwrap();
        let then = SystemTime::now() - age;
        fs::File::options().write(true).open(record).unwrap().set_modified(then).unwrap();
        (cache, deb)
    }

    fn broken(_: &Index) -> Result<Vec<Package>> {
        bail!("the mirror is gone")
    }

    #[test]
    fn a_set_of_today_is_returned_without_asking_the_mirror() {
        let (cache, deb) = cache_with_a_set(Duration::from_secs(60));
        let files = fetch(cache.path(), "kernel", "no-such-suite", broken).unwrap();
        assert_eq!(files, [deb]);
    }

    #[test]
    fn when_the_mirror_fails_the_last_good_set_serves() {
        let (cache, deb) = cache_with_a_set(FRESH * 3);
        let files = fetch(cache.path(), "kernel", "no-such-suite", broken).unwrap();
        assert_eq!(files, [deb]);
    }

    #[test]
    fn a_set_with_a_file_missing_is_not_good() {
        let (cache, deb) = cache_with_a_set(Duration::from_secs(60));
        fs::remove_file(deb).unwrap();
        let e = fetch(cache.path(), "kernel", "no-such-suite", broken).unwrap_err();
        assert!(format!("{e:#}").contains("packages for kernel"), "{e:#}");
    }

    #[test]
    fn only_the_paths_asked_for_are_unpacked() {
        if cmd::on_path("dpkg-deb").is_none() {
            eprintln!("skipped: no dpkg-deb on this machine");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("package");
        for file in ["DEBIAN/control", "usr/wanted/a", "usr/other/b"] {
            fs::create_dir_all(package.join(file).parent().unwrap()).unwrap();
            fs::write(
                package.join(file),
                "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n",
            )
            .unwrap();
        }
        let deb = dir.path().join("p.deb");
        cmd::output(Command::new("dpkg-deb").arg("--build").arg(&package).arg(&deb)).unwrap();
        let into = dir.path().join("into");
        unpack(&deb, &into, &["./usr/wanted"]).unwrap();
        assert!(into.join("usr/wanted/a").is_file() && !into.join("usr/other").exists());
        fs::write(&deb, "broken").unwrap();
        assert!(unpack(&deb, &into, &[]).is_err(), "a broken package must not pass");
    }
}
