//! Host memory that hardware copies from and to: mapped once, placed beside its GPU, touched ahead of use, and never freed
//! while a copy may still reach it.
//!
//! Bytes are moved in and out by copying; no Rust reference ever points into the memory. A [`Part`] is the only way to
//! reach its bytes and cannot be cloned. While the kernel or a GPU works on a part it is [`Lent`]: dropping that leaks
//! the part, so the worst that a lost copy can do is to keep memory.

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, Kind, Result};

/// The huge page that a buffer is aligned to and rounded up to, on x86-64 and on arm64 with 4 KiB pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// MPOL_PREFERRED of the kernel's mempolicy.h: from this node while it has memory, else from another.
const MPOL_PREFERRED: libc::c_int = 1;

/// How the pages of a [`Buffer`] came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// From the pool of reserved huge pages.
    Huge,
    /// Plain ones; the kernel may join them (transparent huge pages).
    Plain,
}

/// A range of host memory. Freed when the last [`Part`] of it is gone.
pub struct Buffer {
    base: NonNull<c_void>,
    size: usize,
    pages: Pages,
    /// Dropped before the memory is unmapped: registrations with a driver.
    keeps: Mutex<Vec<Box<dyn Send + Sync>>>,
}

// SAFETY: the memory belongs to this value; its bytes are reached only through `Part`, of which no two overlap.
unsafe impl Send for Buffer {}
// SAFETY: as above; the shared methods read fields that never change, or take the lock.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes at {:p}, {:?})", self.size, self.base, self.pages)
    }
}

impl Buffer {
    /// Maps `size` bytes, rounded up to whole huge pages, and touches them all, so that a lack of memory shows here. On
    /// NUMA node `node` where that is given and has room. A child after fork does not get the memory, so no copy ever
    /// goes to a page that fork moved away.
    pub fn new(size: usize, node: Option<u32>) -> Result<Buffer> {
        let doing = || format!("mapping a buffer of {size} bytes");
        let rounded = size.max(1).checked_next_multiple_of(HUGE_PAGE);
        let size = rounded.ok_or_else(|| Error::new(Kind::Exhausted, doing()))?;
        let map = |flags| {
            // SAFETY: the kernel picks an unused range; nothing existing is touched.
            unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    size,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | flags,
                )
            }
        };
        let (base, pages) = match map(MapFlags::HUGETLB) {
            Ok(base) => (base, Pages::Huge),
            Err(_) => (map(MapFlags::empty()).map_err(|e| Error::os(doing(), e.into()))?, Pages::Plain),
        };
        let base = NonNull::new(base).ok_or_else(|| Error::new(Kind::Exhausted, doing()))?;
        let buffer = Buffer { base, size, pages, keeps: Mutex::new(Vec::new()) };
        buffer.place(node);
        buffer.touch()?;
        Ok(buffer)
    }

    /// Asks for placement. Each is a wish: the buffer works without.
    fn place(&self, node: Option<u32>) {
        if self.pages == Pages::Plain {
            // SAFETY: the range is our own mapping; the advice changes no content.
            let _ = unsafe { rustix::mm::madvise(self.base.as_ptr(), self.size, Advice::LinuxHugepage) };
        }
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr(), self.size, Advice::LinuxDontFork) };
        let Some(node) = node.filter(|n| *n < u64::BITS) else { return };
        let mask: u64 = 1 << node;
        // SAFETY: the range is our own mapping and the mask is 64 bits long, as the call is told (it wants one more).
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.size,
                MPOL_PREFERRED,
                &raw const mask,
                u64::BITS + 1,
                0,
            );
        }
    }

    /// Makes every page exist. MADV_POPULATE_WRITE (Linux 5.14) reports a lack of memory where touching would kill.
    fn touch(&self) -> Result<()> {
        // SAFETY: the range is our own mapping; the advice writes nothing.
        match unsafe { rustix::mm::madvise(self.base.as_ptr(), self.size, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(e) => Err(Error::os(format!("touching a buffer of {} bytes", self.size), e.into())
                .remedy("free memory, or raise the memory limit of this cgroup")),
        }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// What its pages are.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Keeps `thing` until just before the memory is unmapped.
    pub fn keep(&self, thing: Box<dyn Send + Sync>) {
        self.keeps.lock().unwrap_or_else(PoisonError::into_inner).push(thing);
    }

    /// All of it as parts of `size` bytes, which must divide into pages; a rest is left out. Takes the buffer, so that
    /// no byte is in two parts.
    pub fn split(self, size: usize) -> Vec<Part> {
        let buffer = Arc::new(self);
        let count = buffer.size.checked_div(size).unwrap_or(0);
        (0..count).map(|i| Part { buffer: Arc::clone(&buffer), start: i * size, size }).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.keeps.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the mapping is ours, no part is left, and nothing is registered any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.size) };
    }
}

/// A part of a buffer, the only way to its bytes.
#[derive(Debug)]
pub struct Part {
    buffer: Arc<Buffer>,
    start: usize,
    size: usize,
}

