//! Puts the eBPF object that `cargo xtask` built into the binary.
//!
//! Without one (a bare `cargo build`) an empty file takes its place, and the binary says at run time that it was
//! built without probes and how to get them.
use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=GLAKE_EBPF_OBJECT");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("glake-ebpf.o");
    match env::var_os("GLAKE_EBPF_OBJECT").map(PathBuf::from) {
        Some(object) => {
            println!("cargo:rerun-if-changed={}", object.display());
            fs::copy(&object, &out).unwrap_or_else(|e| panic!("GLAKE_EBPF_OBJECT={}: {e}", object.display()));
        }
        None => fs::write(&out, b"").expect("OUT_DIR is writable"),
    }
}
