//! An address space in pieces: every byte of every region belongs to exactly one node, and the nodes of a region are
//! linked in address order. Pure bookkeeping: no device here.

use std::collections::BTreeMap;
use std::ops::Range;

use super::bins::Bins;
use crate::gpu::Handle;

/// No node.
pub(crate) const NIL: u32 = u32::MAX;

/// What a stretch of address space is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    /// A node that is not in use (in the slab's own list).
    #[default]
    Vacant,
    /// Handed out.
    Used,
    /// Mapped, and free for the stream that owns the space.
    Free,
    /// Mapped and free, kept whole for the next block of its size.
    Kept,
    /// Nothing mapped.
    Gap,
    /// Handed back, but other streams may still use it.
    Pending,
    /// Its physical memory was taken and is mapped elsewhere; this mapping waits for the GPU to be done with it.
    Zombie,
    /// A failed driver call left it in an unknown state: never used again.
    Lost,
}

/// A stretch of address space. One cache line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Node {
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// Used: bytes asked for. Free: bytes cannot be told apart any more.
    pub(crate) requested: u64,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) bin_prev: u32,
    pub(crate) bin_next: u32,
    /// Free: the latest epoch in which part of it was freed.
    pub(crate) epoch: u32,
    pub(crate) state: State,
    /// Used: other streams were recorded on it.
    pub(crate) shared: bool,
    /// Used: pinned by [`Heap::share`](super::Heap::share) until it is freed.
    pub(crate) lent: bool,
}

impl Node {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }
}

/// A handle mapped at an address of this space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) handle: Handle,
    pub(crate) size: u64,
    /// Greater than zero: captured, registered or exported; never taken from here.
    pub(crate) pins: u32,
}

/// Regions of address space, their nodes and what is mapped in them.
pub(crate) struct Space {
    pub(crate) nodes: Vec<Node>,
    vacant: u32,
    /// Free nodes by size.
    pub(crate) free: Bins,
    /// Gaps by size.
    pub(crate) gaps: Bins,
    pub(crate) free_bytes: u64,
    /// Handles by the address where they are mapped, zombies left out.
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    /// First nodes of the regions.
    pub(crate) regions: Vec<u32>,
}

impl Space {
    pub(crate) fn new() -> Space {
        Space {
            nodes: Vec::with_capacity(1024),
            vacant: NIL,
            free: Bins::new(),
            gaps: Bins::new(),
            free_bytes: 0,
            mappings: BTreeMap::new(),
            regions: Vec::new(),
        }
    }

    pub(crate) fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    /// Adds reserved address space as one gap.
    pub(crate) fn add_region(&mut self, start: u64, size: u64) {
        let at = self.make(Node { start, size, prev: NIL, next: NIL, ..Node::default() });
        self.regions.push(at);
        self.enter(at, State::Gap);
    }

    /// The block that is handed out and holds `address`.
    pub(crate) fn used_at(&self, address: u64) -> Option<&Node> {
        let holds = |at: &u32| address.wrapping_sub(self.node(*at).start) < self.node(*at).size;
        self.in_order().find(holds).map(|at| self.node(at)).filter(|node| node.state == State::Used)
    }

    /// The best free node for `size` bytes.
    pub(crate) fn fit(&self, size: u64) -> Option<u32> {
        self.free.best(&self.nodes, size)
    }

    /// Hands out the first `size` bytes of a free node; the rest stays free. The node keeps its index.
    pub(crate) fn hand_out(&mut self, at: u32, size: u64, requested: u64) {
        self.leave(at);
        if self.node(at).size > size {
            let rest = self.split(at, size);
            self.enter(rest, State::Free);
        }
        let node = &mut self.nodes[at as usize];
        node.state = State::Used;
        node.requested = requested;
        node.shared = false;
    }

    /// Hands out the last `size` bytes of a free node; gives the node handed out.
    pub(crate) fn hand_out_high(&mut self, at: u32, size: u64, requested: u64) -> u32 {
        let whole = self.node(at).size;
        if whole == size {
            self.hand_out(at, size, requested);
            return at;
        }
        self.leave(at);
        let high = self.split(at, whole - size);
        self.enter(at, State::Free);
        let node = &mut self.nodes[high as usize];
        node.state = State::Used;
        node.requested = requested;
        node.shared = false;
        high
    }

    /// Puts a node that was handed out aside: it is not joined with its neighbours.
    pub(crate) fn set_aside(&mut self, at: u32, epoch: u32) {
        let node = &mut self.nodes[at as usize];
        node.state = State::Kept;
        node.epoch = epoch;
    }

    /// Hands out a node that was set aside.
    pub(crate) fn hand_out_kept(&mut self, at: u32, requested: u64) {
        let node = &mut self.nodes[at as usize];
        node.state = State::Used;
        node.requested = requested;
        node.shared = false;
    }

    /// Gives a node another state and joins it with equal neighbours. Gives the node that now holds its bytes.
    pub(crate) fn turn(&mut self, at: u32, state: State, epoch: u32) -> u32 {
        self.leave(at);
        let mut at = at;
        self.nodes[at as usize].epoch = epoch;
        if matches!(state, State::Free | State::Gap) {
            let Node { prev, next, .. } = *self.node(at);
            if next != NIL && self.node(next).state == state {
                self.leave(next);
                self.join(at, next);
            }
            if prev != NIL && self.node(prev).state == state {
                self.leave(prev);
                self.join(prev, at);
                at = prev;
            }
        }
        self.enter(at, state);
        at
    }

