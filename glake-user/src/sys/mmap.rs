//! Address space of this process as pieces that can be mapped, protected and cleared one by one: what a GPU's virtual
//! memory calls do, done with host memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::error::{Error, Kind, Result};

/// A file of anonymous memory, sealed against shrinking: a page of it that is mapped never goes away.
#[derive(Debug)]
pub struct MemoryFile(OwnedFd);

impl MemoryFile {
    /// A new file of `size` bytes, all zero; pages exist once they are touched.
    pub fn new(name: &str, size: u64) -> Result<MemoryFile> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let doing = || format!("making a memory file of {size} bytes");
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::os(doing(), e.into()))?;
        rustix::fs::ftruncate(&fd, size).map_err(|e| Error::os(doing(), e.into()))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).map_err(|e| Error::os(doing(), e.into()))?;
        Ok(MemoryFile(fd))
    }

    /// Takes over a descriptor from outside. Refused unless it is a memory file sealed against shrinking.
    pub fn from_fd(fd: OwnedFd) -> Result<MemoryFile> {
        let doing = "taking a descriptor as GPU memory";
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|e| Error::os(doing, e.into()))?;
        if !seals.contains(rustix::fs::SealFlags::SHRINK) {
            return Err(Error::new(Kind::BadInput, format!("{doing}: it is not sealed against shrinking")));
        }
        Ok(MemoryFile(fd))
    }

    /// Another descriptor of the same file.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        self.0.try_clone().map_err(|e| Error::os("duplicating the descriptor of GPU memory", e))
    }

    /// Gives the pages of a part back to the system; the part reads as zero afterwards.
    pub fn drop_pages(&self, offset: u64, size: u64) -> Result<()> {
        use rustix::fs::FallocateFlags;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.0, flags, offset, size).map_err(|e| {
            Error::os(format!("dropping {size} bytes at {offset:#x} of a memory file"), e.into())
        })
    }
}

/// A range of address space with nothing in it at first. Freed when dropped.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<c_void>,
    size: usize,
    /// Readable and writable parts: start and size, apart from each other or not.
    open: BTreeMap<u64, u64>,
}

// SAFETY: the range belongs to this value alone; reads and writes go through `&self`/`&mut self` methods that copy
// bytes and hand out no reference, and changes of the mapping need `&mut self`.
unsafe impl Send for Reservation {}

