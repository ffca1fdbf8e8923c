//! What both of torch's allocators keep book of in the same way: which block of the trace lies where, which blocks wait
//! for other streams, and what is held.

use std::collections::HashMap;

use super::chain::{At, Chains, State};
use crate::stitch::trace::{Pool, Usage};

/// Pools: 0 small, 1 large, 2 and 3 the same of private pools.
const POOLS: usize = 4;

/// The number of a pool.
pub(super) fn pool_of(pool: Pool, small: bool) -> usize {
    usize::from(pool == Pool::Private) * 2 + usize::from(!small)
}

/// The blocks of a trace, where they are, and the counts.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) chains: Chains,
    live: HashMap<u64, At>,
    /// Blocks the program let go of, waiting for other streams.
    pending: HashMap<u64, At>,
    pub(super) usage: Usage,
    /// How often all that was free was given back because an allocation failed.
    pub(super) retries: u64,
}

impl Books {
    pub(super) fn new() -> Books {
        Books {
            chains: Chains::new(POOLS),
            live: HashMap::new(),
            pending: HashMap::new(),
            usage: Usage::default(),
            retries: 0,
        }
    }

    /// Whether a block is in use.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.live.contains_key(&id)
    }

    /// Marks a block that is in no set as used.
    pub(super) fn take(&mut self, at: At, id: u64, requested: u64) {
        let block = self.chains.at_mut(at);
        block.state = State::Used;
        block.id = id;
        block.requested = requested;
        self.usage.allocated += block.size;
        self.usage.requested += requested;
        self.live.insert(id, at);
    }

    /// The program let go of a block that other streams may still use.
    pub(super) fn let_go(&mut self, id: u64) {
        if let Some(at) = self.live.remove(&id) {
            self.leave(at);
            self.chains.at_mut(at).state = State::Pending;
            self.pending.insert(id, at);
        }
    }

    /// A block is free for its own stream: where it is. It is in no set yet.
    pub(super) fn give_back(&mut self, id: u64) -> Option<At> {
        if let Some(at) = self.live.remove(&id) {
            self.leave(at);
            return Some(at);
        }
        self.pending.remove(&id)
    }

    /// All streams were waited for, because an allocation failed: the blocks that waited, in no set yet.
    pub(super) fn wait_for_all(&mut self) -> Vec<At> {
        self.retries += 1;
        self.pending.drain().map(|(_, at)| at).collect()
    }

    fn leave(&mut self, at: At) {
        let block = self.chains.at(at);
        self.usage.allocated -= block.size;
        self.usage.requested -= block.requested;
    }
}
