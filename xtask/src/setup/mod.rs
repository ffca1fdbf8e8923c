//! The toolchain from nothing: rustc, the source of its core library, and a bpf-linker for its LLVM.
//!
//! All of it is cached ([`Tree::cache`]), done once, and done by one xtask at a time ([`lock`]). Nothing outside the
//! cache changes without a line that says so first.
pub mod apt;
mod linker;
pub mod lock;
pub mod rust_src;
pub mod rustc;

use std::path::PathBuf;

use anyhow::Result;

use crate::tree::Tree;

/// What the eBPF build needs.
#[derive(Debug)]
pub struct Tools {
    /// The compiler on PATH.
    pub rustc: rustc::Rustc,
    /// The program to compile eBPF with: `rustc` itself, or a wrapper that adds the core library's source.
    pub bpf_rustc: PathBuf,
    /// A bpf-linker that reads what `rustc` writes.
    pub linker: PathBuf,
}

/// Finds or makes every tool that the eBPF build needs.
pub fn tools(tree: &Tree, source: rust_src::From) -> Result<Tools> {
    let rustc = rustc::Rustc::find()?;
    // What is complete needs no lock: another xtask may hold it for minutes, making something else.
    if let (Some(bpf_rustc), Some(linker)) =
        (rust_src::made(&tree.cache, &rustc, source), linker::made(&tree.cache, &rustc))
    {
        return Ok(Tools { rustc, bpf_rustc, linker });
    }
    let _lock = lock::take(&tree.cache)?;
    let bpf_rustc = rust_src::ensure(&tree.cache, &rustc, source)?;
    let linker = linker::ensure(&tree.cache, &rustc)?;
    Ok(Tools { rustc, bpf_rustc, linker })
}
