//! Lanes: the ways in which a thread fills parts from a file. Each keeps the GPU fetching one part while it fills the
//! next.

mod flights;
mod pread;
mod uring;

use std::sync::Arc;
use std::time::Duration;

use super::job::Job;
use super::source::Source;
use crate::error::Result;
use crate::sys::buffer::Part;
pub use pread::Pread;
pub use uring::IoUring;

/// How a thread takes its share of a job.
pub trait Lane: Send + Sync {
    /// As routes, options and metrics call it.
    fn name(&self) -> &'static str;

    /// Whether it can read this file here, found out by trying. The reason if not.
    fn probe(&self, source: &Source) -> Result<()>;

    /// Takes chunks from the job until there are none, using `parts`. Returns when the device has all it sent.
    fn run(&self, job: &Job, parts: Vec<Part>) -> Outcome;
}

/// How a lane ended.
#[derive(Debug)]
pub struct Outcome {
    /// The parts that are free again.
    pub parts: Vec<Part>,
    /// How it ended.
    pub result: Result<()>,
    /// CPU time of the thread.
    pub cpu: Duration,
}

impl Outcome {
    /// The outcome of this thread, whose whole life was the lane.
    fn new(parts: Vec<Part>, result: Result<()>) -> Outcome {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let cpu = Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0));
        Outcome { parts, result, cpu }
    }
}

/// Through the page cache, by pread.
pub fn cached() -> Arc<dyn Lane> {
    Arc::new(Pread { direct: false })
}

/// Past the page cache, by io_uring; by pread where io_uring is refused.
pub fn direct() -> Arc<dyn Lane> {
    Arc::new(IoUring { polled: false })
}
