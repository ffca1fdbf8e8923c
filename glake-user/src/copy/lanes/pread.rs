//! One read at a time, by pread. Fastest for what is in the page cache: the copy out of it is the work, and threads do it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::flights::{Flights, failed};
use super::{Lane, Outcome};
use crate::copy::job::Job;
use crate::copy::source::Source;
use crate::copy::span::Chunk;
use crate::error::{Error, Kind, Result};
use crate::sys::buffer::Part;

/// Reads by pread.
#[derive(Debug, Clone)]
pub struct Pread {
    /// The file.
    pub source: Arc<Source>,
    /// Past the page cache.
    pub direct: bool,
}

impl Lane for Pread {
    fn name(&self) -> &'static str {
        if self.direct { "direct_pread" } else { "page_cache" }
    }

    fn run(&self, job: &Job, parts: Vec<Part>) -> Outcome {
        let mut flights = Flights::new(job, parts);
        let result = self.take_chunks(job, &mut flights);
        let (parts, result) = flights.finish(result);
        Outcome::new(parts, result)
    }
}

impl Pread {
    fn take_chunks(&self, job: &Job, flights: &mut Flights<'_>) -> Result<()> {
        while let Some(chunk) = job.next() {
            job.left()?;
            let Some(mut part) = flights.part()? else {
                return Err(Error::new(Kind::Exhausted, "a copying thread has no part of the ring left"));
            };
            if let Err(e) = self.fill(chunk, &mut part) {
                flights.put_back(part);
                return Err(e);
            }
            flights.send(part, chunk)?;
        }
        Ok(())
    }

    fn fill(&self, chunk: &Chunk, part: &mut Part) -> Result<()> {
        let source = &*self.source;
        match source.direct() {
            Ok(file) if self.direct => {
                let size = chunk.reads(source.align()).min(part.size());
                let got = once(part, 0, size, file, chunk.offset).map_err(|e| failed(source, chunk, e))?;
                // Fewer than asked: the end of the file, or a rest that is no whole unit.
                fill_rest(source, chunk, part, got)
            }
            _ => fill_rest(source, chunk, part, 0),
        }
    }
}

/// One read, begun again after a signal.
fn once(
    part: &mut Part,
    at: usize,
    size: usize,
    file: BorrowedFd<'_>,
    offset: u64,
) -> std::io::Result<usize> {
    loop {
        match part.read_from(at, size, file, offset) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

/// Reads what is missing of a chunk after its first `got` bytes, through the page cache.
pub(super) fn fill_rest(source: &Source, chunk: &Chunk, part: &mut Part, got: usize) -> Result<()> {
    let mut got = got;
    while got < chunk.size {
        let (size, offset) = (chunk.size - got, chunk.offset + got as u64);
        let n = once(part, got, size, source.cached(), offset).map_err(|e| failed(source, chunk, e))?;
        if n == 0 {
            let what = format!("{} ended at byte {offset}, {size} bytes short", source.path().display());
            return Err(Error::new(Kind::BadInput, what)
                .remedy("somebody cut it while it was read: copy it again when nobody writes to it"));
        }
        got += n;
    }
    Ok(())
}
