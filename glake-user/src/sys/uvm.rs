//! The ioctls of `/dev/nvidia-uvm` and `/dev/nvidia-uvm-tools`, and the pages that the driver writes into.
//!
//! Numbers and structure layouts: `uvm_ioctl.h` and `uvm_linux_ioctl.h` of NVIDIA's open kernel modules; the ioctl
//! "numbers" are plain integers, not built with `_IOC`. Which layout belongs to which release is decided by
//! [`crate::events::uvm::release`]; this file only carries bytes.

use crate::error::{Error, Kind, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Anonymous pages of our own that the driver pins and writes through its own mapping.
///
/// Nothing here ever hands out a reference to plain memory inside: words are read atomically or copied volatile,
/// because the kernel changes them at any time.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and every access goes through atomics or volatile copies.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes, rounded up to whole pages, all zero.
    ///
    /// # Errors
    /// `Exhausted` when the kernel has no memory for it.
    pub fn new(len: usize) -> Result<Pages> {
        let page = rustix::param::page_size();
        let len = len.max(1).next_multiple_of(page);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::POPULATE,
            )
        }
        .map_err(|e| Error::os(format!("mapping {len} bytes for the driver's event queue"), e.into()))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| Error::new(Kind::Exhausted, "mapping the driver's event queue gave no address"))?;
        Ok(Pages { base, len })
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: at least one page is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address as the driver wants it.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn at(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let end = offset.checked_add(size)?;
        if end > self.len || !offset.is_multiple_of(size) {
            return None;
        }
        // SAFETY: `offset + size <= len`, so the pointer stays inside the mapping.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    /// Reads a 32-bit word with acquire order: what the driver wrote before it is then visible.
    /// `None`: outside the pages or unaligned.
    pub fn load_u32(&self, offset: usize) -> Option<u32> {
        let p = self.at(offset, 4)?;
        // SAFETY: inside the mapping, aligned to 4, alive as long as `self`, and only ever accessed atomically here.
        Some(unsafe { AtomicU32::from_ptr(p.cast()) }.load(Ordering::Acquire))
    }

    /// Writes a 32-bit word with release order. `None`: outside the pages or unaligned.
    pub fn store_u32(&self, offset: usize, value: u32) -> Option<()> {
        let p = self.at(offset, 4)?;
        // SAFETY: as in `load_u32`.
        unsafe { AtomicU32::from_ptr(p.cast()) }.store(value, Ordering::Release);
        Some(())
    }

    /// Reads a 64-bit word. `None`: outside the pages or unaligned.
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        let p = self.at(offset, 8)?;
        // SAFETY: inside the mapping, aligned to 8, alive as long as `self`, and only ever accessed atomically here.
        Some(unsafe { AtomicU64::from_ptr(p.cast()) }.load(Ordering::Acquire))
    }

    /// Copies bytes out, 8 at a time. `offset` and the length must be multiples of 8. `None`: outside or unaligned.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        if !into.len().is_multiple_of(8)
            || !offset.is_multiple_of(8)
            || offset.checked_add(into.len())? > self.len
        {
            return None;
        }
        for (i, chunk) in into.chunks_exact_mut(8).enumerate() {
            // SAFETY: the range was checked above and both ends are multiples of 8, so each word lies inside.
            let word = unsafe { self.base.as_ptr().add(offset + 8 * i).cast::<u64>() };
            // SAFETY: inside the mapping and aligned; volatile, because the driver may write it meanwhile.
            chunk.copy_from_slice(&unsafe { word.read_volatile() }.to_ne_bytes());
        }
        Some(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: base and length are those of our own mapping, and no pointer into it outlives `self`. The driver
        // pinned the physical pages, so unmapping while a tracker is open takes nothing away from it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Issues ioctl `request` with the parameter block `block`, which the driver reads and writes in place.
///
/// The block must be as large as the driver's structure for this request; the driver copies that many bytes.
/// [`BLOCK`] bytes are enough for every request used here, so the buffer is always that large.
///
/// # Errors
/// The errno of the call; the driver's own status is inside the block.
pub fn ioctl(fd: BorrowedFd<'_>, request: u32, block: &mut [u8; BLOCK]) -> std::io::Result<()> {
    // SAFETY: `block` is valid for reads and writes of BLOCK bytes for the whole call, and the largest structure of
    // any request of this driver that takes a pointer-free or self-sized block used here is smaller than that.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(request), block.as_mut_ptr()) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Bytes of a parameter block: more than any structure that [`ioctl`] is used with (the largest is 64).
pub const BLOCK: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_where_they_were_written_and_nothing_outside() {
        let pages = Pages::new(100).expect("a page");
        assert_eq!(pages.len() % rustix::param::page_size(), 0);
        pages.store_u32(16, 7).expect("inside");
        assert_eq!(pages.load_u32(16), Some(7));
        assert_eq!(pages.load_u64(16), Some(7));
        let mut out = [0u8; 16];
        pages.copy_out(8, &mut out).expect("inside");
        assert_eq!(out[8], 7);
        assert_eq!(pages.load_u32(pages.len()), None);
        assert_eq!(pages.load_u32(2), None);
        assert_eq!(pages.load_u64(usize::MAX - 3), None);
        assert_eq!(pages.copy_out(pages.len() - 8, &mut out), None);
        assert_eq!(pages.copy_out(4, &mut out), None);
    }
}