impl Part {
    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The buffer it is of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where it begins in its buffer.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The first address, for drivers and the kernel.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.start as u64
    }

    /// Whether `size` bytes from `at` are inside; [`Kind::Misuse`] if not.
    pub fn holds(&self, at: usize, size: usize) -> Result<()> {
        self.pointer(at, size).map(drop).map_err(|e| Error::new(Kind::Misuse, "copying a part").because(e))
    }

    /// The pointer to byte `at`, after checking that `size` bytes from there are inside.
    pub(super) fn pointer(&self, at: usize, size: usize) -> io::Result<*mut u8> {
        if at.checked_add(size).is_none_or(|end| end > self.size) {
            let what = format!("{size} bytes at {at} are outside a part of {} bytes", self.size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(self.buffer.base.as_ptr().cast::<u8>().wrapping_add(self.start + at))
    }

    /// Reads `size` bytes of a file at `offset` into the part at `at`. May read fewer; 0 is the file's end.
    pub fn read_from(
        &mut self,
        at: usize,
        size: usize,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<usize> {
        let to = self.pointer(at, size)?;
        // SAFETY: `size` bytes from `to` are inside the mapping, and `&mut self` says that nobody else reaches them.
        let n = unsafe { libc::pread64(file.as_raw_fd(), to.cast(), size, offset.cast_signed()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Writes `size` bytes of the part from `at` to a file at `offset`. May write fewer.
    pub fn write_to(&self, at: usize, size: usize, file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        let from = self.pointer(at, size)?;
        // SAFETY: `size` bytes from `from` are inside the mapping; the kernel only reads them.
        let n = unsafe { libc::pwrite64(file.as_raw_fd(), from.cast(), size, offset.cast_signed()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Copies bytes in at `at`.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let to = self.pointer(at, bytes.len())?;
        // SAFETY: inside the mapping, nobody else reaches it, and a Rust slice never overlaps it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out from `at`.
    pub fn get(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        let from = self.pointer(at, bytes.len())?;
        // SAFETY: inside the mapping, written by nobody while the part is ours, and never overlapped by a slice.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

/// A part that the kernel or a device works on. Dropping it leaks the part and so keeps the memory.
#[derive(Debug)]
pub struct Lent(ManuallyDrop<Part>);

impl Lent {
    /// Lends a part out.
    pub fn new(part: Part) -> Lent {
        Lent(ManuallyDrop::new(part))
    }

    /// Takes the part back. Only for those who know that the work on it is over.
    pub(crate) fn back(self) -> Part {
        ManuallyDrop::into_inner(self.0)
    }

    /// The lent part, to be looked at.
    pub fn part(&self) -> &Part {
        &self.0
    }

    /// What a device that is host memory does: writes into a part that is lent to it.
    #[cfg(feature = "standin")]
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let to = self.0.pointer(at, bytes.len())?;
        // SAFETY: inside the mapping; while the part is lent, only the work it is lent to reaches it, one piece after
        // another; a slice never overlaps it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn parts_do_not_overlap_and_hold_what_was_put_in() {
        let mut parts = Buffer::new(2 * HUGE_PAGE, None).unwrap().split(HUGE_PAGE / 2);
        assert_eq!(parts.len(), 4);
        for (i, part) in parts.iter_mut().enumerate() {
            part.put(0, &vec![u8::try_from(i).unwrap(); HUGE_PAGE / 2]).unwrap();
        }
        for (i, part) in parts.iter().enumerate() {
            let mut bytes = vec![9; HUGE_PAGE / 2];
            part.get(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| usize::from(*b) == i));
        }
    }

    #[test]
    fn bytes_outside_a_part_are_refused() {
        let mut part = Buffer::new(HUGE_PAGE, None).unwrap().split(4096).remove(1);
        assert!(part.put(4095, &[1, 2]).is_err());
        assert!(part.get(usize::MAX, &mut [0]).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(part.read_from(1, 4096, file.as_fd(), 0).is_err());
    }

    #[test]
    fn a_buffer_lives_until_its_last_part_is_gone_and_its_keepsakes_go_first() {
        struct Told(Arc<Mutex<bool>>);
        impl Drop for Told {
            fn drop(&mut self) {
                *self.0.lock().unwrap() = true;
            }
        }
        let gone = Arc::new(Mutex::new(false));
        let buffer = Buffer::new(1, None).unwrap();
        buffer.keep(Box::new(Told(Arc::clone(&gone))));
        let mut parts = buffer.split(4096);
        let last = parts.pop();
        drop(parts);
        assert!(!*gone.lock().unwrap());
        drop(last);
        assert!(*gone.lock().unwrap());
    }

    #[test]
    fn a_lent_part_that_is_dropped_keeps_the_memory() {
        let mut parts = Buffer::new(1, None).unwrap().split(HUGE_PAGE);
        let part = parts.remove(0);
        let weak = Arc::downgrade(&part.buffer);
        let _ = Lent::new(part);
        assert!(weak.upgrade().is_some());
    }

    #[test]
    fn a_file_is_read_and_written_in_place() {
        let file = tempfile::tempfile().unwrap();
        let mut parts = Buffer::new(1, None).unwrap().split(8192);
        parts[0].put(100, b"glake").unwrap();
        assert_eq!(parts[0].write_to(100, 5, file.as_fd(), 3).unwrap(), 5);
        assert_eq!(parts[1].read_from(7, 100, file.as_fd(), 3).unwrap(), 5);
        let mut seen = [0; 5];
        parts[1].get(7, &mut seen).unwrap();
        assert_eq!(&seen, b"glake");
    }
}
