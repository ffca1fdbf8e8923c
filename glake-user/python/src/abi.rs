//! The C ABI: the table of `adapter/glake_api.h`.
//!
//! Every function catches a panic, turns an error into a status and keeps its text for `last_error` of the same thread.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use glake::embed::{self, Mode, Process, imports};
use glake::error::{Error, Kind, Result};
use glake::gpu::Stream;
use glake::stitch::map::Use;
use glake::stitch::{self, Heap, stats::Level};

/// A `glake_status`.
pub(crate) type Status = u32;
const OK: Status = 0;
const OUT_OF_MEMORY: Status = 1;
const MISUSE: Status = 2;
const DEVICE_LOST: Status = 3;
const OFF: Status = 4;
const FAILED: Status = 5;

/// `GLAKE_API_VERSION`.
const VERSION: u32 = 1;

/// `glake_level`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct CLevel {
    current: u64,
    peak: u64,
    allocated: u64,
    freed: u64,
}

/// `glake_stats`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct CStats {
    allocated: CLevel,
    requested: CLevel,
    active: CLevel,
    reserved: CLevel,
    blocks: CLevel,
    remapped_bytes: u64,
    zombie_bytes: u64,
    largest_free: u64,
    free: u64,
    driver_calls: u64,
    driver_ns: u64,
    background_calls: u64,
    background_ns: u64,
    waits: u64,
    ooms: u64,
    ooms_avoided: u64,
    fallbacks: u64,
}

/// `glake_range`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CRange {
    address: u64,
    size: u64,
    requested: u64,
    stream: u64,
    state: u32,
    small_pool: u32,
}

type Visitor = unsafe extern "C" fn(*mut c_void, *const CRange);
type Pressure = unsafe extern "C" fn(*mut c_void, i32, u64) -> u64;

/// `glake_api`, field by field.
#[repr(C)]
pub struct Api {
    version: u32,
    size: u32,
    last_error: unsafe extern "C" fn(*mut c_char, usize) -> usize,
    open: extern "C" fn(i32) -> Status,
    allocate: unsafe extern "C" fn(i32, u64, u64, *mut u64, *mut u64) -> Status,
    free: extern "C" fn(i32, u64, u64) -> Status,
    record_stream: extern "C" fn(i32, u64, u64) -> Status,
    owns: extern "C" fn(u64) -> i32,
    find: unsafe extern "C" fn(u64, *mut u64, *mut u64, *mut i32) -> Status,
    pin: extern "C" fn(i32, u64) -> Status,
    unpin: extern "C" fn(i32, u64) -> Status,
    begin_capture: extern "C" fn(i32),
    end_capture: extern "C" fn(i32),
    trim: unsafe extern "C" fn(i32, *mut u64) -> Status,
    set_max_bytes: extern "C" fn(i32, u64) -> Status,
    on_pressure: unsafe extern "C" fn(i32, Pressure, *mut c_void) -> Status,
    enable_peer: extern "C" fn(i32, i32) -> Status,
    stats: unsafe extern "C" fn(i32, *mut CStats) -> Status,
    reset_peaks: extern "C" fn(i32),
    reset_accumulated: extern "C" fn(i32),
    ranges: unsafe extern "C" fn(i32, Visitor, *mut c_void) -> Status,
    export_block: unsafe extern "C" fn(i32, u64, *mut i32, *mut u64, u32, *mut u32, *mut u64) -> Status,
    import_block: unsafe extern "C" fn(i32, *const i32, *const u64, u32, *mut u64) -> Status,
    close_import: extern "C" fn(i32, u64) -> Status,
    say_once: unsafe extern "C" fn(*const c_char, *const c_char),
    reserved: extern "C" fn(i32) -> u64,
}

