//! What happens to a process: it forks, and it ends.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::SeqCst);
}

/// From now on [`is_forked`] tells a child from the process that called this.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in the child of a fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Whether this process is a fork of the one that called [`watch_forks`]. A load.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

static AT_EXIT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn run_at_exit() {
    let address = AT_EXIT.load(Ordering::SeqCst);
    if !address.is_null() && !is_forked() {
        // SAFETY: only `at_exit` stores there, and what it stores is a `fn()`.
        let work = unsafe { std::mem::transmute::<*mut (), fn()>(address) };
        work();
    }
}

/// Runs `work` when the process ends by `exit`, before what was registered earlier: so before the driver takes itself down, if
/// the driver is up already. One per process; a later one takes its place. `work` must not panic.
pub fn at_exit(work: fn()) {
    static ONCE: Once = Once::new();
    AT_EXIT.store(work as *mut (), Ordering::SeqCst);
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which stays loaded: it holds thread-local and static state that
        // nothing unloads.
        unsafe { libc::atexit(run_at_exit) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_did_not_fork_is_not_a_child() {
        watch_forks();
        assert!(!is_forked());
    }
}
