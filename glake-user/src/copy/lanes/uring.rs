//! Many reads at a time, past the page cache, by io_uring with registered parts. Fastest for what is on the disk: the disk sees
//! a queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::flights::{failed, land};
use super::pread::{Pread, fill_rest};
use super::{Lane, Outcome};
use crate::copy::job::Job;
use crate::copy::paths::Sent;
use crate::copy::source::Source;
use crate::copy::span::Chunk;
use crate::error::{Error, Kind, Result};
use crate::sys::buffer::{Buffer, Part};
use crate::sys::uring::{Direction, Uring};

/// How long a completion is waited for before the copies to the device are looked at again.
const LOOK: Duration = Duration::from_millis(50);

/// Reads by io_uring.
#[derive(Debug, Clone)]
pub struct IoUring {
    /// The file.
    pub source: Arc<Source>,
    /// Polls for completions instead of being interrupted: for raw NVMe devices with poll queues (`nvme.poll_queues`).
    pub polled: bool,
}

impl IoUring {
    /// Whether it can read this file here, found out by trying. The reason if not.
    pub fn probe(&self) -> Result<()> {
        let source = &*self.source;
        let file = source.direct().map_err(|why| Error::new(Kind::Unsupported, why))?;
        let part = Buffer::new(source.align(), None)?.split(source.align()).pop();
        let mut ring =
            Uring::new(part.into_iter().collect(), file, self.polled).map_err(|(e, _)| refused(e))?;
        if source.size() == 0 {
            return Ok(());
        }
        let tried = ring.start(Direction::Read, 0, source.align(), 0).and_then(|()| {
            ring.submit()?;
            ring.next(Duration::from_secs(2))
        });
        match tried {
            Ok(Some((_, Ok(_)))) => Ok(()),
            Ok(Some((_, Err(e)))) | Err(e) => Err(Error::os("reading past the page cache", e)),
            Ok(None) => Err(Error::new(Kind::TimedOut, "no answer from the disk within 2 s")),
        }
    }
}

impl Lane for IoUring {
    fn name(&self) -> &'static str {
        if self.polled { "direct_polled" } else { "direct" }
    }

    fn run(&self, job: &Job, parts: Vec<Part>) -> Outcome {
        let pread = |direct| Pread { source: Arc::clone(&self.source), direct };
        let Ok(file) = self.source.direct() else { return pread(false).run(job, parts) };
        match Uring::new(parts, file, self.polled) {
            Ok(ring) => Flow::new(&self.source, job, ring).run(),
            Err((e, parts)) => {
                job.note(format!("{}: reading by pread instead", refused(e).chain()));
                pread(true).run(job, parts)
            }
        }
    }
}

/// Why there is no ring.
fn refused(cause: std::io::Error) -> Error {
    let remedy = match cause.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => {
            "allow it: sysctl kernel.io_uring_disabled, or the container's seccomp profile"
        }
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l)",
        _ => "use the page cache route",
    };
    Error::os("setting up io_uring", cause).remedy(remedy)
}

/// One lane's work.
struct Flow<'a> {
    source: &'a Source,
    job: &'a Job,
    ring: Uring,
    idle: Vec<usize>,
    /// What each part is being read for.
    reading: Vec<Option<&'a Chunk>>,
    flying: VecDeque<(usize, Sent)>,
}

impl<'a> Flow<'a> {
    fn new(source: &'a Source, job: &'a Job, ring: Uring) -> Flow<'a> {
        let count = ring.len();
        Flow {
            source,
            job,
            ring,
            idle: (0..count).collect(),
            reading: vec![None; count],
            flying: VecDeque::new(),
        }
    }

    fn run(mut self) -> Outcome {
        let mut result = self.go();
        // Reads that the kernel still has are waited for as long as there is time; their parts are lost otherwise.
        while self.ring.busy() > 0 && !self.job.time().is_zero() {
            if self.ring.next(LOOK).is_err() {
                break;
            }
        }
        while let Some((index, sent)) = self.flying.pop_front() {
            result = result.and(self.land(index, sent));
        }
        Outcome::new(self.ring.close(), result)
    }

    fn go(&mut self) -> Result<()> {
        loop {
            self.start_reads()?;
            if self.ring.busy() == 0 && self.flying.is_empty() {
                return Ok(());
            }
            let left = self.job.left()?;
            if self.ring.busy() > 0 {
                let done = self.ring.next(left.min(LOOK)).map_err(refused)?;
                if let Some((index, moved)) = done {
                    self.arrived(index, moved)?;
                }
            }
            self.land_done()?;
        }
    }

    fn start_reads(&mut self) -> Result<()> {
        let align = self.source.align();
        let mut started = false;
        while let Some(index) = self.idle.pop() {
            let Some(chunk) = self.job.next() else {
                self.idle.push(index);
                break;
            };
            let begun = self.ring.start(Direction::Read, index, chunk.reads(align), chunk.offset);
            begun.map_err(|e| failed(self.source, chunk, e))?;
            self.reading[index] = Some(chunk);
            started = true;
        }
        if started {
            self.ring.submit().map_err(refused)?;
        }
        Ok(())
    }

    /// A read has ended: what it is short of is read through the page cache, and the part goes on to the device.
    fn arrived(&mut self, index: usize, moved: std::io::Result<usize>) -> Result<()> {
        let (Some(chunk), Some(mut part)) = (self.reading[index].take(), self.ring.take(index)) else {
            return Err(Error::new(Kind::Io, "io_uring completed a read that was not started"));
        };
        let filled = moved
            .map_err(|e| failed(self.source, chunk, e))
            .and_then(|got| fill_rest(self.source, chunk, &mut part, got));
        if let Err(e) = filled {
            let _ = self.ring.give(index, part);
            return Err(e);
        }
        match self.job.upload(part, chunk) {
            Ok(sent) => {
                self.flying.push_back((index, sent));
                Ok(())
            }
            Err(refused) => {
                if let Some(part) = refused.part {
                    let _ = self.ring.give(index, part);
                }
                Err(refused.error)
            }
        }
    }

    /// Takes back the parts whose copies are over; waits for all if no read is under way.
    fn land_done(&mut self) -> Result<()> {
        while let Some((_, sent)) = self.flying.front() {
            if self.ring.busy() > 0 && !self.job.is_done(sent)? {
                return Ok(());
            }
            let Some((index, sent)) = self.flying.pop_front() else { return Ok(()) };
            self.land(index, sent)?;
        }
        Ok(())
    }

    fn land(&mut self, index: usize, sent: Sent) -> Result<()> {
        let part = land(self.job, sent)?;
        self.ring.give(index, part).map_err(|e| Error::os("putting a part back", e))?;
        self.idle.push(index);
        Ok(())
    }
}
