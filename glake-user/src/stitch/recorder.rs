//! Records what a program allocates and frees as a trace, to be played elsewhere.

use std::collections::HashMap;

use super::trace::{Alloc, Pool, TraceEvent, What};

/// A recording in memory. Ends by itself when it is full: the beginning is what a replay needs.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    events: Vec<TraceEvent>,
    ids: HashMap<u64, u64>,
    next: u64,
    limit: usize,
    /// Events that came when it was full.
    pub(crate) dropped: u64,
}

impl Recorder {
    pub(crate) fn new(limit: usize) -> Recorder {
        Recorder { limit, ..Recorder::default() }
    }

    pub(crate) fn allocated(&mut self, at_ns: u64, ptr: u64, size: u64, stream: u64) {
        let id = self.next;
        let what = What::Alloc(Alloc { id, size, stream, pool: Pool::Default });
        if self.push(at_ns, what) {
            self.next += 1;
            self.ids.insert(ptr, id);
        }
    }

    pub(crate) fn freed(&mut self, at_ns: u64, ptr: u64) {
        // Blocks from before the recording are not in it.
        if let Some(id) = self.ids.remove(&ptr) {
            self.push(at_ns, What::Free { id });
        }
    }

    fn push(&mut self, at_ns: u64, what: What) -> bool {
        if self.events.len() >= self.limit {
            self.dropped += 1;
            return false;
        }
        // Two threads may come in the other order than they read the clock.
        let at_ns = self.events.last().map_or(at_ns, |last| at_ns.max(last.at_ns));
        self.events.push(TraceEvent { at_ns, what });
        true
    }

    pub(crate) fn finish(self) -> (Vec<TraceEvent>, u64) {
        (self.events, self.dropped)
    }
}
