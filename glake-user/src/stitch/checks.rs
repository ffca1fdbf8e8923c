//! Checking mode: guard bytes after each block, and the history of each pointer for errors that name it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::heap::Block;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Stream};

/// Bytes after each block that must not change.
pub(crate) const GUARD: u64 = 512;
const PATTERN: u8 = 0xA5;
/// Events kept for a pointer, and pointers kept in all: the oldest events of a busy pointer say little.
const EVENTS: usize = 8;
const POINTERS: usize = 1 << 20;

#[derive(Debug, Clone)]
struct Entry {
    number: u64,
    what: &'static str,
    size: u64,
    stream: u64,
    thread: String,
}

#[derive(Debug, Default)]
struct Log {
    next: u64,
    pointers: HashMap<u64, VecDeque<Entry>>,
}

/// The state of checking mode.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    log: Mutex<Log>,
}

impl Checks {
    fn note(&self, ptr: u64, what: &'static str, size: u64, stream: Stream) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.next += 1;
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let entry = Entry { number: log.next, what, size, stream: stream.0, thread };
        if log.pointers.len() >= POINTERS && !log.pointers.contains_key(&ptr) {
            return;
        }
        let events = log.pointers.entry(ptr).or_default();
        if events.len() == EVENTS {
            events.pop_front();
        }
        events.push_back(entry);
    }

    /// What happened to a pointer: "3: allocated 100 bytes on stream 0x0 by main; 5: freed ...".
    pub(crate) fn history(&self, ptr: u64) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(events) = log.pointers.get(&ptr) else { return "never seen".to_owned() };
        let line = |e: &Entry| {
            format!(
                "{}: {} {} bytes on stream {:#x} by thread {}",
                e.number, e.what, e.size, e.stream, e.thread
            )
        };
        events.iter().map(line).collect::<Vec<_>>().join("; ")
    }

    /// Writes the guard behind a new block of `requested` bytes.
    pub(crate) fn arm(&self, d: &dyn Device, block: Block, requested: u64, stream: Stream) -> Result<()> {
        self.note(block.ptr, "allocated", requested, stream);
        d.fill(stream, block.ptr + block.size - GUARD, GUARD, PATTERN)
    }

    /// Looks whether the guard still stands; waits for the stream.
    pub(crate) fn disarm(&self, d: &dyn Device, ptr: u64, size: u64, stream: Stream) -> Result<()> {
        let mut guard = [0; GUARD as usize];
        d.read(stream, ptr + size - GUARD, &mut guard)?;
        if let Some(at) = guard.iter().position(|b| *b != PATTERN) {
            let doing = format!(
                "block {ptr:#x} was written past its end: byte {} behind {} usable bytes ({})",
                at,
                size - GUARD,
                self.history(ptr)
            );
            self.note(ptr, "freed, overrun,", size, stream);
            return Err(
                Error::new(Kind::Misuse, doing).remedy("the code that used this block writes too far")
            );
        }
        self.note(ptr, "freed", size, stream);
        Ok(())
    }

    /// Why a pointer is not the heap's.
    pub(crate) fn explain(&self, ptr: u64, doing: &str) -> Error {
        let history = self.history(ptr);
        let what = match history.as_str() {
            "never seen" => format!("{doing} {ptr:#x}, a foreign pointer: this heap never handed it out"),
            _ => format!("{doing} {ptr:#x} again; its history: {history}"),
        };
        Error::new(Kind::Misuse, what).remedy("find who freed it first, or which allocator it came from")
    }
}
