//! Lines for the person at the terminal, each once per process, on standard error.

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
static FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// Says `line` unless something was said under `key` before. `GLAKE_QUIET=1` silences all but nothing else.
pub fn say_once(key: &str, line: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.get_or_insert_default().insert(key.to_owned()) {
        return;
    }
    drop(said);
    if std::env::var_os("GLAKE_QUIET").is_none_or(|v| v == "0" || v.is_empty()) {
        // One write, so that lines of several ranks do not mix. A closed standard error is no failure.
        let _ =
            std::io::stderr().write_all(format!("glake {}: {line}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    }
}

/// GLake could not serve, and the program's own allocator did: counted, and said the first time.
pub fn fell_back(why: &str) {
    FALLBACKS.fetch_add(1, Ordering::Relaxed);
    // A process in which GLake failed at once has no heap that would be told of.
    super::publish::start();
    say_once(
        "fallback",
        &format!("falling back to the program's own allocator: {why}; said once, counted each time"),
    );
}

/// How often GLake fell back.
pub(super) fn fallbacks() -> u64 {
    FALLBACKS.load(Ordering::Relaxed)
}
