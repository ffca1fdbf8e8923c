//! Builds: the eBPF object, and the binary with the object inside.
use std::{
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cmd, say,
    setup::{self, Tools, rust_src},
    tree::Tree,
};

/// One profile for developing, one for shipping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For building, testing and running during development.
    Dev,
    /// As shipped and measured.
    Release,
}

impl From<bool> for Profile {
    fn from(release: bool) -> Self {
        if release { Self::Release } else { Self::Dev }
    }
}

/// Builds the eBPF programs and returns the object's path, which stays the same from build to build.
pub fn ebpf(tree: &Tree) -> Result<PathBuf> {
    let tools = setup::tools(tree, rust_src::From::Auto)?;
    ebpf_into(tree, &tools, &tree.target.join("ebpf"))
}

/// [`ebpf`] with given tools. The target folder is not the user side's, which these flags and RUSTC_BOOTSTRAP would
/// make build anew each time.
pub fn ebpf_into(tree: &Tree, tools: &Tools, target_dir: &Path) -> Result<PathBuf> {
    say::step("ebpf", "building the eBPF programs");
    let mut build = ebpf_cargo(tree, tools, "build");
    cmd::run(build.args(quiet()).args(["--release", "--target-dir"]).arg(target_dir))?;
    let object = target_dir.join("glake-ebpf.o");
    copy_if_changed(&target_dir.join("bpfel-unknown-none/release/glake-ebpf"), &object)?;
    Ok(object)
}

/// `cargo VERB` for the eBPF side, with the flags that its target needs.
pub fn ebpf_cargo(tree: &Tree, tools: &Tools, verb: &str) -> Command {
    // debuginfo is where bpf-linker takes BTF from; v3 has atomics that return the old value (kernel 5.12); aya-ebpf picks
    // register layouts by the cfg.
    let flags = format!(
        "-Cdebuginfo=2\x1f-Ctarget-cpu=v3\x1f-Clink-arg=--btf\x1f--cfg=bpf_target_arch=\"{}\"",
        tools.rustc.version.arch()
    );
    let mut cargo = Command::new(&tools.rustc.cargo);
    cargo
        .current_dir(tree.root.join("glake-ebpf"))
        .args([verb, "-Z", "build-std=core", "--target", "bpfel-unknown-none"])
        // build-std is unstable in name only for this use: it compiles core, with the compiler it belongs to.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", &tools.bpf_rustc)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &tools.linker)
        .env("CARGO_ENCODED_RUSTFLAGS", flags);
    cargo
}

/// Builds the binary with the eBPF programs in it and returns its path.
pub fn glake(tree: &Tree, profile: Profile) -> Result<PathBuf> {
    let object = ebpf(tree)?;
    say::step("build", "building glake");
    let mut build = cargo(tree, Some(&object));
    build.arg("build").args(quiet()).args(["--package", "glake", "--bin", "glake"]);
    if profile == Profile::Release {
        build.arg("--release");
    }
    cmd::run(&mut build)?;
    let folder = if profile == Profile::Release { "release" } else { "debug" };
    Ok(tree.target.join(folder).join("glake"))
}

/// A person is shown how far a build is; a log is not filled with it.
fn quiet() -> Option<&'static str> {
    (!std::io::stderr().is_terminal()).then_some("--quiet")
}

/// Cargo for the user side, with the object that `glake-user/build.rs` puts into the binary.
pub fn cargo(tree: &Tree, object: Option<&Path>) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&tree.root);
    if let Some(object) = object {
        cargo.env("GLAKE_EBPF_OBJECT", object);
    }
    cargo
}

/// The object that [`ebpf`] built, built now if it is not there.
pub fn ebpf_object(tree: &Tree) -> Result<PathBuf> {
    let object = tree.target.join("ebpf/glake-ebpf.o");
    if object.is_file() { Ok(object) } else { ebpf(tree) }
}

/// What `cargo metadata` says of the workspace.
pub fn metadata(tree: &Tree, more: &[&str]) -> Result<serde_json::Value> {
    let text =
        cmd::output(cargo(tree, None).args(["metadata", "--format-version=1", "--locked"]).args(more))?;
    serde_json::from_str(&text).context("cargo metadata")
}

/// The names of one package's targets of a kind (`bin`, `test`) in what [`metadata`] says.
pub fn targets(metadata: &serde_json::Value, package: &str, kind: &str) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.filter(|p| p["name"] == package).filter_map(|p| p["targets"].as_array()).flatten();
    targets.filter(|t| t["kind"][0] == kind).filter_map(|t| t["name"].as_str().map(str::to_owned)).collect()
}

/// Copies only what differs, so that an unchanged object does not make its users build anew.
fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("built object {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).with_context(|| format!("object {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart_by_package_and_kind() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "targets": [{"name": "x", "kind": ["bin"]}, {"name": "y", "kind": ["test"]}]},
            {"name": "b", "targets": [{"name": "z", "kind": ["bin"]}]},
        ]});
        assert_eq!(targets(&metadata, "a", "bin"), ["x"]);
        assert_eq!(targets(&metadata, "a", "test"), ["y"]);
        assert!(targets(&metadata, "c", "bin").is_empty());
    }

    #[test]
    fn an_unchanged_object_keeps_its_time_and_a_changed_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&from, "one").unwrap();
        copy_if_changed(&from, &to).unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(&to).unwrap().set_modified(old).unwrap();
        copy_if_changed(&from, &to).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().modified().unwrap(), old);
        fs::write(&from, "two").unwrap();
        copy_if_changed(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "two");
    }
}
