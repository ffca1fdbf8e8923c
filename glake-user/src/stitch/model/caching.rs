//! A model of torch's default caching allocator: best fit per stream in segments that never move.
//!
//! Rules: c10/cuda/CUDACachingAllocator.cpp (`get_free_block`, `should_split`, `alloc_block`, `release_cached_blocks`).
//! Garbage collection is left out: it acts only together with a memory fraction, which a snapshot does not record.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::books::{Books, pool_of};
use super::chain::{At, Block, State};
use super::sizes::{self, Rounding};
use super::{Cell, Model, Region, Use};
use crate::error::{Error, Kind, Result};
use crate::gpu::costs::Line;
use crate::stitch::snapshot::{Run, Settings};
use crate::stitch::trace::{Alloc, Pool, Target, Usage};

/// Blocks at least this much larger than an oversize request are not given to it.
const OVERSIZE_SLACK: u64 = sizes::LARGE_SEGMENT;
/// Where segments lie that the recording has no address for.
const OUR_ADDRESSES: u64 = 1 << 60;
/// cuMemAlloc of 2 MiB to 2 GiB, measured on an H200: 38 to 114 us, whatever the size.
const MALLOC: Line = Line { fixed: 70_000, per_gib: 18_000 };
/// cuMemFree, measured on an H200: 29 to 63 us up to 64 MiB, 600 us for 2 GiB.
const FREE: Line = Line { fixed: 42_000, per_gib: 280_000 };

/// The model.
#[derive(Debug)]
pub struct Caching {
    rounding: Rounding,
    max_split: Option<u64>,
    capacity: u64,
    books: Books,
    segments: BTreeMap<u64, Segment>,
    recorded: HashMap<u64, VecDeque<u64>>,
    next_address: u64,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    size: u64,
    first: At,
}

impl Caching {
    /// An empty allocator with the recording's settings on a device of `capacity` bytes.
    pub fn new(settings: &Settings, capacity: u64) -> Caching {
        Caching {
            rounding: Rounding { divisions: settings.roundup_power2_divisions.clone() },
            max_split: settings.max_split_size,
            capacity,
            books: Books::new(),
            segments: BTreeMap::new(),
            recorded: HashMap::new(),
            next_address: OUR_ADDRESSES,
        }
    }

    /// As it stood before the first event of a run, and with the addresses that the driver gave during it: ties
    /// between blocks of one size are decided by address.
    pub fn at_start_of(run: &Run, settings: &Settings, capacity: u64) -> Caching {
        let mut model = Caching::new(settings, capacity);
        for (size, address) in &run.recorded.addresses {
            model.recorded.entry(*size).or_default().push_back(*address);
        }
        for segment in &run.start {
            model.seed(segment);
        }
        model
    }

    fn seed(&mut self, start: &crate::stitch::snapshot::StartSegment) {
        let pool = if start.private { Pool::Private } else { Pool::Default };
        let at = self.add_segment(start.address, start.size, start.stream, pool_of(pool, start.small));
        let mut rest = at;
        for held in &start.blocks {
            let Some(before) = held.address.checked_sub(self.books.chains.at(rest).addr) else { continue };
            if before + held.size > self.books.chains.at(rest).size {
                continue;
            }
            self.books.chains.unlist(rest);
            let mut here = rest;
            if before > 0 {
                here = self.books.chains.cut(rest, before, State::Used);
                self.books.chains.list(rest);
            }
            let left = self.books.chains.at(here).size > held.size;
            rest = if left { self.books.chains.cut(here, held.size, State::Free) } else { here };
            self.books.take(here, held.id, held.requested);
            if !left {
                break;
            }
        }
    }

    fn add_segment(&mut self, addr: u64, size: u64, stream: u64, pool: usize) -> At {
        let block = Block {
            addr,
            size,
            requested: 0,
            id: 0,
            stream,
            pool,
            segment: 0,
            state: State::Free,
            prev: None,
            next: None,
        };
        let at = self.books.chains.add(block);
        self.segments.insert(addr, Segment { size, first: at });
        self.books.usage.reserved += size;
        at
    }

    /// The best free block, if the rules on oversize blocks let it be used.
    fn find(&self, pool: usize, stream: u64, size: u64) -> Option<At> {
        let at = self.books.chains.best(pool, stream, size)?;
        let found = self.books.chains.at(at).size;
        let max = self.max_split.unwrap_or(u64::MAX);
        if (size < max && found >= max) || (size >= max && found >= size.saturating_add(OVERSIZE_SLACK)) {
            return None;
        }
        Some(at)
    }

    fn splits(&self, pool: usize, block: u64, size: u64) -> bool {
        let rest = block - size;
        if pool.is_multiple_of(2) {
            return rest >= sizes::BLOCK;
        }
        size < self.max_split.unwrap_or(u64::MAX) && rest > sizes::SMALL
    }

    fn ask_driver(&mut self, pool: usize, stream: u64, size: u64) -> Option<At> {
        let bytes = sizes::segment(size);
        if self.books.usage.reserved.checked_add(bytes)? > self.capacity {
            return None;
        }
        let addr = self.address(bytes);
        self.books.usage.driver_calls += 1;
        self.books.usage.foreground_ns += MALLOC.at(bytes);
        Some(self.add_segment(addr, bytes, stream, pool))
    }

