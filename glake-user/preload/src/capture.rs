//! Stream captures under way. While there is one, nothing may be waited for, and the driver decides what it allows.

use std::sync::atomic::{AtomicU32, Ordering};

static CAPTURES: AtomicU32 = AtomicU32::new(0);

pub(crate) fn begin() {
    CAPTURES.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn end() {
    // A program may end a capture that began before this library saw any.
    let _ = CAPTURES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
}

pub(crate) fn any() -> bool {
    CAPTURES.load(Ordering::SeqCst) > 0
}
