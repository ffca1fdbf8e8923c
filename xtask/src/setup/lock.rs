//! One xtask at a time changes the cache. A second one says whom it waits for.
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use anyhow::{Context, Result};

use crate::say;

/// The lock this process holds, if any: steps nest (setup uses apt), and a process must not wait for itself.
static HELD: Mutex<Weak<File>> = Mutex::new(Weak::new());

/// Waits until this process alone may change `cache`. The lock ends with the value, or with the process.
pub fn take(cache: &Path) -> Result<Arc<File>> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lock) = held.upgrade() {
        return Ok(lock);
    }
    let lock = Arc::new(wait(cache)?);
    *held = Arc::downgrade(&lock);
    Ok(lock)
}

fn wait(cache: &Path) -> Result<File> {
    let path = cache.join("lock");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open().with_context(|| format!("lock file {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder)?;
            say::step(
                "setup",
                &format!("waiting for another xtask: pid {} (it holds {})", holder.trim(), path.display()),
            );
            file.lock().with_context(|| format!("lock file {}", path.display()))?;
        }
        Err(TryLockError::Error(e)) => {
            return Err(e).with_context(|| format!("lock file {}", path.display()));
        }
    }
    file.set_len(0)?;
    file.rewind()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    write!(file, "{}, `cargo xtask {}`", std::process::id(), words.join(" "))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_kept_out_until_the_first_ends() {
        let cache = tempfile::tempdir().unwrap();
        let first = wait(cache.path()).unwrap();
        let other = File::open(cache.path().join("lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        other.try_lock().unwrap();
    }

    #[test]
    fn the_lock_names_its_holder() {
        let cache = tempfile::tempdir().unwrap();
        let _lock = wait(cache.path()).unwrap();
        let written = std::fs::read_to_string(cache.path().join("lock")).unwrap();
        assert!(written.starts_with(&format!("{}, `cargo xtask", std::process::id())), "{written}");
    }

    #[test]
    fn one_process_may_take_it_twice() {
        let cache = tempfile::tempdir().unwrap();
        let first = take(cache.path()).unwrap();
        let second = take(cache.path()).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
    }
}
