//! The heap as something a trace can be played into.

use std::collections::HashMap;

use super::heap::Heap;
use super::trace::{Alloc, Target, Usage};
use crate::error::{Error, Kind, Result};
use crate::gpu::Stream;

/// Plays a trace into a heap. `clock` moves the device's time on, where that is simulated.
pub struct HeapTarget<'a> {
    heap: &'a Heap,
    clock: Box<dyn FnMut(u64) + 'a>,
    streams: HashMap<u64, Stream>,
    blocks: HashMap<u64, (u64, Stream)>,
    last_ns: u64,
}

/// Background driver time per millisecond of trace time: one fifth.
const DUTY: u64 = 5;

impl<'a> HeapTarget<'a> {
    /// Plays into `heap`; trace streams are mapped to new streams of its device as they come (0 stays 0).
    pub fn new(heap: &'a Heap, clock: Box<dyn FnMut(u64) + 'a>) -> HeapTarget<'a> {
        let streams = HashMap::from([(0, Stream(0))]);
        HeapTarget { heap, clock, streams, blocks: HashMap::new(), last_ns: 0 }
    }

    fn stream(&mut self, of: u64) -> Result<Stream> {
        if let Some(stream) = self.streams.get(&of) {
            return Ok(*stream);
        }
        let stream = self.heap.device().create_stream()?;
        self.streams.insert(of, stream);
        Ok(stream)
    }
}

impl Target for HeapTarget<'_> {
    fn name(&self) -> &str {
        "glake"
    }

    fn advance(&mut self, at_ns: u64) -> Result<()> {
        (self.clock)(at_ns);
        let passed = at_ns.saturating_sub(self.last_ns);
        // The reclaimer wakes every millisecond.
        if passed >= 1_000_000 {
            self.last_ns = at_ns;
            self.heap.reclaim(passed / DUTY)?;
        }
        Ok(())
    }

    fn allocate(&mut self, alloc: &Alloc) -> Result<()> {
        let stream = self.stream(alloc.stream)?;
        let block = self.heap.allocate(alloc.size, stream)?;
        self.blocks.insert(alloc.id, (block.ptr, stream));
        Ok(())
    }

    fn free(&mut self, id: u64) -> Result<()> {
        let Some((ptr, stream)) = self.blocks.remove(&id) else {
            return Err(Error::new(Kind::BadInput, format!("playing a trace: block {id} was not allocated")));
        };
        self.heap.free(ptr, stream)
    }

    fn usage(&self) -> Usage {
        let (allocated, requested) = self.heap.in_use();
        let (front, back) = (self.heap.front.total(), self.heap.back.total());
        Usage {
            allocated,
            requested,
            reserved: self.heap.reserved(),
            driver_calls: front.calls + back.calls,
            foreground_ns: front.ns,
            background_ns: back.ns,
        }
    }
}
