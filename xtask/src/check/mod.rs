//! `cargo xtask check`: the rules of this repository that a machine can check. CI runs no other.
mod licences;
mod rooms;
mod size;
mod source;
mod text;
mod unsafe_files;

use std::{fmt, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use source::Source;

use crate::{
    build, cmd, say,
    setup::{self, rust_src},
    test::Counts,
    tree::Tree,
};

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, from the root of the tree.
    file: PathBuf,
    /// From 1; 0 stands for the file as a whole.
    line: usize,
    /// The rule, and what breaks it.
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

type Check = (&'static str, fn(&Tree) -> Result<()>);

/// Quick ones first.
const CHECKS: &[Check] = &[
    ("format", format),
    ("lock files", lock_files),
    ("rooms", |tree| over_sources(tree, rooms::findings)),
    ("unsafe", |tree| over_sources(tree, unsafe_files::findings)),
    ("size", |tree| over_sources(tree, size::findings)),
    ("text", |tree| report(text::findings(&source::tracked(tree, |_| true)?))),
    ("licences", licences::check),
    ("clippy", clippy),
    ("clippy for eBPF", clippy_ebpf),
    ("docs", docs),
];

/// `cargo xtask check`.
pub fn run(tree: &Tree) -> Result<ExitCode> {
    let counts = all(tree)?;
    println!("{counts}");
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every check, each to its end, and counts them as tests.
pub fn all(tree: &Tree) -> Result<Counts> {
    let mut counts = Counts::default();
    for (name, check) in CHECKS {
        let result = check(tree);
        match &result {
            Ok(()) => say::step("check", &format!("{name}: ok")),
            Err(e) => say::step("check", &format!("{name}: {e:#}")),
        }
        counts += Counts::one(result.is_ok());
    }
    Ok(counts)
}

fn over_sources(tree: &Tree, rule: fn(&Source) -> Vec<Finding>) -> Result<()> {
    let files = source::tracked(tree, |path| path.extension().is_some_and(|e| e == "rs"))?;
    let mut findings = Vec::new();
    for (path, text) in files {
        findings.extend(rule(&Source::parse(path, text)?));
    }
    report(findings)
}

fn report(findings: Vec<Finding>) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    bail!("{} broken\n  {}", lines.len(), lines.join("\n  "))
}

/// The workspaces of this repository; the ones that are not there yet are left out.
fn manifests(tree: &Tree) -> impl Iterator<Item = PathBuf> {
    ["Cargo.toml", "glake-ebpf/Cargo.toml", "tests/fuzz/Cargo.toml"]
        .map(|m| tree.root.join(m))
        .into_iter()
        .filter(|m| m.is_file())
}

fn format(tree: &Tree) -> Result<()> {
    for manifest in manifests(tree) {
        let mut fmt = build::cargo(tree, None);
        fmt.args(["fmt", "--all", "--check", "--manifest-path"]).arg(manifest);
        cmd::output(&mut fmt).context("`cargo fmt --all` puts it right")?;
    }
    Ok(())
}

/// Not that of the fuzz targets, which git does not track: it changes with each dependency of glake.
fn lock_files(tree: &Tree) -> Result<()> {
    for manifest in manifests(tree).filter(|m| !m.starts_with(tree.root.join("tests"))) {
        let mut metadata = build::cargo(tree, None);
        metadata.args(["metadata", "--locked", "--format-version=1", "--manifest-path"]).arg(manifest);
        cmd::output(&mut metadata)?;
    }
    Ok(())
}

fn clippy(tree: &Tree) -> Result<()> {
    let mut clippy = build::cargo(tree, Some(&build::ebpf_object(tree)?));
    cmd::run(clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-Dwarnings"]))
}

fn clippy_ebpf(tree: &Tree) -> Result<()> {
    let tools = setup::tools(tree, rust_src::From::Auto)?;
    let mut clippy = build::ebpf_cargo(tree, &tools, "clippy");
    clippy.args(["--quiet", "--release", "--target-dir"]).arg(tree.target.join("ebpf"));
    cmd::run(clippy.args(["--", "-Dwarnings"]))
}

fn docs(tree: &Tree) -> Result<()> {
    let mut doc = build::cargo(tree, Some(&build::ebpf_object(tree)?));
    doc.args(["doc", "--quiet", "--workspace", "--exclude", "glake-tests", "--exclude", "xtask"]);
    doc.args(["--no-deps", "--document-private-items"]);
    cmd::run(doc.env("RUSTDOCFLAGS", "-Dwarnings"))
}
