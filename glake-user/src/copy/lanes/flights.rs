//! A lane's parts: free, or under way to the device.

use std::collections::VecDeque;

use crate::copy::job::Job;
use crate::copy::paths::Sent;
use crate::copy::source::Source;
use crate::copy::span::Chunk;
use crate::error::{Error, Result};
use crate::sys::buffer::Part;

/// The parts of one lane.
pub(super) struct Flights<'a> {
    job: &'a Job,
    free: Vec<Part>,
    flying: VecDeque<Sent>,
}

impl<'a> Flights<'a> {
    pub(super) fn new(job: &'a Job, parts: Vec<Part>) -> Flights<'a> {
        Flights { job, free: parts, flying: VecDeque::new() }
    }

    /// A free part; waits for the oldest copy if there is none. `None`: the lane has no part left.
    pub(super) fn part(&mut self) -> Result<Option<Part>> {
        if self.free.is_empty() {
            self.land()?;
        }
        Ok(self.free.pop())
    }

    /// Puts a part back unused.
    pub(super) fn put_back(&mut self, part: Part) {
        self.free.push(part);
    }

    /// Sends a filled part to the device.
    pub(super) fn send(&mut self, part: Part, chunk: &Chunk) -> Result<()> {
        match self.job.upload(part, chunk) {
            Ok(sent) => {
                self.flying.push_back(sent);
                Ok(())
            }
            Err(refused) => {
                self.free.extend(refused.part);
                Err(refused.error)
            }
        }
    }

    /// Waits for the oldest copy.
    fn land(&mut self) -> Result<()> {
        let Some(sent) = self.flying.pop_front() else { return Ok(()) };
        let part = land(self.job, sent)?;
        self.free.push(part);
        Ok(())
    }

    /// Waits for all copies. The parts that are free, and the first error: `before`, if there is one.
    pub(super) fn finish(mut self, before: Result<()>) -> (Vec<Part>, Result<()>) {
        let mut result = before;
        while !self.flying.is_empty() {
            result = result.and(self.land());
        }
        (self.free, result)
    }
}

/// Waits for one copy to the device, and counts its bytes.
pub(super) fn land(job: &Job, sent: Sent) -> Result<Part> {
    let bytes = sent.bytes();
    let part = job.land(sent)?;
    job.arrived(bytes);
    Ok(part)
}

/// The error of a read that failed.
pub(super) fn failed(source: &Source, chunk: &Chunk, cause: std::io::Error) -> Error {
    let path = source.path().display();
    let e = Error::os(format!("reading {} bytes at {} of {path}", chunk.size, chunk.offset), cause);
    if e.kind() == crate::error::Kind::Io {
        return e.remedy("the disk reports an error: see the kernel log, and `glake events list`");
    }
    e
}
