//! Memory: the classic allocator and the calls of virtual memory management, over the host GPU.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering;

use glake::error::Result;
use glake::gpu::{Device, Handle, Stream};

use crate::contexts::{current, put};
use crate::state::{
    ALLOCS, CAPTURE_UNSUPPORTED, CREATES, Code, FREES, Gpu, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED,
    SUCCESS, code, gpu, gpus, has_vmm, lock,
};
use crate::streams::any_capture;

const UNIT: u64 = 2 << 20;

/// A handle of the driver: the GPU's number above the host GPU's own.
fn outer(ordinal: u32, handle: Handle) -> u64 {
    (u64::from(ordinal) << 48) | handle.0
}

fn inner(handle: u64) -> Option<(&'static Gpu, Handle)> {
    Some((gpu(i32::try_from(handle >> 48).ok()?)?, Handle(handle & ((1 << 48) - 1))))
}

/// Tries the call on each GPU: address space belongs to the process, and only one of them made the reservation.
fn on_any(call: impl Fn(&Gpu) -> Result<()>) -> Code {
    let tried = gpus().iter().map(|g| code(call(g), |()| {}));
    tried.fold(INVALID_VALUE, |best, c| if best == SUCCESS { best } else { c })
}

fn classic(gpu: &Gpu, size: u64) -> Result<u64> {
    let size = size.next_multiple_of(UNIT);
    let handle = gpu.device.create(size)?;
    let address = gpu.device.reserve(size)?;
    gpu.device.map(address, size, handle)?;
    gpu.device.set_access(address, size)?;
    lock(&gpu.blocks).push((address, size, handle.0));
    Ok(address)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> Code {
    ALLOCS.fetch_add(1, Ordering::SeqCst);
    let Some(gpu) = current().and_then(gpu) else { return INVALID_CONTEXT };
    if any_capture() {
        return CAPTURE_UNSUPPORTED;
    }
    if size == 0 || address.is_null() {
        return INVALID_VALUE;
    }
    let mut made = 0;
    let answer = code(classic(gpu, size as u64), |a| made = a);
    if answer == SUCCESS { put(address, made) } else { answer }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFree_v2(address: u64) -> Code {
    FREES.fetch_add(1, Ordering::SeqCst);
    for gpu in gpus() {
        let mut blocks = lock(&gpu.blocks);
        if let Some(at) = blocks.iter().position(|b| b.0 == address) {
            let (address, size, handle) = blocks.remove(at);
            let undone = gpu.device.unmap(address, size).and_then(|()| gpu.device.unreserve(address, size));
            return code(undone.and_then(|()| gpu.device.release(Handle(handle))), |()| {});
        }
    }
    INVALID_VALUE
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    let Some(gpu) = current().and_then(gpu) else { return INVALID_CONTEXT };
    match gpu.device.memory() {
        Ok(memory) => put(free, memory.free as usize).max(put(total, memory.total as usize)),
        Err(_) => INVALID_VALUE,
    }
}

/// Names one block of the classic allocator, or one mapping: as the driver, never a whole stitched range.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAddressRange_v2(start: *mut u64, size: *mut usize, address: u64) -> Code {
    for gpu in gpus() {
        if let Some(b) = lock(&gpu.blocks).iter().find(|b| (b.0..b.0 + b.1).contains(&address)) {
            return put(start, b.0).max(put(size, b.1 as usize));
        }
    }
    put(start, address & !(UNIT - 1)).max(put(size, UNIT as usize))
}

/// Only what is asked for in tests: 2 the memory's type, 11 the range's start, 12 its size (cuda.h).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64) -> Code {
    let (mut start, mut size) = (0, 0);
    cuMemGetAddressRange_v2(&raw mut start, &raw mut size, address);
    match attribute {
        2 => put(data.cast::<c_uint>(), 2),
        11 => put(data.cast::<u64>(), start),
        12 => put(data.cast::<usize>(), size),
        _ => NOT_SUPPORTED,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAllocationGranularity(
    size: *mut usize,
    _properties: *const c_void,
    _which: c_uint,
) -> Code {
    if has_vmm() { put(size, UNIT as usize) } else { NOT_SUPPORTED }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    size: usize,
    _align: usize,
    _wish: u64,
    _flags: c_ulonglong,
) -> Code {
    let Some(gpu) = gpus().first() else { return INVALID_VALUE };
    let mut made = 0;
    let answer = code(gpu.device.reserve(size as u64), |a| made = a);
    if answer == SUCCESS { put(address, made) } else { answer }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAddressFree(address: u64, size: usize) -> Code {
    on_any(|g| g.device.unreserve(address, size as u64))
}

/// The location's id is the third word of the properties (cuda.h: type, requestedHandleTypes, location).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    properties: *const c_int,
    _flags: c_ulonglong,
) -> Code {
    if !has_vmm() || properties.is_null() {
        return NOT_SUPPORTED;
    }
    // SAFETY: the properties are a CUmemAllocationProp, which begins with four 32-bit words.
    let ordinal = unsafe { properties.add(3).read() };
    let Some(gpu) = gpu(ordinal) else { return INVALID_VALUE };
    CREATES.fetch_add(1, Ordering::SeqCst);
    let mut made = 0;
    let answer =
        code(gpu.device.create(size as u64), |h| made = outer(gpu.device.ordinal().max(ordinal as u32), h));
    if answer == SUCCESS { put(handle, made) } else { answer }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemRelease(handle: u64) -> Code {
    inner(handle).map_or(INVALID_VALUE, |(g, h)| code(g.device.release(h), |()| {}))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemMap(
    address: u64,
    size: usize,
    offset: usize,
    handle: u64,
    _flags: c_ulonglong,
) -> Code {
    if offset != 0 {
        // As the driver does.
        return NOT_SUPPORTED;
    }
    inner(handle).map_or(INVALID_VALUE, |(g, h)| code(g.device.map(address, size as u64, h), |()| {}))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemUnmap(address: u64, size: usize) -> Code {
    on_any(|g| g.device.unmap(address, size as u64))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemSetAccess(
    address: u64,
    size: usize,
    _access: *const c_void,
    _count: usize,
) -> Code {
    on_any(|g| g.device.set_access(address, size as u64))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemExportToShareableHandle(
    fd: *mut c_int,
    handle: u64,
    _type: c_uint,
    _flags: c_ulonglong,
) -> Code {
    let Some((gpu, handle)) = inner(handle) else { return INVALID_VALUE };
    let mut made = -1;
    let answer = code(gpu.device.export(handle), |f| made = f.into_raw_fd());
    if answer == SUCCESS { put(fd, made) } else { answer }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut u64,
    fd: *mut c_void,
    _type: c_uint,
) -> Code {
    let Some(gpu) = gpus().first() else { return INVALID_VALUE };
    let number = fd as usize as c_int;
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a number and a place for a stat; a number that is no descriptor gives an error.
    if unsafe { libc::fstat(number, stat.as_mut_ptr()) } != 0 {
        return INVALID_VALUE;
    }
    // SAFETY: zeroed, then filled by fstat; a stat of zeros is valid too.
    let size = unsafe { stat.assume_init() }.st_size as u64;
    // SAFETY: the caller's descriptor is open for the length of this call.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let mut made = 0;
    let answer = code(gpu.device.import(fd, size), |h| made = outer(0, h));
    if answer == SUCCESS { put(handle, made) } else { answer }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8Async(address: u64, byte: u8, size: usize, _stream: *mut c_void) -> Code {
    on_any(|g| g.device.fill(Stream(0), address, size as u64, byte))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, _stream: *mut c_void) -> Code {
    on_any(|g| g.device.copy(Stream(0), to, from, size as u64))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const u8,
    size: usize,
    _stream: *mut c_void,
) -> Code {
    // SAFETY: the caller gives `size` readable bytes, by the driver's contract.
    let bytes = unsafe { std::slice::from_raw_parts(from, size) };
    on_any(|g| g.device.write(Stream(0), to, bytes))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut u8,
    from: u64,
    size: usize,
    _stream: *mut c_void,
) -> Code {
    let Some(gpu) = gpus().first() else { return INVALID_VALUE };
    // SAFETY: the caller gives `size` writable bytes, by the driver's contract.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to, size) };
    code(gpu.device.read(Stream(0), from, bytes), |()| {})
}

/// Ranges registered: where, and how long.
static REGISTERED: std::sync::Mutex<Vec<(usize, usize)>> = std::sync::Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostRegister_v2(at: *mut c_void, size: usize, _flags: c_uint) -> Code {
    let (start, mut registered) = (at as usize, lock(&REGISTERED));
    if start == 0 || size == 0 || registered.iter().any(|(a, s)| start < a + s && *a < start + size) {
        return INVALID_VALUE;
    }
    registered.push((start, size));
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostUnregister(at: *mut c_void) -> Code {
    let mut registered = lock(&REGISTERED);
    match registered.iter().position(|r| r.0 == at as usize) {
        Some(i) => {
            registered.remove(i);
            SUCCESS
        }
        None => INVALID_VALUE,
    }
}
