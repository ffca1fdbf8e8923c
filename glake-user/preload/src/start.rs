//! At the start: whether this library may work in this process at all, and whether its hooks are the ones that are seen.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use glake::embed::{self, Mode, Process};

use crate::{dlsym, driver};

static ON: AtomicBool = AtomicBool::new(false);
static ONCE: Once = Once::new();

/// Whether blocks may be taken.
pub(crate) fn is_on() -> bool {
    once();
    ON.load(Ordering::Acquire)
}

/// Decides at the first look-up or call of a hooked function, when it is known that the program uses CUDA: other programs
/// pay nothing.
pub(crate) fn once() {
    ONCE.call_once(|| {
        let on = match decide() {
            Ok(()) => true,
            Err(why) => {
                embed::say_once("preload", &format!("the preload library is off: {why}"));
                false
            }
        };
        ON.store(on, Ordering::Release);
    });
}

fn decide() -> Result<(), String> {
    match embed::mode().map_err(|e| e.chain())? {
        (Mode::On, _) => {}
        (_, why) => return Err(why.to_owned()),
    }
    if !Process::get().config().enabled {
        return Err("allocator.enabled is false".to_owned());
    }
    let first = dlsym::next(libc::RTLD_DEFAULT, c"dlsym");
    if first != dlsym::dlsym as *mut c_void {
        return Err(
            "another preloaded library answers dlsym first; put libglake_cuda.so before it in LD_PRELOAD"
                .into(),
        );
    }
    let first = dlsym::next(libc::RTLD_DEFAULT, c"glake_preload_observe");
    if first != glake_preload_observe as *mut c_void {
        return Err("another libglake_cuda.so is loaded before this one".into());
    }
    Ok(())
}

/// Another part of GLake serves this process's allocations (the torch adapter): this library only passes calls on from now
/// on. Blocks it served before are still freed.
#[unsafe(no_mangle)]
pub extern "C" fn glake_preload_observe() {
    ON.store(false, Ordering::Release);
}

/// At the end of a program that loaded the driver, but never came to us for it, say so: nothing else would show it.
extern "C" fn at_exit() {
    if driver::is_loaded() && !ONCE.is_completed() && matches!(embed::mode(), Ok((Mode::On, _))) {
        embed::say_once(
            "unseen",
            "the preload library was loaded, but the program found the CUDA driver past it (a static or private loader): \
             nothing was served",
        );
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
