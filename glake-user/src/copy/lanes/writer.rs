//! Writing: parts are filled by the device and written, past the page cache where the file system lets them.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use super::{Lane, Outcome};
use crate::copy::job::Job;
use crate::copy::span::Chunk;
use crate::error::{Error, Kind, Result};
use crate::sys::buffer::Part;

/// The unit of writes past the page cache: a page serves nearly every disk; a refused one goes through the page cache.
const UNIT: usize = 4096;

/// Writes a file from device memory.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    cached: File,
    direct: Option<File>,
    header: Vec<u8>,
}

impl Writer {
    /// For a file opened for writing, and opened past the page cache too where that can be. `header` is its beginning.
    pub fn new(path: PathBuf, cached: File, direct: Option<File>, header: Vec<u8>) -> Writer {
        Writer { path, cached, direct, header }
    }

    fn take_chunks(&self, job: &Job, parts: &mut Vec<Part>) -> Result<()> {
        while let Some(chunk) = job.next() {
            job.left()?;
            let Some(part) = parts.pop() else {
                return Err(Error::new(Kind::Exhausted, "a writing thread has no part of the ring left"));
            };
            let mut part = self.fetch(job, chunk, part, parts)?;
            let written = self.put_header(chunk, &mut part).and_then(|()| self.put(job, chunk, &part));
            parts.push(part);
            written?;
            job.arrived(chunk.payload());
        }
        Ok(())
    }

    /// Brings the chunk's device memory into the part.
    fn fetch(&self, job: &Job, chunk: &Chunk, part: Part, parts: &mut Vec<Part>) -> Result<Part> {
        if chunk.pieces.is_empty() {
            return Ok(part);
        }
        match job.download(part, chunk) {
            Ok(sent) => job.land(sent),
            Err(refused) => {
                parts.extend(refused.part);
                Err(refused.error)
            }
        }
    }

    /// The header's bytes that fall into this chunk.
    fn put_header(&self, chunk: &Chunk, part: &mut Part) -> Result<()> {
        let from = usize::try_from(chunk.offset).unwrap_or(usize::MAX).min(self.header.len());
        let to = from.saturating_add(chunk.size).min(self.header.len());
        part.put(0, &self.header[from..to]).map_err(|e| self.failed(chunk, e))
    }

    fn put(&self, job: &Job, chunk: &Chunk, part: &Part) -> Result<()> {
        let whole = chunk.size - chunk.size % UNIT;
        let direct = self.direct.as_ref().filter(|_| whole > 0 && chunk.offset.is_multiple_of(UNIT as u64));
        let mut done = 0;
        if let Some(file) = direct {
            match write_all(part, 0, whole, file.as_fd(), chunk.offset) {
                Ok(()) => done = whole,
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    job.note(
                        "the file system refuses writes past the page cache here: written through it"
                            .to_owned(),
                    );
                }
                Err(e) => return Err(self.failed(chunk, e)),
            }
        }
        let rest = chunk.size - done;
        write_all(part, done, rest, self.cached.as_fd(), chunk.offset + done as u64)
            .map_err(|e| self.failed(chunk, e))
    }

    fn failed(&self, chunk: &Chunk, cause: std::io::Error) -> Error {
        let what = format!("writing {} bytes at {} of {}", chunk.size, chunk.offset, self.path.display());
        Error::os(what, cause)
    }
}

impl Lane for Writer {
    fn name(&self) -> &'static str {
        "save"
    }

    fn run(&self, job: &Job, parts: Vec<Part>) -> Outcome {
        let mut parts = parts;
        let result = self.take_chunks(job, &mut parts);
        Outcome::new(parts, result)
    }
}

fn write_all(part: &Part, at: usize, size: usize, file: BorrowedFd<'_>, offset: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < size {
        match part.write_to(at + done, size - done, file, offset + done as u64) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
