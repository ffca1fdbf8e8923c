//! The CUDA driver's functions, found at run time. Types come from cudarc; its own loader is not used, because it panics
//! where the library or a symbol is missing. Results are plain numbers here: an enum could not hold a code that a later
//! driver invents.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys as cu;

use crate::error::{Error, Kind, Result};

/// What every driver function answers: a CUresult as a number.
pub(crate) type Code = c_uint;

macro_rules! functions {
    ($($field:ident = $symbol:literal: ($($arg:ty),*);)*) => {
        /// The driver's functions.
        pub(crate) struct Functions { $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Code,)* }

        impl Functions {
            /// Finds every function in the library; names the first that is missing.
            fn find(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($field: {
                    let address = library.symbol($symbol)?;
                    // SAFETY: the symbol is the driver function of that name, whose C signature is the one in the
                    // table (CUDA's ABI for a symbol name never changes; new versions get a suffix).
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(address)
                    }
                },)* })
            }
        }
    };
}

functions! {
    init = c"cuInit": (c_uint);
    driver_version = c"cuDriverGetVersion": (*mut c_int);
    device_count = c"cuDeviceGetCount": (*mut c_int);
    device = c"cuDeviceGet": (*mut c_int, c_int);
    device_name = c"cuDeviceGetName": (*mut c_char, c_int, c_int);
    device_pci = c"cuDeviceGetPCIBusId": (*mut c_char, c_int, c_int);
    attribute = c"cuDeviceGetAttribute": (*mut c_int, c_uint, c_int);
    can_access_peer = c"cuDeviceCanAccessPeer": (*mut c_int, c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain": (*mut cu::CUcontext, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2": (c_int);
    context_push = c"cuCtxPushCurrent_v2": (cu::CUcontext);
    context_pop = c"cuCtxPopCurrent_v2": (*mut cu::CUcontext);
    mem_info = c"cuMemGetInfo_v2": (*mut usize, *mut usize);
    granularity = c"cuMemGetAllocationGranularity": (*mut usize, *const cu::CUmemAllocationProp, c_uint);
    reserve = c"cuMemAddressReserve": (*mut u64, usize, usize, u64, c_ulonglong);
    unreserve = c"cuMemAddressFree": (u64, usize);
    create = c"cuMemCreate": (*mut u64, usize, *const cu::CUmemAllocationProp, c_ulonglong);
    release = c"cuMemRelease": (u64);
    map = c"cuMemMap": (u64, usize, usize, u64, c_ulonglong);
    unmap = c"cuMemUnmap": (u64, usize);
    set_access = c"cuMemSetAccess": (u64, usize, *const cu::CUmemAccessDesc, usize);
    export = c"cuMemExportToShareableHandle": (*mut c_void, u64, c_uint, c_ulonglong);
    import = c"cuMemImportFromShareableHandle": (*mut u64, *mut c_void, c_uint);
    stream_create = c"cuStreamCreate": (*mut cu::CUstream, c_uint);
    stream_destroy = c"cuStreamDestroy_v2": (cu::CUstream);
    stream_synchronize = c"cuStreamSynchronize": (cu::CUstream);
    stream_is_capturing = c"cuStreamIsCapturing": (cu::CUstream, *mut c_uint);
    stream_wait = c"cuStreamWaitEvent": (cu::CUstream, cu::CUevent, c_uint);
    event_create = c"cuEventCreate": (*mut cu::CUevent, c_uint);
    event_record = c"cuEventRecord": (cu::CUevent, cu::CUstream);
    event_query = c"cuEventQuery": (cu::CUevent);
    event_destroy = c"cuEventDestroy_v2": (cu::CUevent);
    event_elapsed = c"cuEventElapsedTime": (*mut f32, cu::CUevent, cu::CUevent);
    fill = c"cuMemsetD8Async": (u64, u8, usize, cu::CUstream);
    copy = c"cuMemcpyDtoDAsync_v2": (u64, u64, usize, cu::CUstream);
    write = c"cuMemcpyHtoDAsync_v2": (u64, *const c_void, usize, cu::CUstream);
    read = c"cuMemcpyDtoHAsync_v2": (*mut c_void, u64, usize, cu::CUstream);
    alloc = c"cuMemAlloc_v2": (*mut u64, usize);
    free = c"cuMemFree_v2": (u64);
    host_register = c"cuMemHostRegister_v2": (*mut c_void, usize, c_uint);
    host_unregister = c"cuMemHostUnregister": (*mut c_void);
    error_name = c"cuGetErrorName": (c_uint, *mut *const c_char);
    module_load = c"cuModuleLoadData": (*mut cu::CUmodule, *const c_void);
    module_function = c"cuModuleGetFunction": (*mut cu::CUfunction, cu::CUmodule, *const c_char);
    launch = c"cuLaunchKernel": (
        cu::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, cu::CUstream, *mut *mut c_void,
        *mut *mut c_void
    );
}

/// A loaded library. Never unloaded: the driver starts threads that outlive any owner.
struct Library(*mut c_void);

impl Library {
    fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: the name is a C string; loading the driver's library runs its constructors, which is what a program
        // linked with it would do at start.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(last_error()) } else { Ok(Library(handle)) }
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle came from dlopen and is never closed; the name is a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("the driver has no {}", name.to_string_lossy()));
        }
        Ok(address)
    }
}

