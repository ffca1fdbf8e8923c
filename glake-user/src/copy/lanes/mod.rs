//! Lanes: the ways in which a thread fills parts from a file, and one that writes them to a file. Each that reads keeps the GPU
//! fetching one part while it fills the next.

mod flights;
mod pread;
mod uring;
mod writer;

use std::time::Duration;

use super::job::Job;
use crate::error::Result;
use crate::sys::buffer::Part;
pub use pread::Pread;
pub use uring::IoUring;
pub use writer::Writer;

/// How a thread takes its share of a job.
pub trait Lane: Send + Sync {
    /// As routes, options and metrics call it.
    fn name(&self) -> &'static str;

    /// Takes chunks from the job until there are none, using `parts`. Returns when all that it took is in place.
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
