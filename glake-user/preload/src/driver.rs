//! The driver's own functions that the hooks need.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::dlsym;

/// CUresult.
pub(crate) type Code = c_uint;
pub(crate) const SUCCESS: Code = 0;

/// A CUcontext.
pub(crate) type Context = *mut c_void;

/// The driver's library if the process has it; never loads it.
fn library() -> *mut c_void {
    // SAFETY: a C string; NOLOAD runs no constructor. The reference it adds is wanted: the driver stays.
    unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
}

/// Whether the process has the driver loaded.
pub(crate) fn is_loaded() -> bool {
    !library().is_null()
}

/// The driver's own symbol, past all hooks of this library.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    let library = library();
    if library.is_null() { null_mut() } else { dlsym::next(library, name) }
}

macro_rules! calls {
    ($($field:ident = $symbol:literal: ($($arg:ty),*);)*) => {
        /// Functions that are called, not hooked.
        pub(crate) struct Calls { $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Code,)* }

        fn find() -> Option<Calls> {
            Some(Calls { $($field: {
                let address = symbol($symbol);
                if address.is_null() {
                    return None;
                }
                // SAFETY: the driver's function of that name, whose signature is the one of cuda.h; it never changes for
                // a symbol.
                unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(address) }
            },)* })
        }
    };
}

calls! {
    current = c"cuCtxGetCurrent": (*mut Context);
    current_device = c"cuCtxGetDevice": (*mut c_int);
    push = c"cuCtxPushCurrent_v2": (Context);
    pop = c"cuCtxPopCurrent_v2": (*mut Context);
    synchronize = c"cuCtxSynchronize": ();
    primary_state = c"cuDevicePrimaryCtxGetState": (c_int, *mut c_uint, *mut c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain": (*mut Context, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2": (c_int);
}

/// The driver's functions; `None` where this driver lacks one of them.
pub(crate) fn calls() -> Option<&'static Calls> {
    static CALLS: OnceLock<Option<Calls>> = OnceLock::new();
    CALLS.get_or_init(find).as_ref()
}

impl Calls {
    /// The GPU whose primary context is current on this thread. `None`: no context, or one that the program made itself, whose
    /// memory dies with it as ours would not.
    pub(crate) fn primary_device(&self) -> Option<c_int> {
        let (mut context, mut device, mut flags, mut active) = (null_mut(), -1, 0, 0);
        // SAFETY: a valid place for a pointer.
        let code = unsafe { (self.current)(&raw mut context) };
        if code != SUCCESS || context.is_null() {
            return None;
        }
        // SAFETY: a valid place for an int.
        if unsafe { (self.current_device)(&raw mut device) } != SUCCESS {
            return None;
        }
        // SAFETY: two valid places. Asked first, because retaining would make a context where there is none.
        let code = unsafe { (self.primary_state)(device, &raw mut flags, &raw mut active) };
        if code != SUCCESS || active == 0 {
            return None;
        }
        let mut primary = null_mut();
        // SAFETY: a valid place for a pointer; released below, so that the count stays as it was.
        if unsafe { (self.primary_retain)(&raw mut primary, device) } != SUCCESS {
            return None;
        }
        // SAFETY: matches the retain above.
        unsafe { (self.primary_release)(device) };
        (primary == context).then_some(device)
    }

    /// The GPU of a context.
    pub(crate) fn device_of(&self, context: Context) -> Option<c_int> {
        let (mut device, mut before) = (-1, null_mut());
        // SAFETY: a context the program handed to the driver just now, which took it.
        if unsafe { (self.push)(context) } != SUCCESS {
            return None;
        }
        // SAFETY: a valid place for an int.
        let code = unsafe { (self.current_device)(&raw mut device) };
        // SAFETY: a valid place; pops what was pushed above.
        unsafe { (self.pop)(&raw mut before) };
        (code == SUCCESS).then_some(device)
    }

    /// Waits for all work of `device`, as the driver's own `cuMemFree` does.
    pub(crate) fn wait_for(&self, device: c_int) -> Code {
        let (mut primary, mut before) = (null_mut(), null_mut());
        // SAFETY: a valid place for a pointer; released below.
        let code = unsafe { (self.primary_retain)(&raw mut primary, device) };
        if code != SUCCESS {
            return code;
        }
        // SAFETY: retained just now.
        let mut code = unsafe { (self.push)(primary) };
        if code == SUCCESS {
            // SAFETY: no precondition.
            code = unsafe { (self.synchronize)() };
            // SAFETY: a valid place; pops what was pushed above.
            unsafe { (self.pop)(&raw mut before) };
        }
        // SAFETY: matches the retain above.
        unsafe { (self.primary_release)(device) };
        code
    }
}
