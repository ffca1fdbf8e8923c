//! Atomic access to words of map values. The BPF target of rustc declares no atomic read-modify-write types, though the
//! instructions exist (kernel 5.12 and newer, `-C target-cpu=v3`): hence the compiler's intrinsics.

use core::intrinsics::{
    AtomicOrdering::{Relaxed, SeqCst},
    atomic_cxchg, atomic_xadd,
};

/// A word that other CPUs may change.
///
/// Made only of map values, which live as long as the program.
#[derive(Clone, Copy)]
pub struct Word(*mut u64);

impl Word {
    /// `word` must be an aligned word of a map value.
    #[inline(always)]
    pub fn of(word: *mut u64) -> Word {
        Word(word)
    }

    #[inline(always)]
    pub fn load(self) -> u64 {
        // SAFETY: an aligned word of a map value (the verifier checks the bounds). A volatile access of an aligned word is
        // one instruction, hence atomic; LLVM's BPF backend does not know relaxed loads and stores.
        unsafe { self.0.read_volatile() }
    }

    #[inline(always)]
    pub fn store(self, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.write_volatile(value) }
    }

    /// Adds.
    #[inline(always)]
    pub fn add(self, n: u64) {
        // SAFETY: as above.
        unsafe { atomic_xadd::<u64, u64, { Relaxed }>(self.0, n) };
    }

    /// Adds 1; gives the old value. Not relaxed: LLVM 22 turns a relaxed addition into the instruction that returns nothing, even
    /// where the old value is used, and then uses the addend for it.
    #[inline(always)]
    pub fn next(self) -> u64 {
        // SAFETY: as above.
        unsafe { atomic_xadd::<u64, u64, { SeqCst }>(self.0, 1) }
    }

    /// Puts `new` where 0 is; gives what was there.
    #[inline(always)]
    pub fn claim(self, new: u64) -> u64 {
        // SAFETY: as above.
        unsafe { atomic_cxchg::<u64, { Relaxed }, { Relaxed }>(self.0, 0, new).0 }
    }
}
