//! Small things about files.
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};

/// How long ago `path` was written. `None`: it does not exist.
pub fn age(path: &Path) -> Option<Duration> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    Some(SystemTime::now().duration_since(written).unwrap_or_default())
}

/// A fresh folder under `root`, for this process alone.
pub fn fresh_folder(root: &Path, what: &str) -> Result<PathBuf> {
    let place = root.join(format!("{what}.{}", std::process::id()));
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
    Ok(place)
}
