//! io_uring for files: reads and writes of registered parts, many at a time, each part lent to the kernel until its
//! completion. Needs Linux 5.11 (waiting with a time limit); refused where `kernel.io_uring_disabled` or a seccomp filter
//! says so.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::buffer::{Lent, Part};

/// Where a part is.
#[derive(Debug)]
enum Place {
    Here(Part),
    WithKernel(Lent),
    /// With the caller. Its address: the kernel knows the place by it.
    Taken(u64),
}

/// What a ring does to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the part.
    Read,
    /// From the part into the file.
    Write,
}

/// A ring with its parts as fixed buffers and one fixed file. Dropped with work under way, it leaks the parts of that work.
pub struct Uring {
    // Declared first: closed before any part is unmapped.
    ring: IoUring<squeue::Entry, cqueue::Entry>,
    parts: Vec<Place>,
    busy: usize,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uring({} parts, {} busy)", self.parts.len(), self.busy)
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

impl Uring {
    /// A ring for `parts` (at most 1024 of at most 1 GiB each: the kernel's limits) and `file`. With `polled`, completions
    /// are polled for instead of interrupting (files opened with O_DIRECT on devices with poll queues only).
    ///
    /// On failure the parts come back with the reason: `ENOSYS` or `EPERM` where io_uring is off, `ENOMEM` where no more memory
    /// may be locked.
    pub fn new(
        parts: Vec<Part>,
        file: BorrowedFd<'_>,
        polled: bool,
    ) -> Result<Uring, (io::Error, Vec<Part>)> {
        match Self::open(&parts, file, polled) {
            Ok(ring) => Ok(Uring { ring, parts: parts.into_iter().map(Place::Here).collect(), busy: 0 }),
            Err(e) => Err((e, parts)),
        }
    }

    fn open(parts: &[Part], file: BorrowedFd<'_>, polled: bool) -> io::Result<IoUring> {
        let entries = u32::try_from(parts.len().max(1)).map_err(|_| bad("too many parts for a ring"))?;
        let mut builder = IoUring::builder();
        builder.dontfork();
        if polled {
            builder.setup_iopoll();
        }
        let ring = builder.build(entries)?;
        if !ring.params().is_feature_ext_arg() {
            let what = "this kernel's io_uring cannot wait with a time limit (it needs Linux 5.11)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let vectors: Vec<libc::iovec> = parts
            .iter()
            .map(|p| libc::iovec { iov_base: p.address() as *mut libc::c_void, iov_len: p.size() })
            .collect();
        // SAFETY: the parts are mapped and stay so: the ring is closed before they are dropped, and a part that is with the
        // kernel is leaked rather than unmapped.
        unsafe { ring.submitter().register_buffers(&vectors) }?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(ring)
    }

    /// How many parts there are.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many the kernel has.
    pub fn busy(&self) -> usize {
        self.busy
    }

    /// Begins to move `size` bytes between part `index` from its start and the file at `offset`. [`Uring::submit`] or
    /// [`Uring::next`] tells the kernel.
    pub fn start(&mut self, direction: Direction, index: usize, size: usize, offset: u64) -> io::Result<()> {
        let place = self.parts.get_mut(index).ok_or_else(|| bad("no such part"))?;
        let Place::Here(part) = place else { return Err(bad("the part is not here")) };
        let pointer = part.pointer(0, size)?;
        let (size, fixed) = (u32::try_from(size), u16::try_from(index));
        let (Ok(size), Ok(fixed)) = (size, fixed) else {
            return Err(bad("too many bytes or parts for a ring"));
        };
        let entry = match direction {
            Direction::Read => {
                opcode::ReadFixed::new(types::Fixed(0), pointer, size, fixed).offset(offset).build()
            }
            Direction::Write => {
                opcode::WriteFixed::new(types::Fixed(0), pointer, size, fixed).offset(offset).build()
            }
        };
        let entry = entry.user_data(index as u64);
        let address = part.address();
        // SAFETY: the bytes are inside a part that is lent to the kernel, below, until its completion is seen.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::new(io::ErrorKind::WouldBlock, "the ring is full"))?;
        if let Place::Here(part) = std::mem::replace(place, Place::Taken(address)) {
            *place = Place::WithKernel(Lent::new(part));
            self.busy += 1;
        }
        Ok(())
    }

    /// Tells the kernel what was started.
    pub fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(drop)
    }

