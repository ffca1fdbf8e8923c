//! What the kernel says of its lockdown: `none [integrity] confidentiality`, the level in force in brackets.

use std::{io, path::Path};

/// The file's text below `root`.
///
/// # Errors
/// Those of reading: `NotFound` where securityfs is not mounted or the kernel has no lockdown.
pub fn text(root: &Path) -> io::Result<String> {
    std::fs::read_to_string(root.join("sys/kernel/security/lockdown"))
}

/// The level in force in the file's text. `None`: there is none in brackets.
pub fn level(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// The level in force below `root`. `None`: it cannot be told.
pub fn read(root: &Path) -> Option<String> {
    level(&text(root).ok()?).map(str::to_owned)
}
