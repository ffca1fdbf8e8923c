//! Physical memory shared by all streams: what is held, the limit, and handles that are mapped nowhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::budget::Budget;
use super::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::gpu::Handle;

/// A physical handle and its size.
pub(crate) type Piece = (Handle, u64);

pub(crate) struct Depot {
    idle: Mutex<Vec<Piece>>,
    /// Bytes held from the driver, and the heap's own limit, `u64::MAX` for none but the device's. Only `admit` adds, before
    /// the driver is asked.
    own: Budget,
    reserved_peak: AtomicU64,
    /// What it shares with other heaps.
    shared: Option<Budget>,
}

impl Depot {
    pub(crate) fn new(limit: Option<u64>, shared: Option<Budget>) -> Depot {
        Depot {
            idle: Mutex::new(Vec::new()),
            own: Budget::new(limit.unwrap_or(u64::MAX)),
            reserved_peak: AtomicU64::new(0),
            shared,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Piece>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.own.held()
    }

    pub(crate) fn reserved_peak(&self) -> u64 {
        self.reserved_peak.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.reserved_peak.store(self.reserved(), Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.own.limit()
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.own.set_limit(limit.unwrap_or(u64::MAX));
    }

    /// Bytes that the limit still leaves.
    pub(crate) fn headroom(&self) -> u64 {
        self.own.left().min(self.shared.as_ref().map_or(u64::MAX, Budget::left))
    }

    /// Handles that are mapped nowhere.
    pub(crate) fn list(&self) -> Vec<Piece> {
        self.idle().clone()
    }

    /// Takes one named idle handle, if another stream was not faster.
    pub(crate) fn claim(&self, handle: Handle) -> bool {
        let mut idle = self.idle();
        let at = idle.iter().position(|p| p.0 == handle);
        at.map(|i| idle.swap_remove(i)).is_some()
    }

    /// Keeps handles for the next request.
    pub(crate) fn keep(&self, pieces: impl IntoIterator<Item = Piece>) {
        self.idle().extend(pieces);
    }

    /// A new handle, within the limit.
    pub(crate) fn create(&self, driver: &Driver, size: u64) -> Result<Handle> {
        self.admit(size)?;
        let handle = driver.create(size).inspect_err(|_| self.dismiss(size))?;
        // Only now: what the driver refused was never held.
        self.reserved_peak.fetch_max(self.reserved(), Ordering::Relaxed);
        Ok(handle)
    }

    /// Counts bytes as given back.
    fn dismiss(&self, size: u64) {
        self.own.give(size);
        if let Some(shared) = &self.shared {
            shared.give(size);
        }
    }

    fn admit(&self, size: u64) -> Result<()> {
        let refused = |why: String, remedy: &str| {
            let doing = format!("holding {size} bytes more than {}, {why}", self.reserved());
            Err(Error::new(Kind::Exhausted, doing).remedy(remedy))
        };
        if !self.own.take(size) {
            return refused(format!("with a limit of {}", self.limit()), "raise allocator.max_bytes");
        }
        if self.shared.as_ref().is_none_or(|shared| shared.take(size)) {
            return Ok(());
        }
        self.own.give(size);
        refused("with the process's budget spent".to_owned(), "raise the budget that the heaps share")
    }

    /// Gives all idle handles back to the driver. The bytes given back.
    pub(crate) fn release_idle(&self, driver: &Driver) -> Result<u64> {
        let pieces = std::mem::take(&mut *self.idle());
        let mut given = 0;
        let mut pieces = pieces.into_iter();
        while let Some((handle, size)) = pieces.next() {
            if let Err(e) = driver.release(handle) {
                // Refused, so nothing happened: it is still held.
                self.keep(std::iter::once((handle, size)).chain(pieces));
                return Err(e);
            }
            self.dismiss(size);
            given += size;
        }
        Ok(given)
    }
}
