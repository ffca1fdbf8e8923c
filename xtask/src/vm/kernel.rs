//! Which kernel the guest boots: a name is resolved to a version through Debian's meta-package, and the version is
//! kept unpacked in the cache.

use crate::{
    files,
    setup::{apt::Apt, lock},
};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A resolution older than this is made again, so that a new kernel is noticed within a day.
const RESOLUTION_AGE: Duration = Duration::from_secs(24 * 3600);

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// `6.12.95+deb12-amd64`, as `uname -r` prints it.
    pub(crate) release: String,
    /// Folder that the packages were unpacked into.
    pub(super) root: PathBuf,
}

impl Kernel {
    /// Resolves `name` (`lts`, `newest`, or a version such as `6.12.95`) and unpacks it into the cache if need be.
    pub(crate) fn get(cache: &Path, name: &str) -> Result<Kernel> {
        let _lock = lock::take(cache)?;
        let release = release(cache, name)?;
        let root = cache.join("kernels").join(&release);
        if !root.exists() {
            unpack(cache, &release, &root)?;
        }
        Ok(Kernel { release, root })
    }

    /// The bootable image.
    pub(super) fn image(&self) -> Result<PathBuf> {
        let spellings = [
            self.root.join("boot").join(format!("vmlinuz-{}", self.release)),
            self.modules()?.join("vmlinuz"),
        ];
        let found = spellings.iter().find(|p| p.exists()).cloned();
        found.with_context(|| {
            format!("no vmlinuz under {}: delete that folder to fetch it again", self.root.display())
        })
    }

    /// The folder `lib/modules/RELEASE`.
    pub(super) fn modules(&self) -> Result<PathBuf> {
        let spellings = ["lib/modules", "usr/lib/modules"].map(|p| self.root.join(p).join(&self.release));
        let found = spellings.into_iter().find(|p| p.exists());
        found.with_context(|| {
            format!("no modules under {}: delete that folder to fetch it again", self.root.display())
        })
    }
}

/// The release that `name` stands for. A name resolved within a day, or at any time when the mirror cannot be
/// reached, comes from the cache: the last good kernel goes on working.
fn release(cache: &Path, name: &str) -> Result<String> {
    let suite = match name {
        "lts" => "bookworm-backports",
        "newest" => "trixie-backports",
        version => return by_version(cache, version),
    };
    let kept = cache.join("kernels").join(format!("{name}.release"));
    let known = fs::read_to_string(&kept).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
    if let Some(known) = &known
        && files::age(&kept).is_some_and(|a| a < RESOLUTION_AGE)
    {
        return Ok(known.clone());
    }
    match resolve(cache, suite) {
        Ok(release) => {
            fs::create_dir_all(cache.join("kernels"))?;
            fs::write(&kept, &release)?;
            Ok(release)
        }
        Err(error) => match known {
            Some(known) if cache.join("kernels").join(&known).exists() => {
                eprintln!("xtask: {error:#}; going on with the last good kernel {known}");
                Ok(known)
            }
            _ => Err(error),
        },
    }
}

/// The meta-package depends on exactly one image: that is the newest of the suite. (A sort of version texts is not.)
fn resolve(cache: &Path, suite: &str) -> Result<String> {
    let meta = Apt::open(cache)?.show("linux-image-amd64", suite)?;
    let image = meta.depends.iter().find_map(|name| name.strip_prefix("linux-image-"));
    image
        .map(str::to_owned)
        .with_context(|| format!("linux-image-amd64 of {suite} depends on no image: {:?}", meta.depends))
}

fn by_version(cache: &Path, version: &str) -> Result<String> {
    let fits = |release: &str| {
        release.strip_prefix(version).is_some_and(|rest| {
            ["", "+", "-"].iter().any(|p| rest == *p || !p.is_empty() && rest.starts_with(p))
        })
    };
    let kernels = fs::read_dir(cache.join("kernels"))
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok()?.file_name().into_string().ok());
    let cached = kernels.filter(|n| !n.ends_with(".release") && fits(n)).max();
    if let Some(cached) = cached {
        return Ok(cached);
    }
    let names = Apt::open(cache)?.names(&format!("linux-image-{version}"))?;
    let releases = names.iter().filter_map(|n| n.strip_prefix("linux-image-")).filter(|n| fits(n));
    let plain = releases
        .filter(|n| n.ends_with("-amd64") && !["cloud", "rt", "unsigned"].iter().any(|f| n.contains(f)))
        .max();
    match plain {
        Some(release) => Ok(release.to_owned()),
        None => bail!(
            "no Debian kernel {version} (the mirrors keep only the newest of each line): try `lts` or `newest`"
        ),
    }
}

fn unpack(cache: &Path, release: &str, root: &Path) -> Result<()> {
    eprintln!("xtask: fetching kernel {release} into {}", root.display());
    let apt = Apt::open(cache)?;
    let image = format!("linux-image-{release}");
    // Since 7.x the image package is empty and depends on the parts; before, it is whole.
    let parts = ["base", "binary", "modules"].map(|part| format!("linux-{part}-{release}"));
    let known = apt.names("linux-")?;
    let mut packages: Vec<String> = parts.into_iter().filter(|p| known.contains(p)).collect();
    packages.push(image);
    let place = files::fresh_folder(&cache.join("kernels"), &format!("{release}.part"))?;
    apt.unpack(&packages, &[], &place)?;
    fs::rename(&place, root).with_context(|| format!("moving {} into place", place.display()))
}
