//! Builds of what leaves this machine: linked against the C library of 2018, so that they start where users are. A preload library
//! that wants a newer one would end every program it is put under.
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{build, cmd, files, say, setup::lock, tree::Tree};

/// The C library that RHEL 8 and Debian 10 have: that of the tag `manylinux_2_28`.
pub const FLOOR: (u32, u32) = (2, 28);

/// The wheel's builder, and the linker that knows every version of the C library; from PyPI, at the releases that were tried.
pub const MATURIN: &str = "maturin==1.16.0";
const LINKER: [&str; 2] = ["ziglang==0.15.2", "cargo-zigbuild==0.24.1"];

/// A folder of Python programs in an environment of its own in the cache, made once. The name tells its content.
pub fn python_programs(cache: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let home = cache.join(name);
    if home.join("bin/made").is_file() {
        return Ok(home.join("bin"));
    }
    let _lock = lock::take(cache)?;
    say::step("setup", &format!("getting {}", packages.join(", ")));
    let place = files::fresh_folder(cache, "python.part")?;
    match Command::new("python3").args(["-m", "venv"]).arg(&place).output() {
        Ok(out) if out.status.success() => {}
        Ok(out) => bail!(
            "python3 -m venv: {}; on Debian install python3-venv",
            String::from_utf8_lossy(&out.stderr).trim()
        ),
        Err(e) => bail!("python3: {e}; install Python 3.9 or newer"),
    }
    cmd::run(
        Command::new(place.join("bin/python")).args(["-m", "pip", "install", "--quiet"]).args(packages),
    )?;
    fs::write(place.join("bin/made"), packages.join("\n"))?;
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::rename(&place, &home)?;
    Ok(home.join("bin"))
}

/// `PATH` with the programs that release builds need in front.
pub fn path(cache: &Path) -> Result<std::ffi::OsString> {
    let packages: Vec<&str> = std::iter::once(MATURIN).chain(LINKER).collect();
    let programs = python_programs(cache, "release-0.15.2-0.24.1-1.16.0", &packages)?;
    let rest = env::var_os("PATH").unwrap_or_default();
    env::join_paths(std::iter::once(programs).chain(env::split_paths(&rest))).context("PATH")
}

/// Builds the binary with the eBPF programs in it and the preload library; the folder they are in.
pub fn build(tree: &Tree) -> Result<PathBuf> {
    let object = build::ebpf(tree)?;
    let path = path(&tree.cache)?;
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    say::step("build", &format!("building glake and libglake_cuda.so for glibc {}.{}", FLOOR.0, FLOOR.1));
    let mut build = build::cargo(tree, Some(&object));
    build.env("PATH", path).args([
        "zigbuild",
        "--quiet",
        "--release",
        "--package=glake",
        "--package=glake-preload",
    ]);
    cmd::run(build.args(["--target", &format!("{triple}.{}.{}", FLOOR.0, FLOOR.1)]))?;
    let folder = tree.target.join(triple).join("release");
    for file in ["glake", "libglake_cuda.so"] {
        check(&folder.join(file))?;
    }
    Ok(folder)
}

/// Fails where a library or program wants a newer C library than [`FLOOR`].
pub fn check(file: &Path) -> Result<()> {
    let newest = newest_glibc(&fs::read(file).with_context(|| file.display().to_string())?);
    let Some(newest) = newest else { bail!("{} names no version of the C library", file.display()) };
    ensure!(
        newest <= FLOOR,
        "{} wants glibc {}.{}, and {}.{} is the most that users have",
        file.display(),
        newest.0,
        newest.1,
        FLOOR.0,
        FLOOR.1
    );
    Ok(())
}

/// The newest version that a file's strings name: the linker writes each that is wanted as `GLIBC_2.28`.
fn newest_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    const NAME: &[u8] = b"GLIBC_";
    let at = bytes.windows(NAME.len()).enumerate().filter(|(_, w)| *w == NAME).map(|(i, _)| i + NAME.len());
    at.filter_map(|from| {
        let text =
            bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').map(|b| char::from(*b));
        let text: String = text.collect();
        let mut numbers = text.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    })
    .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_compared_by_number_and_a_file_without_one_is_no_proof() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.4\0"), Some((2, 17)));
        assert_eq!(newest_glibc(b"GLIBC_PRIVATE GLIBC_"), None);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.so");
        for (bytes, fits) in
            [(&b"GLIBC_2.28\0"[..], true), (b"GLIBC_2.28\0GLIBC_2.34\0", false), (b"", false)]
        {
            fs::write(&file, bytes).unwrap();
            assert_eq!(check(&file).is_ok(), fits);
        }
    }

    #[test]
    fn a_program_of_this_machine_names_its_version() {
        assert!(newest_glibc(&fs::read("/proc/self/exe").unwrap()).is_some_and(|v| v >= (2, 17)));
    }
}