/// The table. Its address goes to the adapter.
pub static API: Api = Api {
    version: VERSION,
    size: size_of::<Api>() as u32,
    last_error,
    open,
    allocate,
    free,
    record_stream,
    owns,
    find,
    pin,
    unpin,
    begin_capture,
    end_capture,
    trim,
    set_max_bytes,
    on_pressure,
    enable_peer,
    stats,
    reset_peaks,
    reset_accumulated,
    ranges,
    export_block,
    import_block,
    close_import,
    say_once,
    reserved,
};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work`; what goes wrong becomes a status and this thread's text.
pub(crate) fn answer(work: impl FnOnce() -> Result<()>) -> Status {
    let (status, text) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return OK,
        Ok(Err(e)) => (status_of(&e), e.chain()),
        Err(_) => (FAILED, "GLake failed inside; this is a defect of GLake".to_owned()),
    };
    // A thread that is ending has no text any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    status
}

fn status_of(e: &Error) -> Status {
    if embed::is_forked() {
        return OFF;
    }
    match e.kind() {
        Kind::Exhausted => OUT_OF_MEMORY,
        Kind::Misuse | Kind::BadInput => MISUSE,
        Kind::Device => DEVICE_LOST,
        Kind::Missing => OFF,
        _ => FAILED,
    }
}

/// [`answer`] with the heap of a device.
fn on_heap(device: i32, work: impl FnOnce(&Heap) -> Result<()>) -> Status {
    answer(|| work(Process::get().heap(ordinal(device)?)?))
}

/// A device's number as the core has it.
pub(crate) fn ordinal(device: i32) -> Result<u32> {
    u32::try_from(device).map_err(|_| Error::new(Kind::BadInput, format!("GPU {device}")))
}

/// Writes to a place of the caller's.
///
/// # Safety
/// `place` is null or valid for a `T`.
unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, so valid by this function's own condition.
        unsafe { place.write(value) };
    }
}

unsafe extern "C" fn last_error(text: *mut c_char, n: usize) -> usize {
    let last = LAST.try_with(|last| last.borrow().clone()).unwrap_or_default();
    let copied = last.len().min(n.saturating_sub(1));
    if n > 0 && !text.is_null() {
        // SAFETY: the caller gives `n` bytes; `copied` is less.
        unsafe { std::ptr::copy_nonoverlapping(last.as_ptr(), text.cast(), copied) };
        // SAFETY: `copied` is below `n`.
        unsafe { text.add(copied).write(0) };
    }
    last.len()
}

extern "C" fn open(device: i32) -> Status {
    match embed::mode() {
        Ok((Mode::On, _)) if Process::get().config().enabled => {
            answer(|| Process::get().heap(ordinal(device)?).map(|_| ()))
        }
        _ => OFF,
    }
}

unsafe extern "C" fn allocate(
    device: i32,
    size: u64,
    stream: u64,
    address: *mut u64,
    rounded: *mut u64,
) -> Status {
    answer(|| {
        let block = Process::get().allocate(ordinal(device)?, size, Stream(stream))?;
        // SAFETY: places of the caller's, or null.
        unsafe { put(address, block.ptr) };
        // SAFETY: as above.
        unsafe { put(rounded, block.size) };
        Ok(())
    })
}

extern "C" fn free(device: i32, address: u64, stream: u64) -> Status {
    answer(|| Process::get().free(ordinal(device)?, address, Stream(stream)))
}

extern "C" fn record_stream(device: i32, address: u64, stream: u64) -> Status {
    on_heap(device, |heap| heap.record_stream(address, Stream(stream)))
}

extern "C" fn owns(address: u64) -> i32 {
    i32::from(embed::owns(address))
}

unsafe extern "C" fn find(address: u64, start: *mut u64, size: *mut u64, device: *mut i32) -> Status {
    answer(|| {
        let (gpu, found) = Process::get().find(address).ok_or_else(|| {
            Error::new(Kind::Misuse, format!("{address:#x} lies in no block of this process"))
        })?;
        // SAFETY: places of the caller's, or null.
        unsafe { put(start, found.start) };
        // SAFETY: as above.
        unsafe { put(size, found.requested) };
        // SAFETY: as above.
        unsafe { put(device, gpu as i32) };
        Ok(())
    })
}

extern "C" fn pin(device: i32, address: u64) -> Status {
    on_heap(device, |heap| heap.pin(address))
}

extern "C" fn unpin(device: i32, address: u64) -> Status {
    on_heap(device, |heap| heap.unpin(address))
}

extern "C" fn begin_capture(device: i32) {
    on_heap(device, |heap| {
        heap.begin_capture();
        Ok(())
    });
}

extern "C" fn end_capture(device: i32) {
    on_heap(device, |heap| {
        heap.end_capture();
        Ok(())
    });
}

unsafe extern "C" fn trim(device: i32, freed: *mut u64) -> Status {
    on_heap(device, |heap| {
        let bytes = heap.trim()?;
        // SAFETY: a place of the caller's, or null.
        unsafe { put(freed, bytes) };
        Ok(())
    })
}

extern "C" fn set_max_bytes(device: i32, bytes: u64) -> Status {
    answer(|| Process::get().set_limit(ordinal(device)?, bytes))
}

/// A caller's context, handed back to it as it came.
struct Context(*mut c_void);

// SAFETY: the pointer is only handed back to the function that came with it, which may be called from any thread (glake_api.h).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

unsafe extern "C" fn on_pressure(device: i32, ask: Pressure, context: *mut c_void) -> Status {
    let context = Context(context);
    on_heap(device, |heap| {
        let ask = move |wanted| {
            // SAFETY: the caller's own function and context, which it keeps valid for the process's life.
            unsafe { ask(context.get(), device, wanted) }
        };
        heap.on_pressure(Box::new(ask));
        Ok(())
    })
}

extern "C" fn enable_peer(device: i32, peer: i32) -> Status {
    answer(|| Process::get().enable_peer(ordinal(device)?, ordinal(peer)?))
}

fn level(level: Level) -> CLevel {
    CLevel { current: level.current, peak: level.peak, allocated: level.allocated, freed: level.freed }
}

fn counters(stats: &stitch::Stats) -> CStats {
    let (front, back) = (stats.foreground_total(), stats.background_total());
    CStats {
        allocated: level(stats.allocated),
        requested: level(stats.requested),
        active: level(stats.active),
        reserved: level(stats.reserved),
        blocks: level(stats.blocks),
        remapped_bytes: stats.remapped_bytes,
        zombie_bytes: stats.zombie_bytes,
        largest_free: stats.largest_free,
        free: stats.free,
        driver_calls: front.calls,
        driver_ns: front.ns,
        background_calls: back.calls,
        background_ns: back.ns,
        waits: stats.waits,
        ooms: stats.ooms,
        ooms_avoided: stats.ooms_avoided,
        fallbacks: Process::get().fallbacks(),
    }
}

unsafe extern "C" fn stats(device: i32, stats: *mut CStats) -> Status {
    on_heap(device, |heap| {
        let of = heap.stats();
        // SAFETY: a place of the caller's, or null.
        unsafe { put(stats, counters(&of)) };
        Ok(())
    })
}

extern "C" fn reset_peaks(device: i32) {
    on_heap(device, |heap| {
        heap.reset_peaks();
        Ok(())
    });
}

extern "C" fn reset_accumulated(device: i32) {
    on_heap(device, |heap| {
        heap.reset_accumulated();
        Ok(())
    });
}

unsafe extern "C" fn ranges(device: i32, visit: Visitor, context: *mut c_void) -> Status {
    on_heap(device, |heap| {
        let mut ranges = heap.map().ranges;
        ranges.sort_unstable_by_key(|r| r.start);
        for range in ranges {
            let state = match range.used {
                Use::Free => 0,
                Use::Allocated => 1,
                Use::Pending => 2,
                // No memory of its own there.
                Use::Zombie | Use::Lost => continue,
            };
            let range = CRange {
                address: range.start,
                size: range.size,
                requested: range.requested,
                stream: range.stream,
                state,
                small_pool: u32::from(range.small),
            };
            // SAFETY: the caller's own function and context; the range lives for the call. No lock is held.
            unsafe { visit(context, &raw const range) };
        }
        Ok(())
    })
}

unsafe extern "C" fn export_block(
    device: i32,
    address: u64,
    fds: *mut i32,
    sizes: *mut u64,
    room: u32,
    count: *mut u32,
    offset: *mut u64,
) -> Status {
    on_heap(device, |heap| {
        let shared = heap.share(address, room as usize)?;
        // SAFETY: a place of the caller's, or null.
        unsafe { put(count, shared.parts.len() as u32) };
        // SAFETY: as above.
        unsafe { put(offset, shared.offset) };
        for (i, (fd, size)) in shared.parts.into_iter().enumerate() {
            // SAFETY: the caller gives `room` places, and there are no more parts than that.
            unsafe { fds.add(i).write(fd.into_raw_fd()) };
            // SAFETY: as above.
            unsafe { sizes.add(i).write(size) };
        }
        Ok(())
    })
}

unsafe extern "C" fn import_block(
    device: i32,
    fds: *const i32,
    sizes: *const u64,
    count: u32,
    address: *mut u64,
) -> Status {
    answer(|| {
        let mut parts = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            // SAFETY: the caller gives `count` descriptors.
            let fd = unsafe { fds.add(i).read() };
            if fd < 0 {
                return Err(Error::new(Kind::BadInput, format!("importing descriptor {fd}")));
            }
            // SAFETY: the caller's descriptor is open for the length of this call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // SAFETY: the caller gives `count` sizes.
            parts.push((fd, unsafe { sizes.add(i).read() }));
        }
        let at = imports::import(Process::get().heap(ordinal(device)?)?.device(), &parts)?;
        // SAFETY: a place of the caller's, or null.
        unsafe { put(address, at) };
        Ok(())
    })
}

extern "C" fn close_import(_device: i32, address: u64) -> Status {
    answer(|| imports::close(address))
}

unsafe extern "C" fn say_once(key: *const c_char, line: *const c_char) {
    answer(|| {
        if key.is_null() || line.is_null() {
            return Err(Error::new(Kind::BadInput, "a line without a text"));
        }
        // SAFETY: not null; C strings by glake_api.h.
        let (key, line) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(line)) };
        embed::say_once(&key.to_string_lossy(), &line.to_string_lossy());
        Ok(())
    });
}

extern "C" fn reserved(device: i32) -> u64 {
    u32::try_from(device).map_or(0, |device| Process::get().reserved(device))
}

/// The text of this thread's last failure.
pub(crate) fn last_text() -> String {
    LAST.try_with(|last| last.borrow().clone()).unwrap_or_default()
}
