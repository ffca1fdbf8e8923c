//! Debian packages for the lab: kernels, QEMU and busybox, through apt with a sources file of our own. Nothing is
//! installed; packages are verified by apt against Debian's signatures and unpacked into the cache.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// Package lists older than this are fetched again before a look-up.
const LISTS_AGE: Duration = Duration::from_secs(24 * 3600);

/// apt with its own sources, lists and archives under one folder.
pub(super) struct Apt {
    root: PathBuf,
    /// Codename of this machine's release: `bookworm`.
    codename: String,
}

/// One version of a package in the lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    /// `6.12.95-1~bpo12+1`.
    pub(super) version: String,
    /// Names it depends on, without version bounds; of alternatives the first.
    pub(super) depends: Vec<String>,
}

impl Apt {
    /// Opens the folder and makes sure that lists are there and not older than a day.
    pub(super) fn open(cache: &Path) -> Result<Apt> {
        let codename = codename()?;
        let apt = Apt { root: cache.join("apt"), codename };
        fs::create_dir_all(apt.root.join("lists/partial"))?;
        fs::create_dir_all(apt.root.join("archives/partial"))?;
        let sources = apt.root.join("sources.list");
        let text = apt.sources()?;
        let stamp = apt.root.join("updated");
        let fresh = fs::read_to_string(&sources).is_ok_and(|old| old == text)
            && age(&stamp).is_some_and(|a| a < LISTS_AGE);
        if !fresh {
            fs::write(&sources, text)?;
            eprintln!("xtask: reading Debian's package lists into {}", apt.root.display());
            run(apt.command("apt-get").args(["-qq", "update"]))?;
            fs::write(&stamp, "")?;
        }
        Ok(apt)
    }

    /// The newest version of `package` in `suite`, or an error that says that there is none.
    pub(super) fn show(&self, package: &str, suite: &str) -> Result<Package> {
        let out = run(self.command("apt-cache").args(["show", &format!("{package}/{suite}")]))?;
        first_record(&out).with_context(|| format!("package {package} is not in {suite}"))
    }

    /// Names of packages that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let out = run(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(out.lines().map(str::to_owned).collect())
    }

    /// Downloads exactly these packages (`NAME`, `NAME=VERSION` or `NAME/SUITE`) and unpacks them over `into`.
    pub(super) fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        let place = tempdir(&self.root, "get")?;
        run(self.command("apt-get").args(["-qq", "download"]).args(packages).current_dir(&place))?;
        let done = unpack_all(&place, into);
        fs::remove_dir_all(&place)?;
        done
    }

    /// Downloads `package` with all that this machine lacks of its dependencies and unpacks it over `into`.
    pub(super) fn unpack_closure(&self, package: &str, into: &Path) -> Result<()> {
        let place = tempdir(&self.root, "get")?;
        fs::create_dir_all(place.join("partial"))?;
        let mut apt = self.command("apt-get");
        apt.args(["-qq", "-y", "--download-only", "--no-install-recommends", "-t", &self.newest_suite()]);
        apt.arg("-o").arg(format!("Dir::Cache::archives={}", place.display()));
        run(apt.args(["install", package]))?;
        let done = unpack_all(&place, into);
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

    /// The private sources: this release, and the two suites that the lab's kernels come from.
    fn sources(&self) -> Result<String> {
        let mirror = self.mirror()?;
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let signed =
            if Path::new(keyring).exists() { format!(" [signed-by={keyring}]") } else { String::new() };
        let mut suites = vec![self.codename.as_str(), "bookworm-backports", "trixie-backports"];
        suites.dedup();
        Ok(suites.iter().map(|suite| format!("deb{signed} {mirror} {suite} main contrib\n")).collect())
    }

    /// The mirror that this machine's own apt configuration uses for its release.
    fn mirror(&self) -> Result<String> {
        let out = run(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(RELEASE) $(COMPONENT) $(REPO_URI)",
        ]))?;
        let want = format!("{} main ", self.codename);
        out.lines()
            .find_map(|line| line.strip_prefix(&want))
            .map(|uri| uri.trim_end_matches('/').to_owned())
            .with_context(|| format!("apt's configuration names no mirror for {} main", self.codename))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let root = self.root.display();
        for option in [
            format!("Dir::Etc::sourcelist={root}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={root}/lists"),
            format!("Dir::Cache={root}"),
            // The private folders are ours alone (xtask holds its own lock), and dpkg's database is only read.
            "Debug::NoLocking=1".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }
}

/// Runs to the end and returns stdout; a failure carries stderr.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        bail!("{name} {}: {}", out.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// How long ago `path` was written. `None`: it does not exist.
pub(super) fn age(path: &Path) -> Option<Duration> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    Some(SystemTime::now().duration_since(written).unwrap_or_default())
}

/// A fresh folder under `root`.
pub(super) fn tempdir(root: &Path, what: &str) -> Result<PathBuf> {
    let place = root.join(format!("{what}.{}", std::process::id()));
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
    Ok(place)
}

fn unpack_all(from: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut found = 0;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(into))?;
            found += 1;
        }
    }
    ensure!(found > 0, "apt downloaded no package into {}", from.display());
    Ok(())
}

/// Codename of the release that this machine runs. Only Debian is served: its kernels and its QEMU are what the lab boots.
fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let field = |key: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix('='))
            .map(|v| v.trim_matches('"').to_owned())
    };
    let id = field("ID").unwrap_or_default();
    if id != "debian" {
        bail!(
            "the lab takes its kernels, busybox and QEMU from Debian's packages and this is {id:?}: run it in a Debian \
             container, or put qemu-system-x86_64 (7.2 or newer) on PATH and unpack linux-image and busybox-static yourself"
        );
    }
    field("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")
}

/// The first record of `apt-cache show`.
fn first_record(text: &str) -> Option<Package> {
    let record = text.split("\n\n").next()?;
    let field = |key: &str| record.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(": "));
    let depends = field("Depends").unwrap_or_default();
    let name = |one: &str| one.split('|').next().and_then(|n| n.split_whitespace().next()).map(str::to_owned);
    Some(Package {
        version: field("Version")?.to_owned(),
        depends: depends.split(',').filter_map(name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_lose_their_bounds_and_all_but_the_first_alternative() {
        let text = "Package: linux-image-amd64\nVersion: 7.3.4-1~bpo13+1\nDepends: linux-base-amd64 (= 7.3.4-1~bpo13+1), dracut | initramfs-tools (>= 0.120)\n\nPackage: other\nVersion: 1\n";
        let got = first_record(text).unwrap();
        assert_eq!(got.version, "7.3.4-1~bpo13+1");
        assert_eq!(got.depends, ["linux-base-amd64", "dracut"]);
        assert_eq!(first_record(""), None);
    }
}
