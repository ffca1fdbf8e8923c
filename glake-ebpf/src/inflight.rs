//! Requests in flight, in sets of four. Nothing is evicted: a full set is a counted drop.

use crate::{
    atomic::Word,
    context::param,
    maps::{SLOTS, count},
};
use glake_common::{
    block::{SLOT_WAYS, Slot, SlotSet},
    param, stat, table,
};

#[inline(always)]
fn set(hash: u64) -> Option<*mut SlotSet> {
    SLOTS.get_ptr_mut(table::set_of(hash, param(param::SLOT_MASK)))
}

#[inline(always)]
fn key_of(set: *mut SlotSet, way: usize) -> Word {
    // SAFETY: `way` is below SLOT_WAYS.
    Word::of(unsafe { &raw mut (*set)[way].key })
}

/// Keeps a request. `hash` is a number of the key's choice that is the same at its end. Gives whether it took over the place
/// of an earlier one whose end was not seen.
#[inline(always)]
pub fn put(key: u64, hash: u64, slot: Slot) -> bool {
    let Some(set) = set(hash) else { return false };
    let mut way = 0;
    while way < SLOT_WAYS {
        let taken = key_of(set, way);
        let seen = taken.load();
        if seen == key || (seen == 0 && taken.claim(key) == 0) {
            // SAFETY: claimed by the exchange above; nobody else looks for this key before the request moves on.
            unsafe {
                (*set)[way].start_ns = slot.start_ns;
                (*set)[way].issue_ns = slot.issue_ns;
                (*set)[way].cell = slot.cell;
                (*set)[way].bytes = slot.bytes;
            }
            return seen == key;
        }
        way += 1;
    }
    count(stat::BLOCK_SLOTS_FULL);
    false
}

/// The slot of a request in flight.
#[inline(always)]
pub fn find(key: u64, hash: u64) -> Option<*mut Slot> {
    let set = set(hash)?;
    let mut way = 0;
    while way < SLOT_WAYS {
        if key_of(set, way).load() == key {
            // SAFETY: `way` is below SLOT_WAYS.
            return Some(unsafe { &raw mut (*set)[way] });
        }
        way += 1;
    }
    None
}

/// Takes a request out; all 0 if it was not kept.
#[inline(always)]
pub fn take(key: u64, hash: u64) -> Slot {
    let mut taken = Slot::default();
    if let Some(slot) = find(key, hash) {
        // SAFETY: the slot belongs to this request until its key is cleared, which comes last.
        unsafe {
            taken = *slot;
            Word::of(&raw mut (*slot).key).store(0);
        }
    }
    taken
}
