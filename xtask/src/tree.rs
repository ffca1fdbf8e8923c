//! Where things are: the checkout, cargo's target folder, and the cache of tools.
use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The folders that xtask works in.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The checkout.
    pub root: PathBuf,
    /// Cargo's target folder.
    pub target: PathBuf,
    /// Tools, packages and kernels: `$GLAKE_CACHE`, else `xtask` in the target folder. May be shared by checkouts.
    pub cache: PathBuf,
}

impl Tree {
    /// The tree this xtask belongs to.
    pub fn find() -> Result<Self> {
        // Cargo sets the variable for `cargo xtask`; the compiled-in value serves a binary started by hand.
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().context("xtask lies in no workspace")?.to_path_buf();
        let folder = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(|v| root.join(v));
        let target = folder("CARGO_TARGET_DIR").unwrap_or_else(|| root.join("target"));
        let cache = folder("GLAKE_CACHE").unwrap_or_else(|| target.join("xtask"));
        fs::create_dir_all(&cache).with_context(|| format!("cache folder {}", cache.display()))?;
        Ok(Self { root, target, cache })
    }
}
