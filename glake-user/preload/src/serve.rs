//! What GLake serves: plain device memory of 2 MiB and more, in the primary context, outside of captures.
//!
//! `cuMemFree` names no stream and waits for the device; programs rely on both. So a block is given back only after that wait,
//! and whatever lies free is idle: the heap's one stream here is GLake's own and never busy.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use glake::embed::{self, Process};
use glake::error::{Kind, Result};
use glake::stitch::Block;

use crate::driver::{self, Code, Context, SUCCESS};
use crate::{capture, start};

/// Below this the driver packs blocks itself, 2 MiB being its unit; there is nothing to gain.
const SMALLEST: usize = 2 << 20;

thread_local! {
    /// Set while GLake works on this thread: its own calls go to the driver.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Blocks freed during a capture, when nothing may be waited for: device and address.
static LATER: Mutex<Vec<(c_int, u64)>> = Mutex::new(Vec::new());

/// Runs `work` unless this thread is already inside GLake, is ending, or `work` panics.
fn guarded<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    let entered = INSIDE.try_with(|inside| !inside.replace(true)).unwrap_or(false);
    if !entered {
        return None;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    let _ = INSIDE.try_with(|inside| inside.set(false));
    result.unwrap_or_else(|_| {
        embed::fell_back("the preload library failed inside");
        None
    })
}

/// A block for the current device, or `None`: the driver shall serve it.
pub(crate) fn allocate(size: usize) -> Option<u64> {
    if size < SMALLEST || capture::any() || !start::is_on() || embed::is_forked() {
        return None;
    }
    guarded(|| {
        let device = driver::calls()?.primary_device()?;
        free_later_ones();
        match take(u32::try_from(device).ok()?, size as u64) {
            Ok(block) => Some(block.ptr),
            // The driver may have what GLake's limit does not allow, and it knows the program's own words for "no".
            Err(e) if e.kind() == Kind::Exhausted => None,
            Err(e) => {
                embed::fell_back(&e.chain());
                None
            }
        }
    })
}

fn take(device: u32, size: u64) -> Result<Block> {
    let process = Process::get();
    process.allocate(device, size, process.idle_stream(device)?)
}

/// Gives a block back; `None`: it is not GLake's.
pub(crate) fn free(address: u64) -> Option<Code> {
    if address == 0 || !embed::owns(address) {
        return None;
    }
    guarded(|| {
        let process = Process::get();
        let device = process.device_of(address)?;
        let device = c_int::try_from(device).ok()?;
        if capture::any() {
            later().push((device, address));
            return Some(SUCCESS);
        }
        let code = driver::calls()?.wait_for(device);
        // After a failed wait the device's work is unknown: the memory is not given to anybody else.
        if code == SUCCESS {
            give_back(device, address);
        }
        Some(code)
    })
}

fn give_back(device: c_int, address: u64) {
    let process = Process::get();
    let Ok(device) = u32::try_from(device) else { return };
    // A pointer that is no block any more was freed twice: the driver answers that with an error, we keep still.
    let _ = process.idle_stream(device).and_then(|idle| process.free(device, address, idle));
}

fn later() -> std::sync::MutexGuard<'static, Vec<(c_int, u64)>> {
    LATER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees what was freed during a capture that is over now.
fn free_later_ones() {
    let blocks = std::mem::take(&mut *later());
    let Some(calls) = driver::calls().filter(|_| !blocks.is_empty()) else { return };
    for (device, address) in blocks {
        if calls.wait_for(device) == SUCCESS {
            give_back(device, address);
        }
    }
}

/// Start and size of the block that holds `address`, if it is GLake's.
pub(crate) fn block_of(address: u64) -> Option<(u64, u64)> {
    if address == 0 || !embed::owns(address) {
        return None;
    }
    guarded(|| Process::get().find(address).map(|(_, found)| (found.start, found.requested)))
}

/// The current device was allowed to use the memory of `peer`'s device.
pub(crate) fn enable_peer(peer: Context) {
    guarded(|| {
        let calls = driver::calls()?;
        let here = calls.primary_device()?;
        let there = calls.device_of(peer)?;
        Process::get().enable_peer(u32::try_from(there).ok()?, u32::try_from(here).ok()?).ok()
    });
}

/// The program resets the device: its memory is gone, ours with it.
pub(crate) fn forget(device: c_int) {
    guarded(|| {
        Process::get().abandon(u32::try_from(device).ok()?);
        Some(())
    });
}
