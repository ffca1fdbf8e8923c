//! What aya does not offer: map values read in place, and what a program has cost.

use crate::error::{Error, Kind, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::{
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The values of an array map (made with BPF_F_MMAPABLE), as 64-bit words, shared with the kernel.
///
/// Reading takes no system call and no capability, so it goes on after all privileges are dropped.
#[derive(Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    words: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and all access to it is atomic.
unsafe impl Send for Words {}

impl Words {
    /// Maps `words` words of the array map `fd`. Needs kernel 5.5.
    ///
    /// # Errors
    /// When the kernel refuses, for example because the map is smaller.
    pub fn map(fd: BorrowedFd<'_>, words: usize) -> Result<Words> {
        let doing = || format!("mapping {words} words of a BPF map");
        let page = rustix::param::page_size();
        let bytes = words
            .checked_mul(8)
            .and_then(|b| b.checked_next_multiple_of(page))
            .filter(|b| *b > 0)
            .ok_or_else(|| Error::new(Kind::Misuse, doing()))?;
        // SAFETY: a new mapping at an address of the kernel's choice; it disturbs no other memory.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        }
        .map_err(|e| Error::os(doing(), e.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::new(Kind::Io, doing()))?;
        Ok(Words { base, words, bytes })
    }

    /// How many words there are.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: below the mapped length, aligned, and mapped as long as `self` lives; the kernel changes it atomically.
        (index < self.words).then(|| unsafe { self.base.add(index).as_ref() })
    }

    /// A word; 0 beyond the end.
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |w| w.load(Relaxed))
    }

    /// Sets a word; nothing beyond the end.
    pub fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Relaxed);
        }
    }

    /// `N` words from `index` on.
    pub fn array<const N: usize>(&self, index: usize) -> [u64; N] {
        std::array::from_fn(|i| self.load(index + i))
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the very mapping that `map` made; nothing borrows from it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// What a program has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgramCost {
    /// Runs; counted only while statistics are on (BPF_ENABLE_STATS).
    pub runs: u64,
    /// Time in it in ns; the kernel leaves out the perf layer's cost of classic trace points.
    pub run_time_ns: u64,
    /// Runs that the kernel left out, because the same program was already running on that CPU (kernel 5.12).
    pub missed: u64,
}

/// Asks the kernel what a program has done. Needs no capability beyond the descriptor.
///
/// # Errors
/// What bpf(2) answers.
pub fn program_cost(fd: BorrowedFd<'_>) -> Result<ProgramCost> {
    use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_info};
    // SAFETY: both are plain C structures of integers (and pointers as integers), for which all bytes 0 is a value.
    let (mut attr, mut info): (bpf_attr, bpf_prog_info) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    attr.info.bpf_fd = fd.as_raw_fd().cast_unsigned();
    attr.info.info = (&raw mut info) as u64;
    attr.info.info_len = size_of::<bpf_prog_info>() as u32;
    // SAFETY: `attr` names `info` with its true length, and both outlive the call.
    let rc = unsafe {
        libc::syscall(libc::SYS_bpf, bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &raw mut attr, size_of::<bpf_attr>())
    };
    if rc != 0 {
        return Err(Error::os("asking for the cost of a BPF program", std::io::Error::last_os_error()));
    }
    Ok(ProgramCost { runs: info.run_cnt, run_time_ns: info.run_time_ns, missed: info.recursion_misses })
}
