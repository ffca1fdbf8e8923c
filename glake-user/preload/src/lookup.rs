//! The names that are hooked, and `cuGetProcAddress`, through which the CUDA runtime asks for them.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{driver, hooks, start};

/// One hooked function of the driver.
pub(crate) struct Hook {
    /// The driver's symbol.
    pub(crate) symbol: &'static CStr,
    /// The name `cuGetProcAddress` knows it by, and the CUDA version from which that name means this form.
    base: &'static str,
    since: c_int,
    /// For callers whose default stream is one per thread.
    per_thread: bool,
    pub(crate) ours: *mut c_void,
    real: &'static AtomicPtr<c_void>,
}

/// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM of cuda.h.
const PER_THREAD: c_ulonglong = 2;

/// A function's name as a C string.
macro_rules! symbol_name {
    ($name:ident) => {
        const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        }
    };
}
pub(crate) use symbol_name;

macro_rules! hooks {
    ($($name:ident: $base:literal, $since:literal, $per_thread:literal;)*) => {
        /// The driver's own functions behind the hooks, once somebody asked for them.
        #[expect(non_upper_case_globals, reason = "named as the driver names them")]
        pub(crate) mod real {
            use super::{AtomicPtr, c_void, null_mut};
            $(pub(crate) static $name: AtomicPtr<c_void> = AtomicPtr::new(null_mut());)*
        }

        fn each<T>(mut wanted: impl FnMut(&Hook) -> Option<T>) -> Option<T> {
            $(if let Some(found) = wanted(&Hook {
                symbol: symbol_name!($name), base: $base, since: $since, per_thread: $per_thread,
                ours: hooks::$name as *mut c_void, real: &real::$name,
            }) {
                return Some(found);
            })*
            None
        }
    };
}

// Versions: the release of CUDA whose cuda.h maps the plain name to this symbol.
hooks! {
    cuMemAlloc_v2: "cuMemAlloc", 3020, false;
    cuMemFree_v2: "cuMemFree", 3020, false;
    cuMemGetAddressRange_v2: "cuMemGetAddressRange", 3020, false;
    cuPointerGetAttribute: "cuPointerGetAttribute", 4000, false;
    cuCtxEnablePeerAccess: "cuCtxEnablePeerAccess", 4000, false;
    cuDevicePrimaryCtxReset_v2: "cuDevicePrimaryCtxReset", 11000, false;
    cuStreamBeginCapture_v2: "cuStreamBeginCapture", 10010, false;
    cuStreamBeginCapture_v2_ptsz: "cuStreamBeginCapture", 10010, true;
    cuStreamEndCapture: "cuStreamEndCapture", 10000, false;
    cuStreamEndCapture_ptsz: "cuStreamEndCapture", 10000, true;
    cuGetProcAddress: "cuGetProcAddress", 11030, false;
    cuGetProcAddress_v2: "cuGetProcAddress", 12000, false;
}

impl Hook {
    fn copy(&self) -> Hook {
        Hook { symbol: self.symbol, base: self.base, ..*self }
    }

    /// Ours in place of `real`. `real` itself where another address already stands behind the hook: two drivers, or a shim
    /// beside the driver, and one hook can call only one of them.
    pub(crate) fn stand_in(&self, real: *mut c_void) -> *mut c_void {
        start::once();
        if real == self.ours {
            // A driver whose own table was bound to us by name. Its function is found by `real` when it is needed.
            return real;
        }
        let behind = self.real.compare_exchange(null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
        match behind {
            Err(other) if other != real => real,
            _ => self.ours,
        }
    }
}

/// The hook of a driver symbol.
pub(crate) fn symbol(name: &[u8]) -> Option<Hook> {
    if !name.starts_with(b"cu") {
        return None;
    }
    each(|hook| (hook.symbol.to_bytes() == name).then(|| hook.copy()))
}

/// The driver's function behind a hook, or null where it has none.
pub(crate) fn behind(real: &AtomicPtr<c_void>, symbol: &CStr) -> *mut c_void {
    let known = real.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // The program is linked with the driver, so nobody looked the symbol up through us.
    let found = driver::symbol(symbol);
    real.store(found, Ordering::Release);
    found
}

/// Puts our function in the place of what the driver answered for `name`.
pub(crate) fn replace(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong) {
    if name.is_null() || function.is_null() {
        return;
    }
    // SAFETY: not null; a C string by cuGetProcAddress' contract.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    // SAFETY: the driver just wrote its answer there.
    let real = unsafe { *function };
    if real.is_null() {
        return;
    }
    // Functions without a per-thread form have one form only.
    let per_thread = flags & PER_THREAD != 0 && has_per_thread(name);
    let mut best: Option<Hook> = None;
    each::<()>(|hook| {
        let fits = hook.base == name && version >= hook.since && hook.per_thread == per_thread;
        if fits && best.as_ref().is_none_or(|b| b.since < hook.since) {
            best = Some(hook.copy());
        }
        None
    });
    if let Some(hook) = best {
        // SAFETY: the place is the caller's, and holds a function pointer.
        unsafe { *function = hook.stand_in(real) };
    }
}

fn has_per_thread(name: &str) -> bool {
    each(|hook| (hook.base == name && hook.per_thread).then_some(())).is_some()
}
