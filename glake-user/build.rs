//! Puts the eBPF object that `cargo xtask` built into the binary, and tells it where it comes from.
//!
//! Without an object (a bare `cargo build`) an empty file takes its place, and the binary says at run time that it
//! was built without probes and how to get them.
use std::{env, fs, path::PathBuf, process::Command};

fn main() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=GLAKE_EBPF_OBJECT");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("glake-ebpf.o");
    match env::var_os("GLAKE_EBPF_OBJECT").map(PathBuf::from) {
        Some(object) => {
            println!("cargo:rerun-if-changed={}", object.display());
            fs::copy(&object, &out).map_err(|e| format!("GLAKE_EBPF_OBJECT={}: {e}", object.display()))?;
        }
        None => fs::write(&out, b"").expect("OUT_DIR is writable"),
    }
    println!("cargo:rustc-env=GLAKE_TARGET={}", env::var("TARGET").expect("cargo sets TARGET"));
    name_the_commit();
    Ok(())
}

/// A release build names its commit: GLAKE_COMMIT, else git's HEAD. A development build does not follow commits, as
/// that would compile everything again after each, and so names none rather than an old one.
fn name_the_commit() {
    println!("cargo:rerun-if-env-changed=GLAKE_COMMIT");
    if env::var_os("GLAKE_COMMIT").is_some() || env::var("PROFILE").is_ok_and(|p| p == "debug") {
        return;
    }
    println!("cargo:rerun-if-changed=../.git/logs/HEAD");
    let head =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).output();
    if let Ok(head) = head
        && head.status.success()
    {
        println!("cargo:rustc-env=GLAKE_COMMIT={}", String::from_utf8_lossy(&head.stdout).trim());
    }
}
