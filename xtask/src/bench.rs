//! `cargo xtask bench NAME`: builds for release, runs the benchmark, and keeps what it printed with where it ran.
//!
//! A benchmark is a program `bench_NAME` of the package `glake-tests` (`tests/src/bin/bench_NAME.rs`). It prints its
//! results on stdout and finds what it measures in `GLAKE_BIN`, and Debian's libbpf-tools in `GLAKE_LIBBPF_TOOLS`.
//! `docs/benchmarks.md` is written by hand from such runs.
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    build::{self, Profile},
    cmd, files, say,
    setup::{apt::Apt, lock},
    tree::Tree,
};

/// Arguments of `cargo xtask bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Which one; without a name they are listed
    name: Option<String>,
    /// Arguments for the benchmark
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs one benchmark, or lists them.
pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    let known = names(tree)?;
    let Some(name) = &args.name else {
        println!("{}", known.join("\n"));
        return Ok(());
    };
    ensure!(known.contains(name), "there is no benchmark {name:?}; there are: {}", known.join(", "));
    let glake = build::glake(tree, Profile::Release)?;
    let program = format!("bench_{name}");
    let mut build = build::cargo(tree, Some(&build::ebpf_object(tree)?));
    cmd::run(build.args(["build", "--quiet", "--release", "--package", "glake-tests", "--bin", &program]))?;
    let mut bench = Command::new(tree.target.join("release").join(&program));
    bench.args(&args.args).env("GLAKE_BIN", glake).stdin(Stdio::null()).stderr(Stdio::inherit());
    if name == "probes" {
        bench.env("GLAKE_LIBBPF_TOOLS", libbpf_tools(&tree.cache)?);
    }
    say::step("bench", &cmd::shown(&bench));
    let out = bench.output().with_context(|| cmd::shown(&bench))?;
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    let file = tree.target.join(format!("bench/{name}.txt"));
    fs::create_dir_all(tree.target.join("bench"))?;
    fs::write(&file, format!("{}\n{text}", place(tree, &bench)))?;
    say::step("bench", &format!("kept in {}", file.display()));
    if !out.status.success() {
        bail!("{}: {}", cmd::shown(&bench), out.status);
    }
    Ok(())
}

fn names(tree: &Tree) -> Result<Vec<String>> {
    let bins = build::targets(&build::metadata(tree, &["--no-deps"])?, "glake-tests", "bin");
    Ok(bins.iter().filter_map(|name| name.strip_prefix("bench_").map(str::to_owned)).collect())
}

/// Where a result comes from: without it a figure says nothing.
fn place(tree: &Tree, bench: &Command) -> String {
    let said = |program: &str, args: &[&str]| {
        let out = cmd::output(Command::new(program).current_dir(&tree.root).args(args));
        out.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, m)| m);
    format!(
        "command  {}\ncommit   {}\nkernel   {}\ncpu      {} x {model}\ndate     {}\n",
        cmd::shown(bench),
        said("git", &["describe", "--always", "--dirty"]),
        said("uname", &["-r"]),
        cpus.lines().filter(|l| l.starts_with("processor")).count(),
        said("date", &["-u", "+%Y-%m-%d"]),
    )
}

/// The folder with Debian's `biolatency` and its like, which need no compiler.
fn libbpf_tools(cache: &Path) -> Result<PathBuf> {
    let home = cache.join("libbpf-tools");
    if !home.exists() {
        let _lock = lock::take(cache)?;
        let place = files::fresh_folder(cache, "libbpf-tools.part")?;
        Apt::open(cache)?.unpack(&["libbpf-tools".to_owned()], &["./usr/sbin"], &place)?;
        fs::rename(&place, &home)?;
    }
    Ok(home.join("usr/sbin"))
}