    /// The address the driver gave to the next segment of this size in the recording, where it is not taken.
    fn address(&mut self, size: u64) -> u64 {
        while let Some(addr) = self.recorded.get_mut(&size).and_then(VecDeque::pop_front) {
            let Some(end) = addr.checked_add(size) else { continue };
            let before = self.segments.range(..end).next_back();
            if before.is_none_or(|(start, s)| start + s.size <= addr) {
                return addr;
            }
        }
        let addr = self.next_address;
        self.next_address += size.next_multiple_of(sizes::SMALL_SEGMENT);
        addr
    }

    /// Gives every segment that is wholly free back to the driver, after waiting for all streams.
    fn release_all(&mut self) {
        for at in self.books.wait_for_all() {
            self.put_back(at);
        }
        let whole: Vec<u64> = self
            .segments
            .iter()
            .filter(|(_, s)| {
                let b = self.books.chains.at(s.first);
                b.state == State::Free && b.size == s.size
            })
            .map(|(addr, _)| *addr)
            .collect();
        for addr in whole {
            self.release(addr);
        }
    }

    fn release(&mut self, addr: u64) {
        let Some(segment) = self.segments.remove(&addr) else { return };
        self.books.chains.unlist(segment.first);
        self.books.chains.remove(segment.first);
        self.books.usage.reserved -= segment.size;
        self.books.usage.driver_calls += 1;
        self.books.usage.foreground_ns += FREE.at(segment.size);
    }

    /// With a split limit: gives back oversize blocks first, just enough for the request.
    fn release_oversize(&mut self, pool: usize, stream: u64, size: u64) -> bool {
        let Some(max) = self.max_split else { return false };
        let want = size.max(max);
        if let Some(at) = self.books.chains.best(pool, stream, want) {
            let addr = self.books.chains.at(at).addr;
            self.release(addr);
            return true;
        }
        let mut released = 0;
        while released < want {
            let largest =
                self.books.chains.free[pool].range(..(stream, u64::MAX, u64::MAX, At::MAX)).next_back();
            let Some(&(of, bytes, addr, _)) = largest else { return false };
            if of != stream || bytes < max || !self.segments.contains_key(&addr) {
                return false;
            }
            self.release(addr);
            released += bytes;
        }
        true
    }

    /// Back into its pool, joined with free neighbours.
    fn put_back(&mut self, at: At) {
        self.books.chains.at_mut(at).state = State::Free;
        self.books.chains.merge(at);
        self.books.chains.list(at);
        let block = self.books.chains.at(at);
        if block.prev.is_none() {
            let addr = block.addr;
            if let Some(segment) = self.segments.get_mut(&addr) {
                segment.first = at;
            }
        }
    }
}

impl Target for Caching {
    fn name(&self) -> &str {
        "default"
    }

    fn allocate(&mut self, alloc: &Alloc) -> Result<()> {
        if self.books.holds(alloc.id) {
            return Ok(());
        }
        let size = self.rounding.block(alloc.size);
        let pool = pool_of(alloc.pool, size <= sizes::SMALL);
        let mut at = self.find(pool, alloc.stream, size);
        at = at.or_else(|| self.ask_driver(pool, alloc.stream, size));
        if at.is_none() && self.release_oversize(pool, alloc.stream, size) {
            at = self.ask_driver(pool, alloc.stream, size);
        }
        if at.is_none() {
            self.release_all();
            at = self.ask_driver(pool, alloc.stream, size);
        }
        let Some(at) = at else {
            return Err(Error::new(Kind::Exhausted, format!("allocating {} bytes", alloc.size)));
        };
        self.books.chains.unlist(at);
        if self.splits(pool, self.books.chains.at(at).size, size) {
            self.books.chains.cut(at, size, State::Free);
        }
        self.books.take(at, alloc.id, alloc.size);
        Ok(())
    }

    fn free_requested(&mut self, id: u64) -> Result<()> {
        self.books.let_go(id);
        Ok(())
    }

    fn free(&mut self, id: u64) -> Result<()> {
        if let Some(at) = self.books.give_back(id) {
            self.put_back(at);
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.books.usage
    }
}

impl Model for Caching {
    fn layout(&self) -> Vec<Region> {
        let region = |(addr, segment): (&u64, &Segment)| {
            let mut cells = Vec::new();
            let mut next = Some(segment.first);
            let mut small = false;
            let mut private = false;
            let mut stream = 0;
            while let Some(at) = next {
                let b = self.books.chains.at(at);
                (small, private, stream) = (b.pool.is_multiple_of(2), b.pool >= 2, b.stream);
                cells.push(Cell {
                    size: b.size,
                    requested: b.requested,
                    id: (b.state == State::Used).then_some(b.id),
                    state: Use::of(b.state),
                });
                next = b.next;
            }
            Region { address: *addr, size: segment.size, stream, small, private, cells }
        };
        self.segments.iter().map(region).collect()
    }

    fn retries(&self) -> u64 {
        self.books.retries
    }
}
