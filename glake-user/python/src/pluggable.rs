//! The functions of torch's plain interface for foreign allocators, found in this library by name. It can be told of no failure:
//! what goes wrong is said once.

use std::ffi::c_void;

use glake::embed::{self, Process};
use glake::error::{Error, Kind, Result};
use glake::gpu::Stream;

use crate::abi::{answer, last_text, ordinal};

fn or_say(key: &str, work: impl FnOnce() -> Result<()>) {
    if answer(work) != 0 {
        embed::say_once(key, &last_text());
    }
}

/// Memory, or null where there is none (torch has no other way to be told).
#[unsafe(no_mangle)]
pub extern "C" fn glake_malloc(size: isize, device: i32, stream: *mut c_void) -> *mut c_void {
    let mut address = 0_u64;
    or_say("pluggable-oom", || {
        let size = u64::try_from(size).unwrap_or(0);
        address = Process::get().allocate(ordinal(device)?, size, Stream(stream as u64))?.ptr;
        Ok(())
    });
    address as *mut c_void
}

/// The other half of [`glake_malloc`].
#[unsafe(no_mangle)]
pub extern "C" fn glake_free(address: *mut c_void, _size: isize, device: i32, stream: *mut c_void) {
    if !address.is_null() {
        let stream = Stream(stream as u64);
        or_say("pluggable-free", || Process::get().free(ordinal(device)?, address as u64, stream));
    }
}

/// The block at `address` is used by work in `stream` too.
#[unsafe(no_mangle)]
pub extern "C" fn glake_record_stream(address: *mut c_void, stream: *mut c_void) {
    or_say("pluggable-record", || {
        let device = Process::get().device_of(address as u64);
        let device =
            device.ok_or_else(|| Error::new(Kind::Misuse, format!("{address:?} is in no heap of GLake")))?;
        Process::get().heap(device)?.record_stream(address as u64, Stream(stream as u64))
    });
}

/// Gives the memory that nobody uses back to the driver, on every GPU.
#[unsafe(no_mangle)]
pub extern "C" fn glake_empty_cache() {
    or_say("pluggable-empty", || {
        for device in Process::get().gpus() {
            Process::get().heap(device)?.trim()?;
        }
        Ok(())
    });
}