impl Reservation {
    /// Reserves `size` bytes, a multiple of the page size.
    pub fn new(size: u64) -> Result<Reservation> {
        let doing = || format!("reserving {size} bytes of address space");
        let bytes = usize::try_from(size).map_err(|e| Error::new(Kind::BadInput, doing()).because(e))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel picks an unused range; nothing existing is touched.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }
                .map_err(|e| Error::os(doing(), e.into()))?;
        let base = NonNull::new(base).ok_or_else(|| Error::new(Kind::Exhausted, doing()))?;
        Ok(Reservation { base, size: bytes, open: BTreeMap::new() })
    }

    /// The first address.
    pub fn start(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// The pointer to `address`, after checking that `[address, address + size)` lies inside.
    fn at(&self, address: u64, size: u64, doing: &str) -> Result<*mut c_void> {
        let offset = address.wrapping_sub(self.start());
        if offset.checked_add(size).is_none_or(|end| end > self.size()) {
            let what = format!("{doing} {size} bytes at {address:#x}, outside the reservation");
            return Err(Error::new(Kind::Misuse, what));
        }
        Ok(self.base.as_ptr().wrapping_byte_add(offset as usize))
    }

    /// Places part of a file at `address`, without access yet.
    pub fn map(&mut self, address: u64, size: u64, file: &MemoryFile, offset: u64) -> Result<()> {
        let at = self.at(address, size, "mapping")?;
        self.close(address, size);
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: MAP_FIXED replaces only pages inside our own reservation (checked by `at`), to which no reference
        // exists anywhere.
        unsafe { rustix::mm::mmap(at, size as usize, ProtFlags::empty(), flags, &file.0, offset) }
            .map_err(|e| Error::os(format!("mapping {size} bytes at {address:#x}"), e.into()))?;
        Ok(())
    }

    /// Opens a range for reading and writing.
    pub fn allow(&mut self, address: u64, size: u64) -> Result<()> {
        let at = self.at(address, size, "opening")?;
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: only pages of our own reservation change, and only towards more access.
        unsafe { rustix::mm::mprotect(at, size as usize, access) }
            .map_err(|e| Error::os(format!("opening {size} bytes at {address:#x}"), e.into()))?;
        self.close(address, size);
        self.open.insert(address, size);
        Ok(())
    }

    /// Takes away what is mapped in a range; the address space stays reserved.
    pub fn clear(&mut self, address: u64, size: u64) -> Result<()> {
        let at = self.at(address, size, "clearing")?;
        self.close(address, size);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `map`; and `open` no longer holds the range, so no later call touches it.
        unsafe { rustix::mm::mmap_anonymous(at, size as usize, ProtFlags::empty(), flags) }
            .map_err(|e| Error::os(format!("clearing {size} bytes at {address:#x}"), e.into()))?;
        Ok(())
    }

    /// Forgets that a range is open, cutting the parts that reach beyond it.
    fn close(&mut self, address: u64, size: u64) {
        let end = address + size;
        let inside: Vec<(u64, u64)> = self
            .open
            .range(..end)
            .rev()
            .take_while(|(a, s)| *a + *s > address)
            .map(|(a, s)| (*a, *s))
            .collect();
        for (start, len) in inside {
            self.open.remove(&start);
            if start < address {
                self.open.insert(start, address - start);
            }
            if start + len > end {
                self.open.insert(end, start + len - end);
            }
        }
    }

    /// True when every byte of the range may be read and written.
    pub fn is_open(&self, address: u64, size: u64) -> bool {
        let mut need = address;
        let end = address + size;
        while need < end {
            match self.open.range(..=need).next_back() {
                Some((start, len)) if start + len > need => need = start + len,
                _ => return false,
            }
        }
        true
    }

    fn opened(&self, address: u64, size: u64, doing: &str) -> Result<*mut u8> {
        let at = self.at(address, size, doing)?;
        if !self.is_open(address, size) {
            let what = format!("{doing} {size} bytes at {address:#x}, where access was not granted");
            return Err(Error::new(Kind::Denied, what));
        }
        Ok(at.cast())
    }

    /// Sets every byte of a range.
    pub fn fill(&mut self, address: u64, size: u64, byte: u8) -> Result<()> {
        let at = self.opened(address, size, "filling")?;
        // SAFETY: the range is inside our reservation, mapped and writable (`open`), and no reference points into it.
        unsafe { at.write_bytes(byte, size as usize) };
        Ok(())
    }

    /// Copies bytes in.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let at = self.opened(address, bytes.len() as u64, "writing")?;
        // SAFETY: as in `fill`; `bytes` is a Rust slice and so cannot overlap memory that no reference points into.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.opened(address, bytes.len() as u64, "reading")?;
        // SAFETY: as in `write`, the other way round.
        unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 65_536;

    #[test]
    fn one_page_of_a_file_shows_the_same_bytes_at_two_places() {
        let file = MemoryFile::new("test", 4 * PAGE).unwrap();
        let mut range = Reservation::new(8 * PAGE).unwrap();
        let (one, two) = (range.start(), range.start() + 5 * PAGE);
        range.map(one, PAGE, &file, PAGE).unwrap();
        range.map(two, PAGE, &file, PAGE).unwrap();
        range.allow(one, PAGE).unwrap();
        range.allow(two, PAGE).unwrap();
        range.write(one + 7, b"glake").unwrap();
        let mut seen = [0; 5];
        range.read(two + 7, &mut seen).unwrap();
        assert_eq!(&seen, b"glake");
        range.clear(one, PAGE).unwrap();
        range.read(two + 7, &mut seen).unwrap();
        assert_eq!(&seen, b"glake");
    }

    #[test]
    fn nothing_is_touched_before_access_is_granted_or_after_it_is_cleared() {
        let file = MemoryFile::new("test", 4 * PAGE).unwrap();
        let mut range = Reservation::new(4 * PAGE).unwrap();
        let start = range.start();
        assert_eq!(range.fill(start, 1, 1).unwrap_err().kind(), Kind::Denied);
        range.map(start, 2 * PAGE, &file, 0).unwrap();
        assert_eq!(range.fill(start, 1, 1).unwrap_err().kind(), Kind::Denied);
        range.allow(start, 2 * PAGE).unwrap();
        range.fill(start, 2 * PAGE, 1).unwrap();
        range.clear(start, PAGE).unwrap();
        assert_eq!(range.fill(start + PAGE - 1, 2, 1).unwrap_err().kind(), Kind::Denied);
        range.fill(start + PAGE, PAGE, 2).unwrap();
        assert_eq!(range.fill(start + 3 * PAGE, 2 * PAGE, 1).unwrap_err().kind(), Kind::Misuse);
    }

    #[test]
    fn dropped_pages_read_as_zero() {
        let file = MemoryFile::new("test", 2 * PAGE).unwrap();
        let mut range = Reservation::new(PAGE).unwrap();
        let start = range.start();
        range.map(start, PAGE, &file, 0).unwrap();
        range.allow(start, PAGE).unwrap();
        range.fill(start, PAGE, 9).unwrap();
        file.drop_pages(0, PAGE).unwrap();
        let mut byte = [1];
        range.read(start + 5, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
}
