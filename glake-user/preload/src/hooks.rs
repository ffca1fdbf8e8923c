//! The driver's functions as the program sees them: served here, or passed on.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::transmute;

use crate::driver::{Code, Context, SUCCESS};
use crate::lookup::symbol_name;
use crate::{capture, lookup, serve};

/// CUDA_ERROR_NOT_FOUND of cuda.h: the driver has no such function.
const NO_DRIVER: Code = 500;

/// The driver's function behind the hook `$name`, called with the same arguments.
macro_rules! real {
    ($name:ident($($arg:expr),*): fn($($ty:ty),*)) => {{
        let address = lookup::behind(&lookup::real::$name, symbol_name!($name));
        if address.is_null() {
            NO_DRIVER
        } else {
            // SAFETY: the driver's function of that symbol, with the signature of cuda.h, which is the hook's own.
            let call = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> Code>(address) };
            // SAFETY: the program's own arguments, passed on as they came.
            unsafe { call($($arg),*) }
        }
    }};
}

/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> Code {
    if !address.is_null()
        && let Some(block) = serve::allocate(size)
    {
        // SAFETY: not null; a place for a CUdeviceptr by the driver's contract.
        unsafe { address.write(block) };
        return SUCCESS;
    }
    real!(cuMemAlloc_v2(address, size): fn(*mut u64, usize))
}

/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> Code {
    if let Some(code) = serve::free(address) {
        return code;
    }
    real!(cuMemFree_v2(address): fn(u64))
}

/// The driver would name one physical handle of a block; programs that ask mean the block.
///
/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(start: *mut u64, size: *mut usize, address: u64) -> Code {
    if let Some(block) = serve::block_of(address) {
        if !start.is_null() {
            // SAFETY: not null; a place for a CUdeviceptr by the driver's contract.
            unsafe { start.write(block.0) };
        }
        if !size.is_null() {
            // SAFETY: not null; a place for a size_t by the driver's contract.
            unsafe { size.write(block.1 as usize) };
        }
        return SUCCESS;
    }
    real!(cuMemGetAddressRange_v2(start, size, address): fn(*mut u64, *mut usize, u64))
}

/// CU_POINTER_ATTRIBUTE_RANGE_START_ADDR and _RANGE_SIZE of cuda.h.
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;

/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64) -> Code {
    if matches!(attribute, RANGE_START | RANGE_SIZE)
        && !data.is_null()
        && let Some(block) = serve::block_of(address)
    {
        // SAFETY: not null; for both attributes the driver's contract is a place for 64 bits.
        unsafe { data.cast::<u64>().write(if attribute == RANGE_START { block.0 } else { block.1 }) };
        return SUCCESS;
    }
    real!(cuPointerGetAttribute(data, attribute, address): fn(*mut c_void, c_uint, u64))
}

/// The driver opens a peer's classic memory; mapped memory must be opened range by range.
///
/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: Context, flags: c_uint) -> Code {
    let code = real!(cuCtxEnablePeerAccess(peer, flags): fn(Context, c_uint));
    if code == SUCCESS {
        serve::enable_peer(peer);
    }
    code
}

/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code {
    serve::forget(device);
    real!(cuDevicePrimaryCtxReset_v2(device): fn(c_int))
}

macro_rules! captures {
    ($begin:ident, $end:ident) => {
        /// # Safety
        /// As for the driver's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $begin(stream: *mut c_void, mode: c_uint) -> Code {
            // Before the call: from its return on, another thread's wait would break the capture.
            capture::begin();
            let code = real!($begin(stream, mode): fn(*mut c_void, c_uint));
            if code != SUCCESS {
                capture::end();
            }
            code
        }

        /// # Safety
        /// As for the driver's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $end(stream: *mut c_void, graph: *mut *mut c_void) -> Code {
            let code = real!($end(stream, graph): fn(*mut c_void, *mut *mut c_void));
            // Also where it failed: a broken capture is over.
            capture::end();
            code
        }
    };
}

captures!(cuStreamBeginCapture_v2, cuStreamEndCapture);
captures!(cuStreamBeginCapture_v2_ptsz, cuStreamEndCapture_ptsz);

/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Code {
    let code = real!(cuGetProcAddress(symbol, function, version, flags): fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong));
    if code == SUCCESS {
        lookup::replace(symbol, function, version, flags);
    }
    code
}

/// # Safety
/// As for the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> Code {
    let code = real!(cuGetProcAddress_v2(symbol, function, version, flags, status):
        fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_int));
    if code == SUCCESS {
        lookup::replace(symbol, function, version, flags);
    }
    code
}
