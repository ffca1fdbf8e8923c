//! A model of torch's expandable segments: one growing range per stream and pool, in handles of 2 or 20 MiB.
//!
//! Rules: c10/cuda/CUDACachingAllocator.cpp, Note [Expandable Segments], `find_expandable_block`, `map_block`,
//! `unmap_block`. Memory is unmapped only when an allocation fails.

use super::books::{Books, pool_of};
use super::chain::{At, Block, State};
use super::sizes::{self, Rounding};
use super::{Cell, Model, Region, Use};
use crate::error::{Error, Kind, Result};
use crate::gpu::costs::Costs;
use crate::stitch::snapshot::Settings;
use crate::stitch::trace::{Alloc, Target, Usage};

/// Address space of one segment: torch takes 9/8 of the GPU's memory; no GPU has more than this.
const SEGMENT_SPACE: u64 = 1 << 42;

/// The model.
#[derive(Debug)]
pub struct Expandable {
    rounding: Rounding,
    capacity: u64,
    costs: Costs,
    books: Books,
    /// First block, pool and stream of each segment.
    segments: Vec<(At, usize, u64)>,
}

/// Bytes of a physical handle.
fn handle(pool: usize) -> u64 {
    if pool.is_multiple_of(2) { sizes::SMALL_SEGMENT } else { sizes::LARGE_SEGMENT }
}

impl Expandable {
    /// An empty allocator on a device of `capacity` bytes.
    pub fn new(settings: &Settings, costs: Costs, capacity: u64) -> Expandable {
        Expandable {
            rounding: Rounding { divisions: settings.roundup_power2_divisions.clone() },
            capacity,
            costs,
            books: Books::new(),
            segments: Vec::new(),
        }
    }

    /// What a free block could grow to.
    fn reach(&self, at: At) -> u64 {
        let b = self.books.chains.at(at);
        let more = b.next.map(|n| self.books.chains.at(n)).filter(|n| n.state == State::Unmapped);
        b.size + more.map_or(0, |n| n.size)
    }

    /// Best fit, where a block at the growing end counts as large as it may become.
    fn find(&self, pool: usize, stream: u64, size: u64) -> Option<At> {
        let mut found =
            self.books.chains.free[pool].range((stream, size, 0, 0)..).take_while(|e| e.0 == stream);
        let mut at = found.next()?.3;
        for next in found {
            if self.reach(next.3) >= self.reach(at) {
                break;
            }
            at = next.3;
        }
        Some(at)
    }

    /// The lowest place with room for `size`: unmapped space, together with the free block before it.
    fn room(&mut self, pool: usize, stream: u64, size: u64) -> At {
        let found = self.books.chains.unmapped[pool]
            .range((stream, 0, 0)..)
            .take_while(|e| e.0 == stream)
            .find_map(|(_, _, at)| {
                let before =
                    self.books.chains.at(*at).prev.filter(|p| self.books.chains.at(*p).state == State::Free);
                let first = before.unwrap_or(*at);
                self.has_space(first, size).then_some(first)
            });
        found.unwrap_or_else(|| self.add_segment(pool, stream))
    }

    fn has_space(&self, first: At, size: u64) -> bool {
        let mut sum = 0u64;
        let mut next = Some(first);
        while let Some(at) = next {
            let b = self.books.chains.at(at);
            if !matches!(b.state, State::Free | State::Unmapped) {
                return false;
            }
            sum = sum.saturating_add(b.size);
            if sum >= size {
                return true;
            }
            next = b.next;
        }
        false
    }

    fn add_segment(&mut self, pool: usize, stream: u64) -> At {
        let index = self.segments.len() as u32;
        let size = SEGMENT_SPACE / handle(pool) * handle(pool);
        let block = Block {
            addr: u64::from(index) * SEGMENT_SPACE,
            size,
            requested: 0,
            id: 0,
            stream,
            pool,
            segment: index,
            state: State::Unmapped,
            prev: None,
            next: None,
        };
        let at = self.books.chains.add(block);
        self.segments.push((at, pool, stream));
        at
    }

    /// Maps at least `want` bytes at the start of an unmapped block; it joins the free block before it.
    fn map(&mut self, at: At, want: u64) -> Option<At> {
        let pool = self.books.chains.at(at).pool;
        let handle = handle(pool);
        let bytes = want.checked_next_multiple_of(handle)?.min(self.books.chains.at(at).size);
        if self.books.usage.reserved.checked_add(bytes)? > self.capacity {
            return None;
        }
        self.books.chains.unlist(at);
        if self.books.chains.at(at).size > bytes {
            self.books.chains.cut(at, bytes, State::Unmapped);
        }
        self.set_state(at, State::Free);
        self.books.usage.reserved += bytes;
        let handles = bytes / handle;
        // Create and map of each handle, one access call over the range whose cost follows its handles.
        self.books.usage.driver_calls += 2 * handles + 1;
        let each = self.costs.create.at(handle) + self.costs.map.at(handle) + self.costs.access.at(handle);
        self.books.usage.foreground_ns += handles * each;
        Some(at)
    }

