//! The heap of one GPU: what programs call.

use std::sync::Arc;

use super::{Options, Stats};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Stream};

/// A piece of GPU memory handed out. A plain value: the owner gives it back with [`Heap::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The address on the device, a multiple of 512.
    pub ptr: u64,
    /// The bytes behind it: the request rounded up to 512.
    pub size: u64,
}

/// What one call of [`Heap::reclaim`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimed {
    /// Address space unmapped.
    pub unmapped: u64,
    /// Physical memory made ahead.
    pub made: u64,
    /// Address space that still waits.
    pub waiting: u64,
}

/// The allocator of one GPU. Shared by all threads and streams of the process.
pub struct Heap {
    #[expect(dead_code, reason = "used once allocation is in")]
    device: Arc<dyn Device>,
    options: Options,
}

impl Heap {
    /// A heap on `device`. Nothing is reserved before the first allocation.
    pub fn new(device: Arc<dyn Device>, options: Options) -> Result<Heap> {
        Ok(Heap { device, options })
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Memory for work in `stream`. `Exhausted` when the memory or the limit does not suffice.
    pub fn allocate(&self, size: u64, stream: Stream) -> Result<Block> {
        Err(Error::new(Kind::Unsupported, format!("allocating {size} bytes on stream {:#x}", stream.0)))
    }

    /// Gives a block back: later work in `stream` may have it at once.
    pub fn free(&self, ptr: u64, stream: Stream) -> Result<()> {
        Err(Error::new(Kind::Unsupported, format!("freeing {ptr:#x} on stream {:#x}", stream.0)))
    }

    /// `stream` uses the block too: after its free it waits for the work that is then in `stream`.
    pub fn record_stream(&self, ptr: u64, stream: Stream) -> Result<()> {
        Err(Error::new(Kind::Unsupported, format!("recording stream {:#x} on {ptr:#x}", stream.0)))
    }

    /// Background work for at most `budget_ns` of driver time: unmaps what the GPU is done with, makes handles ahead.
    pub fn reclaim(&self, budget_ns: u64) -> Result<Reclaimed> {
        let _ = budget_ns;
        Ok(Reclaimed::default())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
