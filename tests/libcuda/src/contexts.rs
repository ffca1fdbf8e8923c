//! Devices, contexts and what they are like.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use glake::gpu::Device;

use crate::state::{
    ALLOCS, CREATES, Code, FREES, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, SUCCESS, SYNCHRONIZES, gpu,
    gpus, has_vmm,
};

/// A context is a number: its device in the low byte, plus one; made ones carry a serial above it.
type Context = *mut c_void;

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

fn primary(device: c_int) -> usize {
    usize::try_from(device).unwrap_or(0) + 1
}

/// The device of the thread's current context.
pub(crate) fn current() -> Option<c_int> {
    STACK.with_borrow(|stack| stack.last().map(|c| (c & 0xff) as c_int - 1)).filter(|d| *d >= 0)
}

/// Writes through a pointer of the caller; a null one is a wrong value, as with the driver.
pub(crate) fn put<T>(place: *mut T, value: T) -> Code {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and by the driver's contract a valid place for a T.
    unsafe { place.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuInit(_flags: c_uint) -> Code {
    if gpus().is_empty() { 100 } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    put(version, 13_000)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    put(count, gpus().len() as c_int)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    if gpu(ordinal).is_some() { put(device, ordinal) } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Code {
    let Some(gpu) = gpu(device) else { return INVALID_DEVICE };
    let text = gpu.device.name();
    let room = usize::try_from(length).unwrap_or(0);
    if name.is_null() || room == 0 {
        return INVALID_VALUE;
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the caller gives `length` bytes at `name`; at most that many are written, the zero included.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), name.cast(), bytes.len()) };
    // SAFETY: within the same `length` bytes.
    unsafe { name.add(bytes.len()).write(0) };
    SUCCESS
}

/// This machine's GPUs sit in no PCI slot.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetPCIBusId(_text: *mut c_char, _length: c_int, _device: c_int) -> Code {
    crate::state::NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> Code {
    if gpu(device).is_none() {
        return INVALID_DEVICE;
    }
    // Numbers of cuda.h: 102 virtual memory management, 103 POSIX descriptors.
    put(
        value,
        match attribute {
            102 | 103 => c_int::from(has_vmm()),
            _ => 0,
        },
    )
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceCanAccessPeer(value: *mut c_int, _device: c_int, _peer: c_int) -> Code {
    put(value, 1)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int) -> Code {
    if gpu(device).is_some() { put(context, primary(device) as Context) } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxReset_v2(_device: c_int) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxGetState(
    _device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Code {
    put(flags, 0).max(put(active, 1))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxCreate_v2(context: *mut Context, _flags: c_uint, device: c_int) -> Code {
    if gpu(device).is_none() {
        return INVALID_DEVICE;
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) as usize;
    let made = (serial << 8) | primary(device);
    STACK.with_borrow_mut(|stack| stack.push(made));
    put(context, made as Context)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetCurrent(context: *mut Context) -> Code {
    put(context, STACK.with_borrow(|s| s.last().copied().unwrap_or(0)) as Context)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSetCurrent(context: Context) -> Code {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if !context.is_null() {
            stack.push(context as usize);
        }
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxPushCurrent_v2(context: Context) -> Code {
    STACK.with_borrow_mut(|stack| stack.push(context as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxPopCurrent_v2(context: *mut Context) -> Code {
    match STACK.with_borrow_mut(Vec::pop) {
        Some(old) if !context.is_null() => put(context, old as Context),
        Some(_) => SUCCESS,
        None => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Code {
    current().map_or(INVALID_CONTEXT, |d| put(device, d))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSynchronize() -> Code {
    SYNCHRONIZES.fetch_add(1, Ordering::SeqCst);
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxEnablePeerAccess(_peer: Context, _flags: c_uint) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorName(error: c_uint, text: *mut *const c_char) -> Code {
    let name = match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        _ => return INVALID_VALUE,
    };
    put(text, name.as_ptr())
}

/// How often the classic allocator was asked, and memory made: allocs, frees, synchronizes, cuMemCreates.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_counts(counts: *mut u64) {
    for (i, counter) in [&ALLOCS, &FREES, &SYNCHRONIZES, &CREATES].into_iter().enumerate() {
        // SAFETY: the caller gives room for four numbers.
        unsafe { counts.add(i).write(counter.load(Ordering::SeqCst)) };
    }
}
