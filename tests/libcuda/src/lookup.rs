//! `cuGetProcAddress`: how the CUDA runtime finds the driver's functions. The driver answers from a table of its own, so that
//! nobody can interpose what it hands out by interposing symbols; this one too.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use crate::contexts::put;
use crate::state::{Code, INVALID_VALUE, NOT_FOUND};

/// Names without a suffix mean the newest form the caller's version has.
const NEWEST: [(&str, &str); 10] = [
    ("cuMemAlloc", "cuMemAlloc_v2"),
    ("cuMemFree", "cuMemFree_v2"),
    ("cuMemGetInfo", "cuMemGetInfo_v2"),
    ("cuMemHostRegister", "cuMemHostRegister_v2"),
    ("cuMemGetAddressRange", "cuMemGetAddressRange_v2"),
    ("cuCtxPushCurrent", "cuCtxPushCurrent_v2"),
    ("cuCtxPopCurrent", "cuCtxPopCurrent_v2"),
    ("cuStreamBeginCapture", "cuStreamBeginCapture_v2"),
    ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"),
    ("cuGetProcAddress", "cuGetProcAddress_v2"),
];

macro_rules! table {
    ($($module:ident: $($name:ident),*;)*) => {
        fn own(name: &str) -> *mut c_void {
            match name {
                $($(stringify!($name) => crate::$module::$name as *mut c_void,)*)*
                "cuGetProcAddress_v2" => cuGetProcAddress_v2 as *mut c_void,
                _ => std::ptr::null_mut(),
            }
        }
    };
}

table! {
    contexts: cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceGetPCIBusId, cuDeviceGetAttribute, cuDeviceCanAccessPeer, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxGetState, cuCtxCreate_v2, cuCtxGetCurrent, cuCtxSetCurrent, cuCtxPushCurrent_v2, cuCtxPopCurrent_v2, cuCtxGetDevice, cuCtxSynchronize, cuCtxEnablePeerAccess, cuGetErrorName;
    streams: cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize, cuStreamBeginCapture_v2, cuStreamEndCapture, cuStreamIsCapturing, cuStreamWaitEvent, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventQuery, cuEventElapsedTime, cuModuleLoadData, cuModuleGetFunction, cuLaunchKernel;
    memory: cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2, cuMemGetAddressRange_v2, cuPointerGetAttribute, cuMemGetAllocationGranularity, cuMemAddressReserve, cuMemAddressFree, cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, cuMemSetAccess, cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemsetD8Async, cuMemcpyDtoDAsync_v2, cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemHostRegister_v2, cuMemHostUnregister;
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    _version: c_int,
    _flags: c_ulonglong,
    status: *mut c_int,
) -> Code {
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null; a C string by the driver's contract.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let found = own(NEWEST.iter().find(|n| n.0 == name).map_or(name, |n| n.1));
    if !status.is_null() {
        put(status, c_int::from(found.is_null()));
    }
    let answer = put(function, found);
    if found.is_null() { NOT_FOUND } else { answer }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Code {
    cuGetProcAddress_v2(name, function, version, flags, std::ptr::null_mut())
}
