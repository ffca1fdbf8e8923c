//! The streams of the host GPU: work is put in now and done when the device's time comes to it, so that the host runs
//! ahead as it does with a real GPU.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::gpu_space::Space;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Event, Piece, Stream};
use crate::sys::buffer::Lent;

/// A piece of work.
#[derive(Debug)]
pub(super) enum Work {
    Fill { address: u64, size: u64, byte: u8 },
    Copy { to: u64, from: u64, size: u64 },
    Upload { lent: Arc<Lent>, pieces: Vec<Piece> },
    Download { lent: Arc<Lent>, pieces: Vec<Piece> },
    Mark(Event),
    WaitFor(Event),
}

#[derive(Debug, Default)]
struct Queue {
    /// Each piece of work with the time before which it does not start.
    work: VecDeque<(u64, Work)>,
    capturing: bool,
}

/// All streams and events.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By number, so that the order of equal times is always the same.
    queues: BTreeMap<Stream, Queue>,
    /// Events that are not done yet.
    waiting: HashMap<Event, ()>,
    known: HashMap<Event, bool>,
    pool: Vec<Event>,
    next: u64,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams {
            queues: BTreeMap::from([(Stream(0), Queue::default())]),
            waiting: HashMap::new(),
            known: HashMap::new(),
            pool: Vec::new(),
            next: 1,
        }
    }

    fn queue(&mut self, stream: Stream) -> Result<&mut Queue> {
        self.queues
            .get_mut(&stream)
            .ok_or_else(|| Error::new(Kind::Misuse, format!("stream {:#x} does not exist", stream.0)))
    }

    pub(super) fn create(&mut self) -> Stream {
        let stream = Stream(self.next);
        self.next += 1;
        self.queues.insert(stream, Queue::default());
        stream
    }

    pub(super) fn destroy(&mut self, stream: Stream) -> Result<()> {
        if stream == Stream(0) {
            return Err(Error::new(Kind::Misuse, "destroying the default stream"));
        }
        self.queue(stream)?;
        self.queues.remove(&stream);
        Ok(())
    }

    pub(super) fn push(&mut self, stream: Stream, start_ns: u64, work: Work) -> Result<()> {
        let queue = self.queue(stream)?;
        let after = queue.work.back().map_or(0, |w| w.0);
        queue.work.push_back((start_ns.max(after), work));
        Ok(())
    }

    pub(super) fn record(&mut self, stream: Stream, start_ns: u64) -> Result<Event> {
        if self.queue(stream)?.capturing {
            let doing = format!("recording an event on stream {:#x} while it is captured", stream.0);
            return Err(Error::new(Kind::Misuse, doing));
        }
        let event = self.pool.pop().unwrap_or_else(|| {
            self.next += 1;
            Event(self.next)
        });
        self.known.insert(event, true);
        self.waiting.insert(event, ());
        self.push(stream, start_ns, Work::Mark(event))?;
        Ok(event)
    }

    pub(super) fn is_done(&self, event: Event) -> Result<bool> {
        if !self.known.contains_key(&event) {
            return Err(Error::new(Kind::Misuse, format!("event {} was given back", event.0)));
        }
        Ok(!self.waiting.contains_key(&event))
    }

    pub(super) fn recycle(&mut self, event: Event) {
        // One that is still waiting would be done by a mark that belongs to its past: it is dropped, not pooled.
        if self.known.remove(&event).is_some() && self.waiting.remove(&event).is_none() {
            self.pool.push(event);
        }
    }

    pub(super) fn set_capturing(&mut self, stream: Stream, on: bool) -> Result<()> {
        self.queue(stream)?.capturing = on;
        Ok(())
    }

    pub(super) fn is_capturing(&mut self, stream: Stream) -> Result<bool> {
        Ok(self.queue(stream)?.capturing)
    }

    pub(super) fn is_idle(&mut self, stream: Stream) -> Result<bool> {
        Ok(self.queue(stream)?.work.is_empty())
    }

    /// The earliest time at which something can start.
    pub(super) fn next_start(&self) -> Option<u64> {
        let heads = self.queues.values().filter_map(|q| q.work.front());
        heads.filter(|(_, w)| !self.blocked(w)).map(|(at, _)| *at).min()
    }

    fn blocked(&self, work: &Work) -> bool {
        matches!(work, Work::WaitFor(event) if self.waiting.contains_key(event))
    }

    /// Does everything that has started by `now`, in order of time.
    pub(super) fn run(&mut self, now: u64, space: &Space) -> Result<()> {
        while self.next_start().is_some_and(|at| at <= now) {
            let ready = |q: &Queue| q.work.front().filter(|(_, w)| !self.blocked(w)).map(|(at, _)| *at);
            let first = self.queues.iter().filter_map(|(s, q)| ready(q).map(|at| (at, *s))).min();
            let Some(work) = first.and_then(|(_, s)| self.queues.get_mut(&s)?.work.pop_front()) else {
                break;
            };
            match work.1 {
                Work::Fill { address, size, byte } => space.fill(address, size, byte)?,
                Work::Copy { to, from, size } => space.copy(to, from, size)?,
                Work::Upload { lent, pieces } => pieces.iter().try_for_each(|p| upload(space, &lent, *p))?,
                Work::Download { lent, pieces } => {
                    pieces.iter().try_for_each(|p| download(space, &lent, *p))?
                }
                Work::Mark(event) => {
                    self.waiting.remove(&event);
                }
                Work::WaitFor(_) => {}
            }
        }
        Ok(())
    }
}

/// How much of a copy is done at a time.
const STEP: usize = 256 << 10;

/// Each step of a copy between host and device: where it is, and how long.
fn steps(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).step_by(STEP).map(move |at| (at, STEP.min(size - at)))
}

fn outside(e: std::io::Error) -> Error {
    Error::new(Kind::Misuse, "copying a part of host memory").because(e)
}

fn upload(space: &Space, lent: &Lent, piece: Piece) -> Result<()> {
    let mut bytes = vec![0; STEP.min(piece.size)];
    for (step, len) in steps(piece.size) {
        lent.part().get(piece.at + step, &mut bytes[..len]).map_err(outside)?;
        space.write(piece.address + step as u64, &bytes[..len])?;
    }
    Ok(())
}

fn download(space: &Space, lent: &Lent, piece: Piece) -> Result<()> {
    let mut bytes = vec![0; STEP.min(piece.size)];
    for (step, len) in steps(piece.size) {
        space.read(piece.address + step as u64, &mut bytes[..len])?;
        lent.put(piece.at + step, &bytes[..len]).map_err(outside)?;
    }
    Ok(())
}
