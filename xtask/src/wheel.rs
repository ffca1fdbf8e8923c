//! `cargo xtask wheel`: the Python package.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{build::Profile, cmd, files, say, setup::lock, tree::Tree};

/// The builder, from PyPI, at the release that was tried.
const MATURIN: &str = "maturin==1.16.0";

/// Builds the wheel into `target/wheels` and returns its path.
pub fn build(tree: &Tree, profile: Profile) -> Result<PathBuf> {
    let maturin = maturin(&tree.cache)?;
    let out = tree.target.join(if profile == Profile::Release { "wheels" } else { "wheels-dev" });
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    say::step("wheel", "building the Python package");
    let mut build = Command::new(maturin);
    build.current_dir(tree.root.join("glake-user/python")).args(["build", "--quiet", "--out"]).arg(&out);
    // Without a check of the C library's version here: `auditwheel` would ask for a newer name than users have.
    build.args(["--auditwheel", "skip"]).env("CARGO_TARGET_DIR", &tree.target);
    if profile == Profile::Release {
        build.arg("--release");
    }
    cmd::run(&mut build)?;
    let found = fs::read_dir(&out)?.filter_map(|e| Some(e.ok()?.path()));
    let mut wheels: Vec<PathBuf> = found.filter(|p| p.extension().is_some_and(|e| e == "whl")).collect();
    wheels.pop().with_context(|| format!("maturin left no wheel in {}", out.display()))
}

/// maturin in an environment of its own in the cache.
fn maturin(cache: &Path) -> Result<PathBuf> {
    let home = cache.join("maturin-1.16.0");
    let program = home.join("bin/maturin");
    if program.is_file() {
        return Ok(program);
    }
    let _lock = lock::take(cache)?;
    say::step("wheel", "getting maturin");
    let place = files::fresh_folder(cache, "maturin.part")?;
    let made = Command::new("python3").args(["-m", "venv"]).arg(&place).output();
    match made {
        Ok(out) if out.status.success() => {}
        Ok(out) => bail!(
            "python3 -m venv: {}; on Debian install python3-venv",
            String::from_utf8_lossy(&out.stderr).trim()
        ),
        Err(e) => bail!("python3: {e}; install Python 3.9 or newer"),
    }
    cmd::run(Command::new(place.join("bin/pip")).args(["install", "--quiet", MATURIN]))?;
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::rename(&place, &home)?;
    Ok(program)
}
