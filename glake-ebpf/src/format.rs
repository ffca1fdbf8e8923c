//! Records of classic trace points, read at the offsets of their `format` files.

use aya_ebpf::{EbpfContext, helpers::generated, programs::TracePointContext};
use core::{ffi::c_void, ptr::read_volatile};
use glake_common::NONE;

/// Offsets of the fields of one trace point, in the order that user space's table gives; NONE where it lacks one.
pub type Offsets = [u32; 8];

/// Declares the offsets of trace points: one global each, which user space fills in before the load.
macro_rules! offsets {
    ($($name:ident),* $(,)?) => { $(
        #[unsafe(no_mangle)]
        static $name: $crate::format::Offsets = [glake_common::NONE; 8];
    )* };
}
pub(crate) use offsets;

/// One record.
pub struct Format {
    base: *const u8,
    offsets: &'static Offsets,
}

impl Format {
    #[inline(always)]
    pub fn new(ctx: &TracePointContext, offsets: &'static Offsets) -> Format {
        Format { base: ctx.as_ptr().cast(), offsets }
    }

    /// Where a field is. The verifier knows the value.
    #[inline(always)]
    fn at(&self, field: usize) -> Option<*const u8> {
        // SAFETY: an initialised static; volatile, since user space overwrites it before the load.
        let at = unsafe { read_volatile(&raw const self.offsets[field]) };
        if at == NONE { None } else { Some(self.base.wrapping_add(at as usize)) }
    }

    #[inline(always)]
    fn read<T: Default + Copy>(&self, field: usize) -> Option<T> {
        let from = self.at(field)?;
        let mut value = T::default();
        // A direct load at an offset that is not a constant of the program is refused; this helper is not.
        // SAFETY: the destination is that long; a bad source is an error, not a fault.
        let failed = unsafe {
            generated::bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, from.cast())
        };
        if failed == 0 { Some(value) } else { None }
    }

    #[inline(always)]
    pub fn u8(&self, field: usize) -> Option<u8> {
        self.read(field)
    }

    #[inline(always)]
    pub fn u16(&self, field: usize) -> Option<u16> {
        self.read(field)
    }

    #[inline(always)]
    pub fn u32(&self, field: usize) -> Option<u32> {
        self.read(field)
    }

    #[inline(always)]
    pub fn u64(&self, field: usize) -> Option<u64> {
        self.read(field)
    }

    /// The bytes of a field inside the record.
    #[inline(always)]
    pub fn bytes<T: Default + Copy>(&self, field: usize) -> Option<T> {
        self.read(field)
    }

    /// Length in bytes of a `__data_loc` array.
    #[inline(always)]
    pub fn data_len(&self, field: usize) -> Option<u32> {
        Some(self.u32(field)? >> 16)
    }

    /// Address of a `__data_loc` array: its offset in the record is in the low half.
    #[inline(always)]
    pub fn data(&self, field: usize) -> Option<*const u8> {
        let location = self.u32(field)?;
        Some(self.base.wrapping_add((location & 0xffff) as usize))
    }

    /// Copies a `__data_loc` string, cut to the length of `to`, which stays 0 behind it.
    #[inline(always)]
    pub fn text<const N: usize>(&self, field: usize, to: *mut [u8; N]) -> bool {
        let Some(from) = self.data(field) else { return false };
        // SAFETY: the destination is N bytes long; a bad source is an error, not a fault.
        unsafe { generated::bpf_probe_read_kernel_str(to.cast::<c_void>(), N as u32, from.cast()) >= 0 }
    }
}
