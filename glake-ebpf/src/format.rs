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

    /// Where a field is, or NONE. The verifier knows the value.
    #[inline(always)]
    fn at(&self, field: usize) -> u32 {
        // SAFETY: an initialised static; volatile, since user space overwrites it before the load.
        unsafe { read_volatile(&raw const self.offsets[field]) }
    }

    /// Whether this kernel's record has all of these fields.
    #[inline(always)]
    pub fn has(&self, fields: core::ops::Range<usize>) -> bool {
        let mut field = fields.start;
        while field < fields.end {
            if self.at(field) == NONE {
                return false;
            }
            field += 1;
        }
        true
    }

    /// A field of the record; 0 where this kernel lacks it.
    #[inline(always)]
    pub fn read<T: Default + Copy>(&self, field: usize) -> T {
        let mut value = T::default();
        let at = self.at(field);
        if at != NONE {
            // A direct load at an offset that is not a constant of the program is refused; this helper is not.
            let from = self.base.wrapping_add(at as usize).cast();
            // SAFETY: the destination is that long; a bad source leaves zeros there.
            unsafe { generated::bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, from) };
        }
        value
    }

    #[inline(always)]
    pub fn u8(&self, field: usize) -> u8 {
        self.read(field)
    }

    #[inline(always)]
    pub fn u16(&self, field: usize) -> u16 {
        self.read(field)
    }

    #[inline(always)]
    pub fn u32(&self, field: usize) -> u32 {
        self.read(field)
    }

    #[inline(always)]
    pub fn u64(&self, field: usize) -> u64 {
        self.read(field)
    }

    /// Length in bytes of a `__data_loc` array.
    #[inline(always)]
    pub fn data_len(&self, field: usize) -> u32 {
        self.u32(field) >> 16
    }

    /// Address of a `__data_loc` array that the record has: its offset in the record is in the low half.
    #[inline(always)]
    pub fn data(&self, field: usize) -> *const u8 {
        self.base.wrapping_add((self.u32(field) & 0xffff) as usize)
    }

    /// Copies a `__data_loc` string, cut to the length of `to`, which stays 0 behind it.
    #[inline(always)]
    pub fn text<const N: usize>(&self, field: usize, to: *mut [u8; N]) -> bool {
        if !self.has(field..field + 1) {
            return false;
        }
        // SAFETY: the destination is N bytes long; a bad source is an error, not a fault.
        unsafe {
            generated::bpf_probe_read_kernel_str(to.cast::<c_void>(), N as u32, self.data(field).cast()) >= 0
        }
    }
}