fn last_error() -> String {
    // SAFETY: dlerror has no precondition; its text is valid until the next dl call on this thread, and copied at once.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown dlopen error".to_owned();
    }
    // SAFETY: not null, so a C string by dlerror's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The driver, initialised. `Missing` where there is no driver or no GPU.
pub(crate) fn driver() -> Result<&'static Functions> {
    static DRIVER: OnceLock<Result<Functions, (Kind, String)>> = OnceLock::new();
    DRIVER.get_or_init(start).as_ref().map_err(|(kind, why)| {
        Error::new(*kind, format!("using the CUDA driver: {why}"))
            .remedy("install the NVIDIA driver (libcuda.so.1), or try with host memory in its place: GLAKE_DEVICE=host")
    })
}

fn start() -> Result<Functions, (Kind, String)> {
    let library = Library::open(c"libcuda.so.1").map_err(|e| (Kind::Missing, e))?;
    let functions = Functions::find(&library).map_err(|e| (Kind::Unsupported, e))?;
    // SAFETY: cuInit may be called any number of times, from any thread, with 0.
    let code = unsafe { (functions.init)(0) };
    if code == 0 {
        return Ok(functions);
    }
    Err((kind_of(code), format!("cuInit answered {}", name_of(&functions, code))))
}

/// The kind of an error code.
pub(crate) fn kind_of(code: Code) -> Kind {
    // Numbers: cuda.h, CUresult.
    match code {
        2 => Kind::Exhausted,
        100 | 101 | 35 => Kind::Missing,
        800 | 803 => Kind::Denied,
        801 | 500 => Kind::Unsupported,
        600 | 909 => Kind::TimedOut,
        1 | 102..=213 | 400..=499 | 900..=908 => Kind::Misuse,
        _ => Kind::Device,
    }
}

/// The driver's name of a code: "CUDA_ERROR_OUT_OF_MEMORY".
pub(crate) fn name_of(functions: &Functions, code: Code) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: `text` is a valid place for a pointer; the driver gives a static string or null.
    let known = unsafe { (functions.error_name)(code, &raw mut text) };
    if known != 0 || text.is_null() {
        return format!("CUDA error {code}");
    }
    // SAFETY: not null, and static by the driver's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_gets_an_error_not_a_panic() {
        if let Err(e) = driver() {
            assert!(matches!(e.kind(), Kind::Missing | Kind::Unsupported | Kind::Device), "{}", e.chain());
        }
    }

    #[test]
    fn codes_that_callers_tell_apart_have_their_kind() {
        assert_eq!(kind_of(2), Kind::Exhausted);
        assert_eq!(kind_of(801), Kind::Unsupported);
        assert_eq!(kind_of(600), Kind::TimedOut);
        assert_eq!(kind_of(700), Kind::Device);
        assert_eq!(kind_of(1), Kind::Misuse);
    }
}
