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
    /// Bytes held from the driver. Only `admit` adds, before the driver is asked.
    reserved: AtomicU64,
    reserved_peak: AtomicU64,
    /// `u64::MAX`: no limit but the device's.
    limit: AtomicU64,
    budget: Option<Budget>,
}

impl Depot {
    pub(crate) fn new(limit: Option<u64>, budget: Option<Budget>) -> Depot {
        Depot {
            idle: Mutex::new(Vec::new()),
            reserved: AtomicU64::new(0),
            reserved_peak: AtomicU64::new(0),
            limit: AtomicU64::new(limit.unwrap_or(u64::MAX)),
            budget,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Piece>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    pub(crate) fn reserved_peak(&self) -> u64 {
        self.reserved_peak.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.reserved_peak.store(self.reserved(), Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes that the limit still leaves.
    pub(crate) fn headroom(&self) -> u64 {
        let shared = self.budget.as_ref().map_or(u64::MAX, Budget::left);
        self.limit().saturating_sub(self.reserved()).min(shared)
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
        self.reserved.fetch_sub(size, Ordering::Relaxed);
        if let Some(budget) = &self.budget {
            budget.give(size);
        }
    }

    fn admit(&self, size: u64) -> Result<()> {
        let limit = self.limit();
        let add = |held: u64| held.checked_add(size).filter(|sum| *sum <= limit);
        match self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) if self.budget.as_ref().is_none_or(|b| b.take(size)) => Ok(()),
            Ok(held) => {
                self.reserved.fetch_sub(size, Ordering::Relaxed);
                let doing = format!("holding {size} bytes more than {held}, with the process's budget spent");
                Err(Error::new(Kind::Exhausted, doing).remedy("raise the budget that the heaps share"))
            }
            Err(held) => {
                let doing = format!("holding {size} bytes more than {held}, with a limit of {limit}");
                Err(Error::new(Kind::Exhausted, doing).remedy("raise allocator.max_bytes"))
            }
        }
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
