//! Which lane serves a stream: a table that is read without a lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::lane::{Bounds, Lane};
use crate::error::{Error, Kind, Result};
use crate::gpu::Stream;

/// More streams than any program has; each costs 16 bytes here.
const SLOTS: usize = 4096;

struct Slot {
    /// The stream plus one; 0 is an empty slot.
    key: AtomicU64,
    lane: OnceLock<Box<Mutex<Lane>>>,
}

/// The lanes of a heap. Lanes are never removed.
pub(crate) struct Lanes {
    slots: Box<[Slot]>,
    /// Filled slots in the order of their filling.
    order: Mutex<Vec<usize>>,
    count: AtomicUsize,
    bounds: Bounds,
}

impl Lanes {
    pub(crate) fn new(bounds: Bounds) -> Lanes {
        let slot = || Slot { key: AtomicU64::new(0), lane: OnceLock::new() };
        Lanes {
            slots: (0..SLOTS).map(|_| slot()).collect(),
            order: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
            bounds,
        }
    }

    /// The lane of a stream, made if there is none.
    pub(crate) fn get(&self, stream: Stream) -> Result<&Mutex<Lane>> {
        let key = stream.0.wrapping_add(1);
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize;
        for _ in 0..SLOTS {
            let slot = &self.slots[at];
            let seen = slot.key.load(Ordering::Acquire);
            if seen == key {
                return Ok(slot.lane.get_or_init(|| Box::new(Mutex::new(Lane::new(stream, self.bounds)))));
            }
            if seen == 0 && self.fill(at, key) {
                continue;
            }
            if slot.key.load(Ordering::Acquire) != key {
                at = (at + 1) % SLOTS;
            }
        }
        Err(Error::new(Kind::Exhausted, format!("more than {SLOTS} streams allocate"))
            .remedy("reuse streams instead of making new ones"))
    }

    /// True when this call filled the slot.
    #[cold]
    fn fill(&self, at: usize, key: u64) -> bool {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = self.slots[at].key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if filled {
            order.push(at);
            self.count.store(order.len(), Ordering::Relaxed);
        }
        filled
    }

    /// How many lanes there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All lanes, oldest first.
    pub(crate) fn all(&self) -> Vec<&Mutex<Lane>> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        order.iter().filter_map(|&at| self.slots[at].lane.get().map(|b| &**b)).collect()
    }
}

/// A lane's lock. A thread that panicked while holding it left no half-done driver call behind: those return errors.
pub(crate) fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}
