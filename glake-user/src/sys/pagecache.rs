//! How much of a file is in the page cache.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::mm::{MapFlags, ProtFlags};

/// `cachestat` has the same number on every architecture (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// As much of a file as one `mincore` call is asked about.
const WINDOW: u64 = 1 << 30;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// The kernel's `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Bytes of the first `size` bytes of a file that are in the page cache, in whole pages.
pub fn resident(file: BorrowedFd<'_>, size: u64) -> io::Result<u64> {
    cachestat(file, size).or_else(|_| mincore(file, size))
}

fn cachestat(file: BorrowedFd<'_>, size: u64) -> io::Result<u64> {
    let range = Range { offset: 0, len: size };
    let mut stat = CacheStat::default();
    // SAFETY: both structures have the kernel's layout and live through the call; flags must be 0.
    let code = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.cached * rustix::param::page_size() as u64)
}

/// For kernels before 6.5. Of files that the caller may not write, the kernel tells nothing true since 5.2: everything counts
/// as cached.
fn mincore(file: BorrowedFd<'_>, size: u64) -> io::Result<u64> {
    let page = rustix::param::page_size();
    let mut pages = 0;
    for offset in (0..size).step_by(WINDOW as usize) {
        let len = (size - offset).min(WINDOW) as usize;
        // SAFETY: the kernel picks an unused range; the mapping is never read through.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, offset)
        }?;
        let mut map = vec![0_u8; len.div_ceil(page)];
        // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
        let code = unsafe { libc::mincore(base, len, map.as_mut_ptr()) };
        let error = io::Error::last_os_error();
        // SAFETY: the mapping is ours and used no more.
        unsafe { rustix::mm::munmap(base, len) }?;
        if code != 0 {
            return Err(error);
        }
        pages += map.iter().filter(|b| **b & 1 != 0).count() as u64;
    }
    Ok(pages * page as u64)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_ways_see_a_file_just_written() {
        let file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &file, &vec![7; 1 << 20]).unwrap();
        assert_eq!(mincore(file.as_fd(), 1 << 20).unwrap(), 1 << 20);
        match cachestat(file.as_fd(), 1 << 20) {
            Ok(bytes) => assert_eq!(bytes, 1 << 20),
            Err(e) => println!("skipped: no cachestat here: {e}"),
        }
    }
}