    /// The next completion: the part's index, and the bytes moved. `None` when none came within `wait`, or nothing is under
    /// way.
    pub fn next(&mut self, wait: Duration) -> io::Result<Option<(usize, io::Result<usize>)>> {
        if self.busy == 0 {
            return Ok(None);
        }
        if let Some(done) = self.completed() {
            return Ok(Some(done));
        }
        let limit = types::Timespec::new().sec(wait.as_secs()).nsec(wait.subsec_nanos());
        let args = types::SubmitArgs::new().timespec(&limit);
        match self.ring.submitter().submit_with_args(1, &args) {
            Err(e)
                if !matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Err(e)
            }
            _ => Ok(self.completed()),
        }
    }

    fn completed(&mut self) -> Option<(usize, io::Result<usize>)> {
        let entry = self.ring.completion().next()?;
        let index = usize::try_from(entry.user_data()).ok()?;
        let place = self.parts.get_mut(index)?;
        match std::mem::replace(place, Place::Taken(0)) {
            Place::WithKernel(lent) => {
                *place = Place::Here(lent.back());
                self.busy -= 1;
            }
            other => *place = other,
        }
        let moved =
            usize::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        Some((index, moved))
    }

    /// Takes a part out, for its next use. `None` while the kernel has it, or after it was taken.
    pub fn take(&mut self, index: usize) -> Option<Part> {
        let place = self.parts.get_mut(index)?;
        match std::mem::replace(place, Place::Taken(0)) {
            Place::Here(part) => {
                *place = Place::Taken(part.address());
                Some(part)
            }
            other => {
                *place = other;
                None
            }
        }
    }

    /// Puts a part back where [`Uring::take`] took it. Another one is refused.
    pub fn give(&mut self, index: usize, part: Part) -> io::Result<()> {
        let place = self.parts.get_mut(index);
        let taken = place.filter(|p| matches!(**p, Place::Taken(at) if at == part.address()));
        *taken.ok_or_else(|| bad("that part does not belong there"))? = Place::Here(part);
        Ok(())
    }

    /// All parts that are here; those with the kernel stay out of use.
    pub fn close(self) -> Vec<Part> {
        let Uring { ring, parts, .. } = self;
        drop(ring);
        parts.into_iter().filter_map(|p| if let Place::Here(part) = p { Some(part) } else { None }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::buffer::Buffer;

    const LONG: Duration = Duration::from_secs(10);

    fn ring(file: &std::fs::File, parts: usize) -> Option<Uring> {
        let mut all = Buffer::new(1 << 20, None).unwrap().split(64 << 10);
        all.truncate(parts);
        match Uring::new(all, file.as_fd(), false) {
            Ok(ring) => Some(ring),
            Err((e, parts)) => {
                assert!(!parts.is_empty());
                println!("skipped: io_uring is refused here: {e}");
                None
            }
        }
    }

    #[test]
    fn bytes_read_are_those_of_the_file_and_the_end_reads_short() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let Some(mut ring) = ring(&file, 2) else { return };
        ring.start(Direction::Read, 0, 65_536, 0).unwrap();
        ring.start(Direction::Read, 1, 65_536, 65_536).unwrap();
        assert!(ring.take(0).is_none(), "the kernel has it");
        let mut seen = vec![Vec::new(); 2];
        while let Some((index, moved)) = ring.next(LONG).unwrap() {
            let part = ring.take(index).unwrap();
            seen[index] = vec![0; moved.unwrap()];
            part.get(0, &mut seen[index]).unwrap();
            ring.give(index, part).unwrap();
        }
        assert_eq!(seen.concat(), bytes);
        assert_eq!(ring.close().len(), 2);
    }

    #[test]
    fn bytes_written_are_in_the_file_and_an_error_is_the_kernels() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(&file, 1) else { return };
        let mut part = ring.take(0).unwrap();
        part.put(0, b"glake").unwrap();
        ring.give(0, part).unwrap();
        ring.start(Direction::Write, 0, 5, 7).unwrap();
        assert_eq!(ring.next(LONG).unwrap().unwrap().1.unwrap(), 5);
        assert_eq!(file.metadata().unwrap().len(), 12);

        let only_written = std::fs::File::create(tempfile::tempdir().unwrap().path().join("f")).unwrap();
        let Some(mut ring) = super::tests::ring(&only_written, 1) else { return };
        ring.start(Direction::Read, 0, 5, 0).unwrap();
        let error = ring.next(LONG).unwrap().unwrap().1.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn a_wait_ends_in_time_and_the_part_is_kept_from_use() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
        let Some(mut ring) = ring(&file, 1) else { return };
        ring.start(Direction::Read, 0, 5, u64::MAX).unwrap();
        if let Some((_, moved)) = ring.next(Duration::from_millis(20)).unwrap() {
            println!("skipped: this kernel does not wait for a pipe here: {moved:?}");
            return;
        }
        assert_eq!(ring.busy(), 1);
        assert!(ring.take(0).is_none());
        assert!(ring.close().is_empty());
    }
}
