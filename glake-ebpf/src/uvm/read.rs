//! Reading fields of the driver's structures and arguments of its functions.

use aya_ebpf::{
    helpers::generated,
    programs::{FEntryContext, ProbeContext},
};
use core::ptr::read_volatile;
use glake_common::{NONE, uvm::layout};

/// Offsets; user space fills them in before the load.
#[unsafe(no_mangle)]
static UVM_LAYOUT: [u32; layout::COUNT] = [NONE; layout::COUNT];

/// An offset. The verifier knows its value.
#[inline(always)]
pub fn at(index: usize) -> u32 {
    // SAFETY: an initialised static of that many words; volatile, since user space overwrites it before the load.
    unsafe { read_volatile(&raw const UVM_LAYOUT[index]) }
}

/// What a field holds that could not be read: more than any of them can.
pub const NOTHING: u64 = u64::MAX;

/// A field of a structure of the driver. [`NOTHING`]: this release is not known to have it, or the address is bad.
#[inline(always)]
pub fn read<T: Default + Copy + Into<u64>>(base: u64, field: usize) -> u64 {
    let offset = at(field);
    if offset == NONE || base == 0 || base == NOTHING {
        return NOTHING;
    }
    load::<T>(base.wrapping_add(u64::from(offset)))
}

#[inline(always)]
pub fn load<T: Default + Copy + Into<u64>>(address: u64) -> u64 {
    let mut value = T::default();
    // SAFETY: the destination is that long; a bad source is an error, not a fault.
    let failed = unsafe {
        generated::bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, address as *const _)
    };
    if failed == 0 { value.into() } else { NOTHING }
}

/// A call of a probed function, however it was noticed.
pub trait Call {
    /// An argument; here are at most four.
    fn word(&self, n: usize) -> u64;
}

impl Call for ProbeContext {
    #[inline(always)]
    fn word(&self, n: usize) -> u64 {
        // aya knows of no argument beyond the sixth.
        self.arg::<u64>(n).unwrap_or(0)
    }
}

impl Call for FEntryContext {
    #[inline(always)]
    fn word(&self, n: usize) -> u64 {
        self.arg::<u64>(n)
    }
}

/// An argument of the probed function.
#[inline(always)]
pub fn arg(call: &impl Call, n: usize) -> u64 {
    call.word(n)
}

/// An argument that is a number of 32 bits: the upper half of its register is not defined.
#[inline(always)]
pub fn arg32(call: &impl Call, n: usize) -> u64 {
    arg(call, n) & 0xffff_ffff
}
