//! Settings and typed kernel pointers.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::{ffi::c_void, ptr::read_volatile};
use glake_common::{NONE, member, param};

/// Offsets of kernel structure members; user space fills them in before the load.
#[unsafe(no_mangle)]
static OFFSETS: [u32; member::COUNT] = [NONE; member::COUNT];

/// Settings; user space fills them in before the load.
#[unsafe(no_mangle)]
static PARAMS: [u32; param::COUNT] = [0; param::COUNT];

/// A setting. The verifier knows its value: the map is read-only and frozen.
#[inline(always)]
pub fn param(index: usize) -> u32 {
    // SAFETY: an initialised static of that many words; volatile, since user space overwrites it before the load.
    unsafe { read_volatile(&raw const PARAMS[index]) }
}

/// A member's offset, or NONE.
#[inline(always)]
pub fn offset(index: usize) -> u32 {
    // SAFETY: as above.
    unsafe { read_volatile(&raw const OFFSETS[index]) }
}

/// A pointer to a kernel structure whose type the verifier knows. A load through a bad one gives 0.
#[derive(Clone, Copy)]
pub struct Kernel(*const u8);

impl Kernel {
    /// No structure at all.
    pub const NULL: Kernel = Kernel(core::ptr::null());

    /// Argument `n` of a BTF trace point.
    ///
    /// `args` is the context, an array of 64-bit words.
    #[inline(always)]
    pub fn argument(args: *const u64, n: usize) -> Kernel {
        // SAFETY: the verifier checks that the trace point has this argument.
        Kernel(unsafe { *args.add(n) } as *const u8)
    }

    /// The task that runs now.
    #[inline(always)]
    pub fn current_task() -> Kernel {
        // SAFETY: no arguments; never null.
        Kernel(unsafe { aya_ebpf::helpers::generated::bpf_get_current_task_btf() } as *const u8)
    }

    /// The structure that a pointer member points to.
    #[inline(always)]
    pub fn follow(self, member: usize) -> Kernel {
        Kernel(self.u64(member) as *const u8)
    }

    /// A 32-bit member; 0 where this kernel lacks it.
    #[inline(always)]
    pub fn u32(self, member: usize) -> u32 {
        let at = offset(member);
        if at == NONE {
            return 0;
        }
        // SAFETY: the verifier accepts only an offset that BTF knows; a fault reads as 0.
        unsafe { read_volatile(self.0.add(at as usize).cast()) }
    }

    /// A 64-bit member; 0 where this kernel lacks it.
    #[inline(always)]
    pub fn u64(self, member: usize) -> u64 {
        let at = offset(member);
        if at == NONE {
            return 0;
        }
        // SAFETY: as above.
        unsafe { read_volatile(self.0.add(at as usize).cast()) }
    }

    /// Copies a text member, cut to the length of `to`; nothing where this kernel lacks it.
    #[inline(always)]
    pub fn text<const N: usize>(self, member: usize, to: *mut [u8; N]) {
        let at = offset(member);
        if at != NONE {
            // SAFETY: the destination is N bytes long; a bad source is an error, not a fault.
            unsafe {
                aya_ebpf::helpers::generated::bpf_probe_read_kernel_str(
                    to.cast(),
                    N as u32,
                    self.0.add(at as usize).cast(),
                );
            }
        }
    }

    /// The address, to tell requests apart.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The low half of the address as a plain number. The verifier forbids arithmetic on pointers but lets a program that may
    /// see them (CAP_PERFMON) copy one half; the compiler must not choose another way.
    #[inline(always)]
    pub fn low(self) -> u32 {
        let low: u32;
        // SAFETY: one move between registers.
        unsafe {
            core::arch::asm!("{0} = {1}", out(wreg) low, in(wreg) self.0 as usize as u32, options(pure, nomem, nostack));
        }
        low
    }

    /// Whether there is nothing there.
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A kernel address whose type the verifier does not know: what raw trace points of modules give. A bad one reads as 0.
#[derive(Clone, Copy)]
pub struct Address(pub u64);

impl Address {
    /// Where a member is; the address itself where this kernel lacks it.
    #[inline(always)]
    pub fn at(self, member: usize) -> Address {
        let at = offset(member);
        if at == NONE { self } else { Address(self.0.wrapping_add(u64::from(at))) }
    }

    /// What is there.
    #[inline(always)]
    pub fn read<T: Default + Copy>(self) -> T {
        let mut value = T::default();
        // SAFETY: the destination is that long; a bad source leaves zeros there.
        unsafe {
            bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, self.0 as *const c_void);
        }
        value
    }

    /// A 32-bit member.
    #[inline(always)]
    pub fn u32(self, member: usize) -> u32 {
        self.at(member).read()
    }

    /// What a pointer member points to.
    #[inline(always)]
    pub fn follow(self, member: usize) -> Address {
        Address(self.at(member).read())
    }
}

/// CLOCK_MONOTONIC in ns.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: no arguments.
    unsafe { aya_ebpf::helpers::generated::bpf_ktime_get_ns() }
}

/// This CPU's copy of a sharded thing.
#[inline(always)]
pub fn shard(index: u32) -> u32 {
    shard_of(index, param(param::SHARDS))
}

/// This CPU's copy of a thing that has so many.
#[inline(always)]
pub fn shard_of(index: u32, shards: u32) -> u32 {
    // SAFETY: no arguments.
    let cpu = unsafe { aya_ebpf::helpers::generated::bpf_get_smp_processor_id() };
    index * shards + (cpu & (shards - 1))
}
