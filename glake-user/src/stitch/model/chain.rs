//! Blocks in address order inside their segments, as both allocators of torch keep them: a doubly linked chain per
//! segment, free blocks also sorted by stream, size and address. Pure.

use std::collections::BTreeSet;

/// Index of a block.
pub(super) type At = u32;

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Mapped and free.
    Free,
    /// In use.
    Used,
    /// Let go by the program, other streams may still use it.
    Pending,
    /// Address space without memory (expandable segments only).
    Unmapped,
}

#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) id: u64,
    pub(super) stream: u64,
    pub(super) pool: usize,
    pub(super) segment: u32,
    pub(super) state: State,
    pub(super) prev: Option<At>,
    pub(super) next: Option<At>,
}

/// One pool's free blocks in the order of best fit: stream, size, address.
pub(super) type FreeSet = BTreeSet<(u64, u64, u64, At)>;

/// All blocks and the free sets of every pool.
#[derive(Debug, Default)]
pub(super) struct Chains {
    slots: Vec<Block>,
    spare: Vec<At>,
    pub(super) free: Vec<FreeSet>,
    /// Unmapped blocks of every pool by stream and address.
    pub(super) unmapped: Vec<BTreeSet<(u64, u64, At)>>,
}

impl Chains {
    pub(super) fn new(pools: usize) -> Chains {
        Chains {
            free: vec![FreeSet::new(); pools],
            unmapped: vec![BTreeSet::new(); pools],
            ..Chains::default()
        }
    }

    pub(super) fn at(&self, at: At) -> &Block {
        &self.slots[at as usize]
    }

    pub(super) fn at_mut(&mut self, at: At) -> &mut Block {
        &mut self.slots[at as usize]
    }

    pub(super) fn add(&mut self, block: Block) -> At {
        let at = match self.spare.pop() {
            Some(at) => {
                self.slots[at as usize] = block;
                at
            }
            None => {
                self.slots.push(block);
                (self.slots.len() - 1) as At
            }
        };
        self.list(at);
        at
    }

    /// Puts a block into the set its state belongs to.
    pub(super) fn list(&mut self, at: At) {
        let b = &self.slots[at as usize];
        match b.state {
            State::Free => drop(self.free[b.pool].insert((b.stream, b.size, b.addr, at))),
            State::Unmapped => drop(self.unmapped[b.pool].insert((b.stream, b.addr, at))),
            State::Used | State::Pending => {}
        }
    }

    /// Takes a block out of its set; call before changing its size, address or state.
    pub(super) fn unlist(&mut self, at: At) {
        let b = &self.slots[at as usize];
        match b.state {
            State::Free => drop(self.free[b.pool].remove(&(b.stream, b.size, b.addr, at))),
            State::Unmapped => drop(self.unmapped[b.pool].remove(&(b.stream, b.addr, at))),
            State::Used | State::Pending => {}
        }
    }

    /// Cuts a block that is in no set: it keeps the first `size` bytes, the rest is a new block in `state`.
    pub(super) fn cut(&mut self, at: At, size: u64, state: State) -> At {
        let b = self.at(at).clone();
        let rest = Block {
            addr: b.addr + size,
            size: b.size - size,
            requested: 0,
            state,
            prev: Some(at),
            next: b.next,
            ..b
        };
        let new = self.add(rest);
        if let Some(next) = b.next {
            self.at_mut(next).prev = Some(new);
        }
        let first = self.at_mut(at);
        first.size = size;
        first.next = Some(new);
        new
    }

    /// Joins a block that is in no set with its neighbours of the same state.
    pub(super) fn merge(&mut self, at: At) {
        let state = self.at(at).state;
        if let Some(prev) = self.at(at).prev.filter(|p| self.at(*p).state == state) {
            self.unlist(prev);
            let gone = self.at(prev).clone();
            let b = self.at_mut(at);
            b.addr = gone.addr;
            b.size += gone.size;
            b.prev = gone.prev;
            if let Some(before) = gone.prev {
                self.at_mut(before).next = Some(at);
            }
            self.spare.push(prev);
        }
        if let Some(next) = self.at(at).next.filter(|n| self.at(*n).state == state) {
            self.unlist(next);
            let gone = self.at(next).clone();
            let b = self.at_mut(at);
            b.size += gone.size;
            b.next = gone.next;
            if let Some(after) = gone.next {
                self.at_mut(after).prev = Some(at);
            }
            self.spare.push(next);
        }
    }

    /// Forgets a block that is in no set and alone in its segment.
    pub(super) fn remove(&mut self, at: At) {
        self.spare.push(at);
    }

    /// The best fit of a pool: the smallest free block of the stream that is large enough.
    pub(super) fn best(&self, pool: usize, stream: u64, size: u64) -> Option<At> {
        let found = self.free[pool].range((stream, size, 0, 0)..).next()?;
        (found.0 == stream).then_some(found.3)
    }
}
