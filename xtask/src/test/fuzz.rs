//! A smoke test of the fuzz targets in `tests/fuzz`: each runs for some seconds from a fixed seed.
//!
//! The folder has cargo-fuzz's layout, so `cargo fuzz run NAME` works where cargo-fuzz is installed. Here the targets
//! are built without it, which saves its own build: coverage counters come from a code generation pass of stable rustc.
use std::process::Command;

use anyhow::{Context, Result};

use super::count::Counts;
use crate::{build, cmd, say, tree::Tree};

/// What libFuzzer needs to see of a program: counters at edges, their addresses, and compared values.
const FLAGS: &[&str] = &[
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// Seconds for each target at most; a fast parser reaches its number of runs before.
const SECONDS: u32 = 10;

/// Builds and runs every target.
pub fn smoke(tree: &Tree) -> Result<Counts> {
    let folder = tree.root.join("tests/fuzz");
    if !folder.join("Cargo.toml").is_file() {
        say::step("fuzz", "there are no fuzz targets");
        return Ok(Counts::default());
    }
    let target_dir = tree.target.join("fuzz");
    let mut cargo = build::cargo(tree, None);
    cargo.current_dir(&folder).args(["build", "--quiet", "--bins", "--target", &host()?, "--target-dir"]);
    cmd::run(cargo.arg(&target_dir).env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")))?;
    let mut counts = Counts::default();
    for name in targets(tree)? {
        counts += run(&target_dir.join(host()?).join("debug"), &name, &folder)?;
    }
    Ok(counts)
}

fn run(programs: &std::path::Path, name: &str, folder: &std::path::Path) -> Result<Counts> {
    let mut fuzz = Command::new(programs.join(name));
    fuzz.current_dir(programs).args(["-seed=1", "-runs=200000", "-rss_limit_mb=1024", "-timeout=5"]);
    fuzz.arg(format!("-max_total_time={SECONDS}"));
    let corpus = folder.join("corpus").join(name);
    if corpus.is_dir() {
        // A folder of our own comes first: libFuzzer writes what it finds into the first one.
        let found = crate::files::fresh_folder(programs, &format!("{name}.found"))?;
        fuzz.arg(found).arg(corpus);
    }
    match cmd::output(&mut fuzz) {
        Ok(_) => Ok(Counts::one(true)),
        Err(e) => {
            eprintln!("fuzz target {name}: {e:#}");
            Ok(Counts::one(false))
        }
    }
}

fn targets(tree: &Tree) -> Result<Vec<String>> {
    let manifest = tree.root.join("tests/fuzz/Cargo.toml");
    let text = cmd::output(
        build::cargo(tree, None)
            .args(["metadata", "--format-version=1", "--no-deps", "--manifest-path"])
            .arg(manifest),
    )?;
    let metadata: serde_json::Value = serde_json::from_str(&text).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().into_iter().flatten().filter_map(|p| p["name"].as_str());
    Ok(packages.flat_map(|package| build::targets(&metadata, package, "bin")).collect())
}

/// A target triple keeps the flags away from build scripts, which must not be instrumented.
fn host() -> Result<String> {
    Ok(crate::setup::rustc::Rustc::find()?.version.host)
}