    /// Cuts the node holding `[start, start + size)` so that exactly those bytes are a node; all keep their state.
    pub(crate) fn carve(&mut self, at: u32, start: u64, size: u64) -> u32 {
        let Node { start: from, size: whole, state, .. } = *self.node(at);
        debug_assert!(start >= from && start + size <= from + whole, "carving outside the node");
        self.leave(at);
        let mut middle = at;
        if start > from {
            middle = self.split(at, start - from);
            self.enter(at, state);
        }
        if self.node(middle).size > size {
            let rest = self.split(middle, size);
            self.enter(rest, state);
        }
        self.enter(middle, state);
        middle
    }

    /// The node after the cut; same epoch, in no bin.
    fn split(&mut self, at: u32, size: u64) -> u32 {
        let Node { start, size: whole, next, epoch, .. } = *self.node(at);
        let rest = self.make(Node {
            start: start + size,
            size: whole - size,
            prev: at,
            next,
            epoch,
            ..Node::default()
        });
        if next != NIL {
            self.nodes[next as usize].prev = rest;
        }
        self.nodes[at as usize].next = rest;
        self.nodes[at as usize].size = size;
        rest
    }

    /// Adds the bytes of `second`, which follows `first`, to `first`; neither is in a bin.
    fn join(&mut self, first: u32, second: u32) {
        let Node { size, next, epoch, .. } = *self.node(second);
        let node = &mut self.nodes[first as usize];
        node.size += size;
        node.next = next;
        node.epoch = node.epoch.max(epoch);
        if next != NIL {
            self.nodes[next as usize].prev = first;
        }
        self.nodes[second as usize] = Node { next: self.vacant, ..Node::default() };
        self.vacant = second;
    }

    /// Takes a node out of its bin, if its state has one.
    fn leave(&mut self, at: u32) {
        match self.node(at).state {
            State::Free => {
                self.free_bytes -= self.node(at).size;
                self.free.remove(&mut self.nodes, at);
            }
            State::Gap => self.gaps.remove(&mut self.nodes, at),
            _ => {}
        }
        // Until `enter` it is in no bin, and a neighbour must not take it for one that is.
        self.nodes[at as usize].state = State::Vacant;
    }

    fn enter(&mut self, at: u32, state: State) {
        self.nodes[at as usize].state = state;
        match state {
            State::Free => {
                self.free_bytes += self.node(at).size;
                self.free.insert(&mut self.nodes, at);
            }
            State::Gap => self.gaps.insert(&mut self.nodes, at),
            _ => {}
        }
    }

    fn make(&mut self, node: Node) -> u32 {
        if self.vacant != NIL {
            let at = self.vacant;
            self.vacant = self.node(at).next;
            self.nodes[at as usize] = node;
            return at;
        }
        self.nodes.push(node);
        // 2^32 nodes of 64 bytes are 256 GiB of host memory: the process is gone long before.
        (self.nodes.len() - 1) as u32
    }

    /// All nodes, region by region, in address order.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = u32> + '_ {
        self.regions.iter().flat_map(move |&first| {
            let mut at = first;
            std::iter::from_fn(move || {
                let here = at;
                if here == NIL {
                    return None;
                }
                at = self.node(here).next;
                Some(here)
            })
        })
    }

    /// Address ranges that are mapped without a break, zombies left out.
    pub(crate) fn mapped_runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (start, mapping) in &self.mappings {
            match runs.last_mut() {
                Some((first, size)) if *first + *size == *start => *size += mapping.size,
                _ => runs.push((*start, mapping.size)),
            }
        }
        runs
    }

    /// Where mappings begin that hold part of a node.
    pub(crate) fn mapped_under(&self, at: u32) -> Range<u64> {
        let Node { start, size, .. } = *self.node(at);
        let first = self.mappings.range(..=start).next_back().map_or(start, |(a, _)| *a);
        first..start + size
    }

    /// The handles that lie wholly within a node, by address.
    pub(crate) fn handles_in(&self, at: u32) -> impl Iterator<Item = (u64, Mapping)> + '_ {
        let Node { start, size, .. } = *self.node(at);
        self.mappings
            .range(start..start + size)
            .map(|(a, m)| (*a, *m))
            .filter(move |(a, m)| a + m.size <= start + size)
    }

    /// Checks every rule of the structure. For tests and for checking mode.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut free = 0;
        for &first in &self.regions {
            let (mut at, mut prev) = (first, NIL);
            while at != NIL {
                let node = self.node(at);
                free += if node.state == State::Free { node.size } else { 0 };
                if node.prev != prev || node.size == 0 || node.state == State::Vacant {
                    return Err(format!("node {at} at {:#x} is broken: {node:?}", node.start));
                }
                if prev != NIL {
                    let before = self.node(prev);
                    if before.end() != node.start {
                        return Err(format!("a hole before {:#x}", node.start));
                    }
                    if before.state == node.state && matches!(node.state, State::Free | State::Gap) {
                        return Err(format!("two neighbours at {:#x} were not joined", node.start));
                    }
                }
                prev = at;
                at = node.next;
            }
        }
        let listed: u64 = self.free.at_least(&self.nodes, 1).map(|at| self.node(at).size).sum();
        if listed != free || free != self.free_bytes {
            return Err(format!(
                "free bytes: {free} in nodes, {listed} in bins, {} counted",
                self.free_bytes
            ));
        }
        Ok(())
    }
}
