//! Streams and events: work is done at once, so every event is done. Captures are kept, because allocators must know them.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::contexts::put;
use crate::state::{CAPTURE_UNSUPPORTED, Code, INVALID_VALUE, SUCCESS, lock};

type Opaque = *mut c_void;

static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
static CAPTURING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Whether any stream is being captured: then the classic allocator refuses, as in the driver's global mode.
pub(crate) fn any_capture() -> bool {
    !lock(&CAPTURING).is_empty()
}

fn make(place: *mut Opaque) -> Code {
    put(place, NEXT.fetch_add(0x10, Ordering::Relaxed) as Opaque)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamCreate(stream: *mut Opaque, _flags: c_uint) -> Code {
    make(stream)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamDestroy_v2(_stream: Opaque) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamSynchronize(_stream: Opaque) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamBeginCapture_v2(stream: Opaque, _mode: c_uint) -> Code {
    lock(&CAPTURING).push(stream as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamEndCapture(stream: Opaque, graph: *mut Opaque) -> Code {
    let mut capturing = lock(&CAPTURING);
    let Some(at) = capturing.iter().position(|s| *s == stream as usize) else { return INVALID_VALUE };
    capturing.remove(at);
    drop(capturing);
    make(graph)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamIsCapturing(stream: Opaque, status: *mut c_uint) -> Code {
    put(status, c_uint::from(lock(&CAPTURING).contains(&(stream as usize))))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamWaitEvent(_stream: Opaque, _event: Opaque, _flags: c_uint) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventCreate(event: *mut Opaque, _flags: c_uint) -> Code {
    make(event)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventDestroy_v2(_event: Opaque) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventRecord(_event: Opaque, stream: Opaque) -> Code {
    if lock(&CAPTURING).contains(&(stream as usize)) { CAPTURE_UNSUPPORTED } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventQuery(_event: Opaque) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventElapsedTime(ms: *mut f32, _from: Opaque, _to: Opaque) -> Code {
    put(ms, 0.0)
}

// Kernels cannot be run here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuModuleLoadData(_module: *mut Opaque, _image: *const c_void) -> Code {
    crate::state::NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuModuleGetFunction(
    _function: *mut Opaque,
    _module: Opaque,
    _name: *const i8,
) -> Code {
    crate::state::NOT_FOUND
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuLaunchKernel() -> c_int {
    crate::state::NOT_SUPPORTED as c_int
}
