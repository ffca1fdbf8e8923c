//! `cargo xtask wheel`: the Python package.
use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{
    build::Profile,
    cmd, say,
    shipped::{self, FLOOR, MATURIN},
    tree::Tree,
};

/// Builds the wheel and returns its path: for release into `target/wheels`, for the C library of the tag in its name; for tests into
/// `target/wheels-dev`, for this machine.
pub fn build(tree: &Tree, profile: Profile) -> Result<PathBuf> {
    let release = profile == Profile::Release;
    let out = tree.target.join(if release { "wheels" } else { "wheels-dev" });
    let mut build = if release {
        let mut build = Command::new("maturin");
        // maturin reads the symbol versions and fails where the tag would be a lie.
        let tag = format!("manylinux_{}_{}", FLOOR.0, FLOOR.1);
        build.env("PATH", shipped::path(&tree.cache)?).args([
            "build",
            "--release",
            "--zig",
            "--compatibility",
            &tag,
        ]);
        build
    } else {
        let mut build = Command::new(
            shipped::python_programs(&tree.cache, "maturin-1.16.0", &[MATURIN])?.join("maturin"),
        );
        build.args(["build", "--auditwheel", "skip"]);
        build
    };
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    say::step("wheel", "building the Python package");
    build.current_dir(tree.root.join("glake-user/python")).args(["--quiet", "--out"]).arg(&out);
    cmd::run(build.env("CARGO_TARGET_DIR", &tree.target))?;
    let found = fs::read_dir(&out)?.filter_map(|e| Some(e.ok()?.path()));
    let mut wheels: Vec<PathBuf> = found.filter(|p| p.extension().is_some_and(|e| e == "whl")).collect();
    wheels.pop().with_context(|| format!("maturin left no wheel in {}", out.display()))
}