    /// Changes the state of a block that is in no set, joins and lists it.
    fn set_state(&mut self, at: At, state: State) {
        self.books.chains.at_mut(at).state = state;
        self.books.chains.merge(at);
        self.books.chains.list(at);
        let b = self.books.chains.at(at);
        if b.prev.is_none() {
            self.segments[b.segment as usize].0 = at;
        }
    }

    fn grow(&mut self, pool: usize, stream: u64, size: u64) -> Option<At> {
        let mut at = self.room(pool, stream, size);
        if self.books.chains.at(at).state == State::Unmapped {
            let want = size.min(self.books.chains.at(at).size);
            at = self.map(at, want)?;
        }
        while self.books.chains.at(at).size < size {
            let next = self.books.chains.at(at).next?;
            let want = (size - self.books.chains.at(at).size).min(self.books.chains.at(next).size);
            at = self.map(next, want)?;
        }
        Some(at)
    }

    /// Unmaps every handle that is wholly free, after waiting for all streams.
    fn release_all(&mut self) {
        for at in self.books.wait_for_all() {
            self.set_state(at, State::Free);
        }
        for pool in 0..self.books.chains.free.len() {
            let free: Vec<At> = self.books.chains.free[pool].iter().map(|e| e.3).collect();
            for at in free {
                self.unmap(at);
            }
        }
    }

    fn unmap(&mut self, at: At) {
        let b = self.books.chains.at(at).clone();
        let handle = handle(b.pool);
        let base = u64::from(b.segment) * SEGMENT_SPACE;
        let first = (b.addr - base).next_multiple_of(handle) + base;
        let end = (b.addr + b.size - base) / handle * handle + base;
        if end <= first {
            return;
        }
        self.books.chains.unlist(at);
        let mut middle = at;
        if first > b.addr {
            middle = self.books.chains.cut(at, first - b.addr, State::Used);
            self.books.chains.list(at);
        }
        if b.addr + b.size > end {
            self.books.chains.cut(middle, end - first, State::Free);
        }
        self.set_state(middle, State::Unmapped);
        self.books.usage.reserved -= end - first;
        let handles = (end - first) / handle;
        self.books.usage.driver_calls += 2 * handles;
        let each = self.costs.unmap.at(handle) + self.costs.release.at(handle);
        self.books.usage.foreground_ns += handles * each;
    }
}

impl Target for Expandable {
    fn name(&self) -> &str {
        "expandable_segments"
    }

    fn allocate(&mut self, alloc: &Alloc) -> Result<()> {
        let size = self.rounding.block(alloc.size);
        let pool = pool_of(alloc.pool, size <= sizes::SMALL);
        let mut at = if size < SEGMENT_SPACE / 2 {
            self.find(pool, alloc.stream, size).or_else(|| self.grow(pool, alloc.stream, size))
        } else {
            None
        };
        if at.is_none() && size < SEGMENT_SPACE / 2 {
            self.release_all();
            at = self.grow(pool, alloc.stream, size);
        }
        let Some(at) = at else {
            return Err(Error::new(Kind::Exhausted, format!("allocating {} bytes", alloc.size)));
        };
        self.books.chains.unlist(at);
        if self.books.chains.at(at).size - size >= sizes::BLOCK {
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
            self.set_state(at, State::Free);
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.books.usage
    }
}

impl Model for Expandable {
    fn layout(&self) -> Vec<Region> {
        let region = |(first, pool, stream): &(At, usize, u64)| {
            let mut cells = Vec::new();
            let address = self.books.chains.at(*first).addr;
            let mut next = Some(*first);
            while let Some(at) = next {
                let b = self.books.chains.at(at);
                // The space behind the last mapped byte is not part of the picture.
                if b.state != State::Unmapped || b.next.is_some() {
                    cells.push(Cell {
                        size: b.size,
                        requested: b.requested,
                        id: (b.state == State::Used).then_some(b.id),
                        state: Use::of(b.state),
                    });
                }
                next = b.next;
            }
            let size = cells.iter().map(|c| c.size).sum();
            Region {
                address,
                size,
                stream: *stream,
                small: pool.is_multiple_of(2),
                private: *pool >= 2,
                cells,
            }
        };
        self.segments.iter().map(region).collect()
    }

    fn retries(&self) -> u64 {
        self.books.retries
    }
}
