//! A file that bytes are copied from: opened twice, through the page cache and past it, and watched for changes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::sys::pagecache;

/// The unit of reads past the page cache where the kernel does not tell it (before 6.1): a page serves nearly every disk.
const USUAL_ALIGN: usize = 4096;

/// What a file was when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
    device: u64,
    inode: u64,
}

/// A file to copy from.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    cached: File,
    direct: std::result::Result<File, String>,
    align: usize,
    stamp: Stamp,
}

impl Source {
    /// Opens a regular file or a block device. `Missing`, `Denied`, or `BadInput` for what is neither.
    pub fn open(path: &Path) -> Result<Source> {
        let doing = || format!("opening {}", path.display());
        let cached = File::open(path).map_err(|e| Error::os(doing(), e))?;
        let stamp = stamp(&cached, path)?;
        let direct = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(|e| format!("this file system refuses O_DIRECT ({e})"));
        let align = direct.as_ref().ok().and_then(align_of);
        let direct = match align {
            Some(0) => Err("this file cannot be read past the page cache (the kernel says so)".to_owned()),
            _ => direct,
        };
        let align = align.filter(|a| *a > 0).unwrap_or(USUAL_ALIGN);
        Ok(Source { path: path.to_owned(), cached, direct, align, stamp })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// The device it lies on, as `stat` numbers it.
    pub fn device(&self) -> u64 {
        self.stamp.device
    }

    /// Through the page cache.
    pub fn cached(&self) -> BorrowedFd<'_> {
        self.cached.as_fd()
    }

    /// Past the page cache, or why not.
    pub fn direct(&self) -> std::result::Result<BorrowedFd<'_>, &str> {
        self.direct.as_ref().map(AsFd::as_fd).map_err(String::as_str)
    }

    /// The unit of reads past the page cache, in bytes.
    pub fn align(&self) -> usize {
        self.align
    }

    /// The share of the file that is in the page cache, 0 to 1. `None` where the kernel does not say.
    pub fn cached_share(&self) -> Option<f64> {
        if self.size() == 0 {
            return None;
        }
        let resident = pagecache::resident(self.cached.as_fd(), self.size()).ok()?;
        Some((resident as f64 / self.size() as f64).min(1.0))
    }

    /// Asks the kernel to drop the file's clean pages from the page cache, for measuring. Pages in use stay.
    pub fn drop_cache(&self) -> Result<()> {
        rustix::fs::fadvise(&self.cached, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|e| Error::os(format!("dropping {} from the page cache", self.path.display()), e.into()))
    }

    /// An error if the file is not what it was when it was opened.
    pub fn unchanged(&self) -> Result<()> {
        let now = stamp(&self.cached, &self.path)?;
        if now == self.stamp {
            return Ok(());
        }
        let sizes = match (self.stamp.size, now.size) {
            (before, after) if before == after => "written to".to_owned(),
            (before, after) => format!("changed from {before} to {after} bytes"),
        };
        let doing = format!("{} was {sizes} while it was read", self.path.display());
        Err(Error::new(Kind::BadInput, doing)
            .remedy("what was copied is a mixture: copy it again when nobody writes to it"))
    }
}

fn stamp(file: &File, path: &Path) -> Result<Stamp> {
    let doing = || format!("looking at {}", path.display());
    let meta = file.metadata().map_err(|e| Error::os(doing(), e))?;
    let kind = meta.file_type();
    let size = if kind.is_file() {
        meta.len()
    } else if kind.is_block_device() {
        use std::io::{Seek, SeekFrom};
        let mut file = file;
        file.seek(SeekFrom::End(0)).map_err(|e| Error::os(doing(), e))?
    } else {
        let what = format!("{} is neither a file nor a block device", path.display());
        return Err(Error::new(Kind::BadInput, what));
    };
    Ok(Stamp { size, modified: (meta.mtime(), meta.mtime_nsec()), device: meta.dev(), inode: meta.ino() })
}

/// The unit that the file system names for reads past the page cache. `None`: it does not say; 0: they cannot be done.
fn align_of(file: &File) -> Option<usize> {
    use rustix::fs::{AtFlags, StatxFlags};
    let asked = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if asked.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let unit = asked.stx_dio_offset_align.max(asked.stx_dio_mem_align) as usize;
    if asked.stx_dio_offset_align == 0 {
        return Some(0);
    }
    Some(unit.next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_or_is_written_to_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let source = Source::open(&path).unwrap();
        source.unchanged().unwrap();
        File::options().append(true).open(&path).unwrap().set_len(10_001).unwrap();
        let e = source.unchanged().unwrap_err().chain();
        assert!(e.contains("changed from 10000 to 10001 bytes") && e.contains("copy it again"), "{e}");
        let source = Source::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(source.unchanged().unwrap_err().to_string().contains("written to"));
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Source::open(&dir.path().join("none")).unwrap_err().kind(), Kind::Missing);
        let e = Source::open(dir.path()).unwrap_err();
        assert!(e.to_string().contains("neither a file nor a block device"), "{e}");
    }

    #[test]
    fn a_file_just_written_is_in_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let source = Source::open(&path).unwrap();
        assert_eq!(source.cached_share(), Some(1.0));
        assert!(source.align().is_power_of_two());
    }
}
