//! The stages of `cargo xtask test`.
use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{
    count::{self, Counts},
    fuzz,
};
use crate::{
    build, check, cmd, files, say,
    setup::{self, apt::Apt, lock, rust_src},
    tree::Tree,
};

/// One stage.
#[derive(Debug)]
pub struct Stage {
    /// As `--stage` takes it.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Whether the stages after it make no sense without it.
    pub needed: bool,
    /// Does it.
    pub run: fn(&Lab) -> Result<Counts>,
}

/// What the stages share.
#[derive(Debug)]
pub struct Lab {
    /// Where we are.
    pub tree: Tree,
    /// Kernels for the lab, by spaces.
    pub kernels: String,
}

/// In the order in which they run. Whole-program tests live in the package `glake-tests`; the first word of a test
/// target's name says its stage: `lab_…`, `prometheus_…`, and the rest is `program`.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "tools",
        about: "the toolchain for eBPF, with either source of Rust's core library",
        needed: true,
        run: tools,
    },
    Stage { name: "build", about: "the eBPF programs, the binary and all tests", needed: true, run: build },
    Stage {
        name: "check",
        about: "format, rooms, unsafe, clippy, docs, licences",
        needed: false,
        run: check,
    },
    Stage { name: "unit", about: "unit, property and documentation tests", needed: false, run: unit },
    Stage {
        name: "program",
        about: "the real binary: command line, agent, terminal view",
        needed: false,
        run: program,
    },
    Stage { name: "lab", about: "probes in real kernels under QEMU", needed: false, run: lab },
    Stage {
        name: "prometheus",
        about: "a real Prometheus scrapes the agent",
        needed: false,
        run: prometheus,
    },
    Stage { name: "fuzz", about: "a few seconds of fuzzing for each parser", needed: false, run: fuzz_smoke },
];

fn tools(lab: &Lab) -> Result<Counts> {
    setup::tools(&lab.tree, rust_src::From::Auto)?;
    let mut counts = Counts::default();
    for from in [rust_src::From::Rustup, rust_src::From::Debian] {
        counts += forced(&lab.tree, from)?;
    }
    Ok(counts)
}

/// Builds the eBPF programs with the core library's source from one place. A place that cannot be had here (no
/// rustup, no Debian, no network) is no failure.
fn forced(tree: &Tree, from: rust_src::From) -> Result<Counts> {
    match setup::tools(tree, from) {
        Ok(tools) => {
            let folder = tree.target.join(format!("ebpf-{from:?}").to_lowercase());
            let built = build::ebpf_into(tree, &tools, &folder).inspect_err(say::error).is_ok();
            if built {
                // It was built to see that it builds, and takes 300 MB.
                std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
            }
            Ok(Counts::one(built))
        }
        Err(e) => {
            eprintln!("skipped rust-src by {from:?}: {e:#}");
            Ok(Counts { skipped: 1, ..Counts::default() })
        }
    }
}

fn build(lab: &Lab) -> Result<Counts> {
    build::glake(&lab.tree, build::Profile::Dev)?;
    // Libraries that tests load into other programs; `cargo test` builds none of them.
    let libraries = ["glake-preload", "glake-standin-cuda", "glake-standin-nvml", "glake-python"];
    let libraries = libraries.map(|name| format!("--package={name}"));
    cmd::run(cargo(lab)?.args(["build", "--quiet"]).args(libraries))?;
    cmd::run(cargo(lab)?.args(["test", "--quiet", "--workspace", "--no-run"]))?;
    Ok(Counts::default())
}

fn check(lab: &Lab) -> Result<Counts> {
    check::all(&lab.tree)
}

fn unit(lab: &Lab) -> Result<Counts> {
    count::run(cargo(lab)?.args(["test", "--workspace", "--exclude", "glake-tests"]))
}

fn program(lab: &Lab) -> Result<Counts> {
    let others = |name: &str| !name.starts_with("lab") && !name.starts_with("prometheus");
    let mut counts = count::run(cargo(lab)?.args(["test", "--package", "glake-tests", "--lib", "--bins"]))?;
    counts += whole_program(lab, others, &[])?;
    Ok(counts)
}

fn lab(lab: &Lab) -> Result<Counts> {
    whole_program(lab, |name| name.starts_with("lab"), &[("GLAKE_LAB_KERNELS", lab.kernels.as_ref())])
}

fn prometheus(lab: &Lab) -> Result<Counts> {
    let programs = prometheus_programs(&lab.tree.cache)?;
    whole_program(lab, |name| name.starts_with("prometheus"), &[("GLAKE_PROMETHEUS", &programs)])
}

fn fuzz_smoke(lab: &Lab) -> Result<Counts> {
    fuzz::smoke(&lab.tree)
}

/// Runs the test targets of `glake-tests` that `fits` picks.
fn whole_program(lab: &Lab, fits: impl Fn(&str) -> bool, env: &[(&str, &Path)]) -> Result<Counts> {
    let all = build::targets(&build::metadata(&lab.tree, &["--no-deps"])?, "glake-tests", "test");
    let targets: Vec<&String> = all.iter().filter(|name| fits(name)).collect();
    if targets.is_empty() {
        say::step("test", "no test belongs to this stage");
        return Ok(Counts::default());
    }
    let mut test = cargo(lab)?;
    // Guests and agents share the machine: one test binary after another, and one test at a time.
    test.args(["test", "--package", "glake-tests", "--no-fail-fast"]).env("RUST_TEST_THREADS", "1");
    test.args(targets.iter().flat_map(|name| ["--test", name.as_str()])).envs(env.iter().copied());
    count::run(&mut test)
}

/// Cargo with what whole-program tests look for: the binary, this xtask (to start guests), and the cache.
fn cargo(lab: &Lab) -> Result<Command> {
    let tree = &lab.tree;
    let mut cargo = build::cargo(tree, Some(&build::ebpf_object(tree)?));
    cargo
        .env("GLAKE_BIN", tree.target.join("debug/glake"))
        .env("GLAKE_XTASK", std::env::current_exe()?)
        .env("GLAKE_CACHE", &tree.cache);
    Ok(cargo)
}

/// The folder with Debian's `prometheus` and `promtool`.
fn prometheus_programs(cache: &Path) -> Result<PathBuf> {
    let home = cache.join("prometheus");
    let programs = home.join("usr/bin");
    if !programs.join("promtool").is_file() {
        let _lock = lock::take(cache)?;
        let place = files::fresh_folder(cache, "prometheus.part")?;
        Apt::open(cache)?.unpack(&["prometheus".to_owned()], &["./usr/bin"], &place)?;
        std::fs::rename(&place, &home)?;
    }
    Ok(programs)
}
