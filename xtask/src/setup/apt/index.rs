//! The lists of packages of some suites.
use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::config;
use crate::{cmd, say};

/// One version of one package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Package {
    /// The name of its file in our cache. (Debian writes the colon of an epoch in the same way.)
    pub(super) fn file_name(&self) -> String {
        format!("{}_{}.deb", self.name, self.version.replace(':', "%3a"))
    }
}

/// As apt's command line takes it.
impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.version)
    }
}

/// Lists of packages that apt has just fetched and verified.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
}

impl Index {
    /// Fetches the lists of `suites` into a folder of their own below `home`.
    pub(super) fn update(home: &Path, suites: &str) -> Result<Self> {
        let folder = home.join(suites.replace(' ', "+"));
        say::step("apt", &format!("reading the package lists of {suites} ({})", folder.display()));
        config::write(&folder, suites)?;
        let index = Self { folder };
        // Without `Error-Mode` a list that could not be fetched is a warning, and the old one is used.
        cmd::output(index.apt("apt-get").args(["-o", "APT::Update::Error-Mode=any", "update"]))?;
        Ok(index)
    }

    /// An apt program that sees this index and nothing of the machine's.
    pub(super) fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    /// The newest version of `name`.
    pub fn newest(&self, name: &str) -> Result<Package> {
        self.find(name, |_| true).with_context(|| format!("no package {name}"))
    }

    /// The newest Debian version of upstream's `release` of `name`.
    pub fn release(&self, name: &str, release: &str) -> Result<Package> {
        self.find(name, |v| is_release(v, release))
            .with_context(|| format!("no package {name} of release {release}"))
    }

    /// What a package depends on, alternatives left out: `name` and, where it is pinned by `=`, the version.
    pub fn depends(&self, package: &Package) -> Result<Vec<(String, Option<String>)>> {
        let show = cmd::output(self.apt("apt-cache").arg("show").arg(package.to_string()))?;
        Ok(depends(&show))
    }

    fn find(&self, name: &str, fits: impl Fn(&str) -> bool) -> Result<Package> {
        let table = cmd::output(self.apt("apt-cache").args(["madison", name]))?;
        let version = versions(&table).find(|v| fits(v)).context("apt lists no version that fits")?;
        Ok(Package { name: name.to_owned(), version: version.to_owned() })
    }
}

/// The versions in what `apt-cache madison` prints, in apt's own order, newest first (a text sort would put 7.2.9
/// over 7.2.12).
fn versions(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter_map(|l| l.split('|').nth(1)).map(str::trim)
}

/// Whether a Debian version is one of upstream's `release`: `1.95.0+dfsg1-2~bpo13+1` of 1.95.0.
fn is_release(version: &str, release: &str) -> bool {
    let upstream = version.split_once(':').map_or(version, |(_epoch, rest)| rest);
    upstream
        .strip_prefix(release)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

fn depends(show: &str) -> Vec<(String, Option<String>)> {
    let line = show.lines().find_map(|l| l.strip_prefix("Depends: ")).unwrap_or("");
    let first = line.split(',').filter_map(|d| d.split('|').next());
    first.map(str::trim).filter(|d| !d.is_empty()).map(dependency).collect()
}

fn dependency(text: &str) -> (String, Option<String>) {
    let (name, condition) = text.split_once(' ').unwrap_or((text, ""));
    let pinned = condition.strip_prefix("(= ").and_then(|v| v.strip_suffix(')'));
    (name.to_owned(), pinned.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  rust-src | 1.97.1+dfsg1-1~bpo13+1 | s:/ trixie-backports/main amd64 Packages\n  \
                         rust-src | 1.95.0+dfsg1-2~bpo13+1 | s:/ trixie-backports/main amd64 Packages\n";

    #[test]
    fn versions_keep_apts_order() {
        assert_eq!(versions(TABLE).collect::<Vec<_>>(), ["1.97.1+dfsg1-1~bpo13+1", "1.95.0+dfsg1-2~bpo13+1"]);
    }

    #[test]
    fn a_release_is_not_taken_for_a_longer_one() {
        assert!(is_release("1.95.0+dfsg1-2~bpo13+1", "1.95.0"));
        assert!(is_release("2:1.95.0-1", "1.95.0"));
        assert!(!is_release("1.95.01-1", "1.95.0") && !is_release("1.95.0.1-1", "1.95.0"));
        assert!(!is_release("1.97.1-1", "1.95.0"));
    }

    #[test]
    fn a_meta_package_names_what_it_stands_for() {
        let show = "Package: linux-image-amd64\nDepends: linux-image-6.12.95+deb12-amd64 (= 6.12.95-1~bpo12+1), a | b, c (>= 2)\n";
        let found = depends(show);
        assert_eq!(found[0], ("linux-image-6.12.95+deb12-amd64".into(), Some("6.12.95-1~bpo12+1".into())));
        assert_eq!(found[1..], [("a".to_owned(), None), ("c".to_owned(), None)]);
    }

    #[test]
    fn a_package_without_dependencies_has_none() {
        assert!(depends("Package: x\n").is_empty());
    }

    #[test]
    fn an_epoch_makes_no_odd_file_name() {
        let package = Package { name: "qemu".into(), version: "1:10.0-2".into() };
        assert_eq!(package.file_name(), "qemu_1%3a10.0-2.deb");
        assert_eq!(package.to_string(), "qemu=1:10.0-2");
    }
}
