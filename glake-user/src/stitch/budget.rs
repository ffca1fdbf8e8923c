//! A limit that several heaps share: all GPUs of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
struct Shared {
    limit: AtomicU64,
    held: AtomicU64,
}

/// Bytes of physical memory that all heaps with this budget may hold together. Clones are the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

impl PartialEq for Budget {
    fn eq(&self, other: &Budget) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Budget {
        Budget(Arc::new(Shared { limit: AtomicU64::new(limit), held: AtomicU64::new(0) }))
    }

    /// The bytes allowed.
    pub fn limit(&self) -> u64 {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. What is held already stays held, even above it.
    pub fn set_limit(&self, limit: u64) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }

    /// The bytes held by all heaps together.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.limit().saturating_sub(self.held())
    }

    /// Counts `size` bytes as held; false where the limit does not allow it.
    pub(crate) fn take(&self, size: u64) -> bool {
        let limit = self.limit();
        let add = |held: u64| held.checked_add(size).filter(|sum| *sum <= limit);
        self.0.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Counts `size` bytes as given back.
    pub(crate) fn give(&self, size: u64) {
        self.0.held.fetch_sub(size, Ordering::Relaxed);
    }
}
