//! Block devices become small numbers, and their operations counters.

use crate::{
    atomic::Word,
    context::{Kernel, param, shard},
    maps::{BLOCKS, DEVICE_BLOCKS, DEVICES, STATS, count, place},
};
use glake_common::{block::Counters, member::*, param, stat};

/// The index of a disk.
#[inline(always)]
pub fn of_disk(disk: Kernel) -> Option<u32> {
    if disk.is_null() {
        return None;
    }
    of_number(disk.u32(DISK_MAJOR), disk.u32(DISK_MINOR))
}

/// The index of a device number.
#[inline(always)]
pub fn of_number(major: u32, minor: u32) -> Option<u32> {
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
pub fn counters(device: u32, op: u32) -> Option<*mut Counters> {
    let slot = Word::of(DEVICE_BLOCKS.get_ptr_mut(device * 8 + op)?);
    let mut block = slot.load();
    if block == 0 {
        block = claim(slot)?;
    }
    BLOCKS.get_ptr_mut(shard(block as u32 - 1))
}

/// Takes the next free block. Two CPUs may race: the loser's block is wasted, which the pool allows for.
#[inline(never)]
fn claim(slot: Word) -> Option<u64> {
    let stats = STATS.get_ptr_mut(0)?;
    // SAFETY: the index is below the length.
    let next = Word::of(unsafe { &raw mut (*stats)[stat::BLOCKS_TAKEN] }).next();
    if next >= u64::from(param(param::BLOCKS)) {
        count(stat::DEVICES_FULL);
        return None;
    }
    match slot.claim(next + 1) {
        0 => Some(next + 1),
        other => Some(other),
    }
}
