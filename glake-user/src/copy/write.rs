//! Device memory to a file: all of it under its name, or the old file as it was.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::job::{Moved, Settings, carry_out};
use super::lanes::Writer;
use super::ring::Ring;
use super::span::{Span, windows};
use crate::error::{Error, Kind, Result};
use crate::gpu::Device;

/// What a file is to hold: a beginning from host memory, and ranges of device memory, side by side, up to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The first bytes.
    pub header: Vec<u8>,
    /// Where in the file each range of device memory goes.
    pub spans: Vec<Span>,
    /// Bytes of the file.
    pub size: u64,
}

/// A file under a name of its own until it is whole. Dropped before that, it is removed.
struct Unfinished {
    path: PathBuf,
    done: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Unfinished {
    /// A new file beside `path`, on the same file system.
    fn beside(path: &Path) -> Result<(Unfinished, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().ok_or_else(|| {
            Error::new(Kind::BadInput, format!("{} names no file to write", path.display()))
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}.{}-{number}.part", name.to_string_lossy(), std::process::id());
        let path = path.with_file_name(name);
        let file = File::options().write(true).create_new(true).open(&path);
        let file = file.map_err(|e| Error::os(format!("making {}", path.display()), e))?;
        Ok((Unfinished { path, done: false }, file))
    }
}

/// Writes a file from device memory. Under its name appears the whole file, on the disk, or none: it is written beside, brought to
/// the disk, and renamed. The device's work in [`Settings::after`] is over before its memory is read.
///
/// Errors: `Exhausted` when the disk has no room, found out before the first byte where the file system can tell; `TimedOut`;
/// what the disk or the device refused. Then an older file of that name is as it was.
pub fn write(
    path: &Path,
    image: Image,
    device: &Arc<dyn Device>,
    ring: &Ring,
    settings: &Settings,
    progress: &mut dyn FnMut(u64),
) -> Result<Moved> {
    check(&image)?;
    let (mut unfinished, file) = Unfinished::beside(path)?;
    let doing = |what: &str| format!("{what} {}", path.display());
    make_room(file.as_fd(), image.size).map_err(|e| Error::os(doing("making room for"), e.into()))?;
    // After the room: a size that no disk has would make more chunks than memory holds.
    let chunks = windows(&image.spans, image.size, ring.part_size())?;
    let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&unfinished.path).ok();
    let kept = file.try_clone().map_err(|e| Error::os(doing("writing"), e))?;
    let lane = Arc::new(Writer::new(path.to_owned(), file, direct, image.header));
    let moved = carry_out(doing("writing"), chunks, device, ring, &(lane as Arc<_>), settings, progress)?;
    kept.sync_all().map_err(|e| Error::os(doing("bringing to the disk"), e))?;
    std::fs::rename(&unfinished.path, path).map_err(|e| Error::os(doing("renaming to"), e))?;
    unfinished.done = true;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|f| f.sync_all());
    synced.map_err(|e| Error::os(format!("bringing the folder {} to the disk", folder.display()), e))?;
    Ok(moved)
}

/// Every byte behind the header must come from the device: a gap would hold what a part held before.
fn check(image: &Image) -> Result<()> {
    let mut next = image.header.len() as u64;
    for span in &image.spans {
        if span.offset != next {
            let what = format!(
                "writing device memory to byte {} of a file that is written up to {next}",
                span.offset
            );
            return Err(Error::new(Kind::Misuse, what));
        }
        next = next.saturating_add(span.size);
    }
    if next != image.size {
        return Err(Error::new(Kind::Misuse, format!("a file of {} bytes with {next} to write", image.size)));
    }
    Ok(())
}

/// Takes the disk space now, where the file system can.
fn make_room(file: BorrowedFd<'_>, size: u64) -> rustix::io::Result<()> {
    use rustix::fs::FallocateFlags;
    use rustix::io::Errno;
    if size == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(file, size),
        answer => answer,
    }
}
