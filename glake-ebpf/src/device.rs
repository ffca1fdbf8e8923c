//! Block devices become small numbers, and their operations counters.

use crate::{
    atomic::Word,
    context::{Kernel, param, shard},
    maps::{BLOCKS, DEVICE_BLOCKS, DEVICES, Place, STATS, count, place},
};
use glake_common::{block::Counters, member::*, param, stat};

/// The place of a disk.
#[inline(always)]
pub fn of_disk(disk: Kernel) -> Option<Place> {
    if disk.is_null() {
        return None;
    }
    of_number(disk.u32(DISK_MAJOR), disk.u32(DISK_MINOR))
}

/// The place of a device number.
#[inline(always)]
pub fn of_number(major: u32, minor: u32) -> Option<Place> {
    // Major 0 is no device; the key is never 0.
    let key = (u64::from(major) << 32) | (u64::from(minor) << 1) | 1;
    let found = place(&DEVICES, param(param::DEVICE_MASK), key);
    if found.is_none() {
        count(stat::DEVICES_FULL);
    }
    found
}

/// The counters of an operation on a device, this CPU's copy.
#[inline(always)]
pub fn counters(device: Place, op: u32) -> Option<*mut Counters> {
    let slot = Word::of(DEVICE_BLOCKS.get_ptr_mut(device.index() * 8 + op)?);
    let block = match slot.load() {
        0 => claim(slot),
        taken => taken,
    };
    if block == 0 { None } else { BLOCKS.get_ptr_mut(shard(block as u32 - 1)) }
}

/// Takes the next free block; 0: none is left. Two CPUs may race: the loser's block is wasted, which the pool allows for.
#[inline(never)]
fn claim(slot: Word) -> u64 {
    let Some(stats) = STATS.get_ptr_mut(0) else { return 0 };
    // SAFETY: the index is below the length.
    let next = Word::of(unsafe { &raw mut (*stats)[stat::BLOCKS_TAKEN] }).next();
    if next >= u64::from(param(param::BLOCKS)) {
        count(stat::DEVICES_FULL);
        return 0;
    }
    match slot.claim(next + 1) {
        0 => next + 1,
        other => other,
    }
}
