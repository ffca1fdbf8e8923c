//! `dlsym`, interposed: the only way to stand between the CUDA runtime and the driver, which it loads by `dlopen`.
//!
//! The C library's `dlsym` looks at its return address to know who asks (`RTLD_NEXT`, and the scope of a library). So the
//! function here decides in a helper and otherwise *jumps* to the real one: that sees the program's return address, not ours.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{driver, lookup};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The next `dlsym` after this library: another preload's, or the C library's.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// What the helper says, in two registers: the answer, and whether there is one.
#[repr(C)]
struct Decision {
    answer: *mut c_void,
    decided: u64,
}

const PASS_ON: Decision = Decision { answer: null_mut(), decided: 0 };

/// The version of `dlsym` in the C library's oldest ABI of this architecture, still there in the newest release.
const OLDEST: &CStr = c"GLIBC_2.2.5";

/// Stands for the C library's `dlsym`.
///
/// # Safety
/// As for `dlsym`: `name` is a C string, `handle` is one of `dlopen`'s or a pseudo handle.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // At entry rsp is 8 past a multiple of 16; two pushes and 8 bytes make it a multiple again, as a call wants it.
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rdx, rdx",
        "je 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {next}]",
        decide = sym decide,
        next = sym NEXT,
    )
}

/// Whether the answer is one of ours. Also finds the next `dlsym`, so that the jump above has a target.
extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Decision {
    find_next();
    // RTLD_NEXT asks for what comes after the caller: an interposer's own question, and not for us to answer.
    if name.is_null() || handle == libc::RTLD_NEXT {
        return PASS_ON;
    }
    // SAFETY: not null; a C string by dlsym's contract.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(hook) = lookup::symbol(name.to_bytes()) else { return PASS_ON };
    let real = next(handle, name);
    if real.is_null() {
        return PASS_ON;
    }
    if real == hook.ours {
        // Found in the global scope, where this library lies. Without a driver in the process the name would not be there.
        let answer = if driver::is_loaded() { real } else { null_mut() };
        return Decision { answer, decided: 1 };
    }
    Decision { answer: hook.stand_in(real), decided: 1 }
}

/// Asks the next `dlsym`.
pub(crate) fn next(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let address = find_next();
    // SAFETY: the address is that of a function with dlsym's signature: see `find_next`.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address) };
    // SAFETY: the handle came from a caller of dlsym or from dlopen; the name is a C string.
    unsafe { ask(handle, name.as_ptr()) }
}

fn find_next() -> *mut c_void {
    let known = NEXT.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a pseudo handle and two C strings. `dlvsym` is not interposed here.
    let mut found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), OLDEST.as_ptr()) };
    if found.is_null() {
        found = nothing as *mut c_void;
    }
    NEXT.store(found, Ordering::Release);
    found
}

/// Stands in where the C library has no `dlsym` of a version known here. No such release exists; a jump to nowhere would end
/// the program.
extern "C" fn nothing(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    null_mut()
}
