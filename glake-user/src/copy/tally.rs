//! What this process has copied: finished copies by GPU, direction and way.

use std::sync::{Mutex, PoisonError};

use super::job::Moved;
use super::route::Way;
use crate::events::heaps::{Copies, Direction, Route};

static TALLY: Mutex<Vec<Copies>> = Mutex::new(Vec::new());

/// Counts a finished copy.
pub(super) fn count(pci: Option<String>, direction: Direction, way: Way, moved: &Moved) {
    let route = match way {
        _ if moved.relayed > 0 => Route::MultiPath,
        Way::PageCache => Route::PageCache,
        Way::Disk => Route::Disk,
        Way::Plain => Route::Plain,
    };
    let one = Copies { pci, direction, route, ..Copies::default() };
    let ns = u64::try_from(moved.elapsed.as_nanos()).unwrap_or(u64::MAX);
    let slot = glake_common::hist::slot(ns);
    let mut tally = TALLY.lock().unwrap_or_else(PoisonError::into_inner);
    let index = tally.iter().position(|t| t.is_like(&one)).unwrap_or_else(|| {
        tally.push(one);
        tally.len() - 1
    });
    let copies = &mut tally[index];
    copies.bytes += moved.bytes;
    copies.duration.sum_ns = copies.duration.sum_ns.saturating_add(ns);
    if copies.duration.slots.len() <= slot {
        copies.duration.slots.resize(slot + 1, 0);
    }
    copies.duration.slots[slot] += 1;
}

/// What was counted so far.
pub fn tally() -> Vec<Copies> {
    TALLY.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
