//! The memory of one stream: its spaces, its epochs, and what waits.

use std::collections::{HashMap, VecDeque};

use super::apply::{Failure, apply};
use super::depot::{Depot, Piece};
use super::driver::Driver;
use super::epochs::Epochs;
use super::habits::{Habits, LARGE, LASTING, SMALL, SPACES, VAST};
use super::kept::Kept;
use super::plan::{Home, Offer, Part, Plan, Spot};
use super::space::{Mapping, NIL, Node, Space, State};
use super::table::PtrTable;
use super::waiting::Waiting;
use crate::error::Result;
use crate::gpu::Stream;

/// A value of the pointer table: the node, and the space in the top two bits.
const SPACE_SHIFT: u32 = 30;
const NODE_MASK: u32 = (1 << SPACE_SHIFT) - 1;

/// A mapping whose memory lives elsewhere by now; it is unmapped once its epoch is past.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zombie {
    pub(crate) space: usize,
    pub(crate) node: u32,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) epoch: u32,
}

/// Counters of one lane. Exact under the lane's lock.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) allocated: u64,
    pub(crate) requested: u64,
    pub(crate) blocks: u64,
    pub(crate) pending: u64,
    pub(crate) allocated_peak: u64,
    pub(crate) requested_peak: u64,
    pub(crate) blocks_peak: u64,
    pub(crate) active_peak: u64,
    pub(crate) allocated_ever: u64,
    pub(crate) requested_ever: u64,
    pub(crate) blocks_ever: u64,
    pub(crate) remapped: u64,
    pub(crate) zombie: u64,
    pub(crate) lost: u64,
    /// What the heap's own totals know of `allocated` and `requested`.
    pub(crate) published: (u64, u64),
}

/// Which free ranges may give handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All: the caller is the same stream.
    All,
    /// Those that the GPU is done with.
    Past,
    /// Those that were left alone for a while, too.
    Cold,
}

/// A block as the lane found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) size: u64,
    pub(crate) requested: u64,
}

/// The space and the node of a value of the pointer table.
fn place(value: u32) -> (usize, u32) {
    ((value >> SPACE_SHIFT) as usize, value & NODE_MASK)
}

pub(crate) struct Lane {
    pub(crate) stream: Stream,
    pub(crate) spaces: [Space; SPACES],
    /// Of the small space.
    pub(crate) kept: Kept,
    table: PtrTable,
    pub(crate) epochs: Epochs,
    pub(crate) zombies: VecDeque<Zombie>,
    waiting: Vec<Waiting>,
    ticks: u32,
    /// Streams recorded on blocks that are handed out.
    shared: HashMap<u64, Vec<Stream>>,
    pub(crate) tally: Tally,
    pub(crate) habits: Habits,
    bounds: Bounds,
}

/// Where sizes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Large blocks from this size on are handed out from the low end of a free range.
    pub(crate) low_end: u64,
    /// Blocks from this size on have a space of their own.
    pub(crate) vast: u64,
}

impl Lane {
    pub(crate) fn new(stream: Stream, bounds: Bounds) -> Lane {
        Lane {
            stream,
            spaces: std::array::from_fn(|_| Space::new()),
            kept: Kept::new(),
            table: PtrTable::new(),
            epochs: Epochs::new(),
            zombies: VecDeque::new(),
            waiting: Vec::new(),
            ticks: 0,
            shared: HashMap::new(),
            tally: Tally::default(),
            habits: Habits::default(),
            bounds,
        }
    }

    /// A block from a free range, without any driver call.
    pub(crate) fn take(&mut self, space: usize, size: u64, requested: u64) -> Option<u64> {
        if space == SMALL {
            return self.take_small(size, requested);
        }
        self.take_in(self.spaces_for(size), size, requested)
    }

    /// A block from any free range of any large space: rather than going without.
    pub(crate) fn take_anywhere(&mut self, space: usize, size: u64, requested: u64) -> Option<u64> {
        if space == SMALL { None } else { self.take_in(&[LARGE, VAST, LASTING], size, requested) }
    }

    /// The spaces to look in for a large block; where none has room, the first one grows.
    pub(crate) fn spaces_for(&self, size: u64) -> &'static [usize] {
        if size >= self.bounds.vast { &[VAST, LARGE] } else { self.habits.spaces(size, self.tally.allocated) }
    }

    fn take_in(&mut self, spaces: &[usize], size: u64, requested: u64) -> Option<u64> {
        let (space, node) = spaces.iter().find_map(|&s| Some((s, self.spaces[s].fit(size)?)))?;
        // Blocks smaller than a handle come from the high end, larger ones from the low end: so the small ones sit
        // together, and fewer handles are kept from being wholly free by one small block.
        if size < self.bounds.low_end {
            let node = self.spaces[space].hand_out_high(node, size, requested);
            return Some(self.enter(space, node));
        }
        self.spaces[space].hand_out(node, size, requested);
        Some(self.enter(space, node))
    }

    fn take_small(&mut self, size: u64, requested: u64) -> Option<u64> {
        if let Some(node) = self.kept.get(size) {
            self.spaces[SMALL].hand_out_kept(node, requested);
            return Some(self.enter(SMALL, node));
        }
        let node = match self.spaces[SMALL].fit(size) {
            Some(node) => node,
            None if self.kept.bytes() > 0 => {
                self.join_kept();
                self.spaces[SMALL].fit(size)?
            }
            None => return None,
        };
        self.spaces[SMALL].hand_out(node, size, requested);
        Some(self.enter(SMALL, node))
    }

    /// Blocks that were kept whole join the free ranges beside them.
    pub(crate) fn join_kept(&mut self) {
        for node in self.kept.drain() {
            let epoch = self.spaces[SMALL].node(node).epoch;
            self.spaces[SMALL].turn(node, State::Free, epoch);
        }
    }

    /// Counts a node that was just handed out.
    fn enter(&mut self, space: usize, node: u32) -> u64 {
        let Node { start, size, requested, .. } = *self.spaces[space].node(node);
        self.table.insert(start, node | (space as u32) << SPACE_SHIFT);
        let t = &mut self.tally;
        t.allocated += size;
        t.requested += requested;
        t.blocks += 1;
        t.allocated_ever += size;
        t.requested_ever += requested;
        t.blocks_ever += 1;
        t.allocated_peak = t.allocated_peak.max(t.allocated);
        t.requested_peak = t.requested_peak.max(t.requested);
        t.blocks_peak = t.blocks_peak.max(t.blocks);
        t.active_peak = t.active_peak.max(t.allocated + t.pending);
        if space != SMALL {
            self.habits.came(size, self.tally.allocated);
        }
        start
    }

    /// The block at `ptr`, if this lane handed it out.
    pub(crate) fn find(&self, ptr: u64) -> Option<Found> {
        let (space, node) = self.locate(ptr)?;
        let node = self.spaces[space].node(node);
        Some(Found { size: node.size, requested: node.requested })
    }

    pub(crate) fn locate(&self, ptr: u64) -> Option<(usize, u32)> {
        let value = self.table.get(ptr)?;
        Some(place(value))
    }

    /// Takes a block back. `None`: it is not this lane's. With streams recorded on it, it waits for them.
    pub(crate) fn give_back(&mut self, ptr: u64, driver: &Driver, other: Option<Stream>) -> Option<Found> {
        let value = self.table.remove(ptr)?;
        let (space, at) = place(value);
        if self.spaces[space].node(at).lent {
            self.take_back_lent(space, at);
        }
        let node = *self.spaces[space].node(at);
        let found = Found { size: node.size, requested: node.requested };
        self.tally.allocated -= node.size;
        self.tally.requested -= node.requested;
        self.tally.blocks -= 1;
        if space != SMALL {
            self.habits.went(node.size, self.tally.allocated);
        }
        if !node.shared && other.is_none() {
            let epoch = self.epochs.touch();
            if space == SMALL && self.kept.put(at, node.size) {
                self.spaces[SMALL].set_aside(at, epoch);
            } else {
                self.spaces[space].turn(at, State::Free, epoch);
            }
            return Some(found);
        }
        self.wait_for_streams(ptr, space, at, driver, other);
        Some(found)
    }

    #[cold]
    fn wait_for_streams(
        &mut self,
        ptr: u64,
        space: usize,
        node: u32,
        driver: &Driver,
        other: Option<Stream>,
    ) {
        let mut streams = self.shared.remove(&ptr).unwrap_or_default();
        streams.extend(other);
        self.spaces[space].turn(node, State::Pending, self.epochs.open);
        self.tally.pending += self.spaces[space].node(node).size;
        let mut waiting = Waiting { space, node, events: Vec::new(), unmarked: streams };
        waiting.mark(driver);
        self.waiting.push(waiting);
    }

    /// Takes every block back.
    pub(crate) fn take_all_back(&mut self, driver: &Driver) {
        let blocks: Vec<u64> = self.table.iter().map(|(ptr, _)| ptr).collect();
        for ptr in blocks {
            self.give_back(ptr, driver, None);
        }
    }

    /// `stream` uses the block at `ptr` too. False: not this lane's block.
    pub(crate) fn share(&mut self, ptr: u64, stream: Stream) -> bool {
        let Some((space, node)) = self.locate(ptr) else { return false };
        if stream != self.stream {
            self.spaces[space].nodes[node as usize].shared = true;
            let streams = self.shared.entry(ptr).or_default();
            if !streams.contains(&stream) {
                streams.push(stream);
            }
        }
        true
    }

    /// Looks after what waits: epochs and shared blocks. No driver call where nothing waits.
    pub(crate) fn poll(&mut self, driver: &Driver) -> Result<()> {
        self.epochs.poll(driver)?;
        let mut at = 0;
        while at < self.waiting.len() {
            let waiting = &mut self.waiting[at];
            waiting.mark(driver);
            if waiting.poll(driver)? {
                let done = self.waiting.swap_remove(at);
                self.settle(&done);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn settle(&mut self, done: &Waiting) {
        self.tally.pending -= self.spaces[done.space].node(done.node).size;
        let epoch = self.epochs.touch();
        self.spaces[done.space].turn(done.node, State::Free, epoch);
    }

    pub(crate) fn any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True now and then while blocks wait for other streams: asking the driver at every allocation would cost more than
    /// the allocation.
    pub(crate) fn is_due(&mut self) -> bool {
        self.ticks = self.ticks.wrapping_add(1);
        self.ticks.is_multiple_of(16) && self.any_waiting()
    }

    /// Waits for the oldest shared block. False when there is none or it did not come in time.
    pub(crate) fn wait_shared(&mut self, driver: &Driver, timeout_ns: u64) -> Result<bool> {
        let Some(event) = self.waiting.first().and_then(|w| w.events.first().copied()) else {
            return Ok(false);
        };
        let came = driver.wait(event, timeout_ns)?;
        self.poll(driver)?;
        Ok(came)
    }

    /// Places where a space can grow.
    pub(crate) fn spots(&self, space: usize) -> Vec<Spot> {
        let space = &self.spaces[space];
        let mut spots = Vec::new();
        for gap in space.gaps.at_least(&space.nodes, 1) {
            let Node { start, size, prev, next, .. } = *space.node(gap);
            let beside = |at: u32| at != NIL && space.node(at).state == State::Free;
            let of = |at: u32| (space.node(at).start, space.node(at).size);
            spots.push(Spot { free: (start, 0), gap: (start, size), nodes: (NIL, gap) });
            if beside(prev) {
                spots.push(Spot { free: of(prev), gap: (start, size), nodes: (prev, gap) });
            }
            if beside(next) {
                spots.push(Spot { free: of(next), gap: (start, size), nodes: (next, gap) });
            }
        }
        spots
    }

    /// Handles in wholly free ranges.
    pub(crate) fn offers(&mut self, which: Which) -> Vec<Offer> {
        self.join_kept();
        let mut offers = Vec::new();
        for (index, space) in self.spaces.iter().enumerate() {
            for at in space.free.at_least(&space.nodes, 1) {
                let node = *space.node(at);
                let may = match which {
                    Which::All => true,
                    Which::Past => self.epochs.is_past(node.epoch),
                    Which::Cold => self.epochs.is_cold(node.epoch),
                };
                if !may {
                    continue;
                }
                for (address, mapping) in space.handles_in(at).filter(|(_, m)| m.pins == 0) {
                    let home = Home {
                        space: index as u8,
                        address,
                        range: node.start,
                        range_size: node.size,
                        node: at,
                    };
                    offers.push(Offer { handle: mapping.handle, size: mapping.size, home: Some(home) });
                }
            }
        }
        offers
    }

    /// Carries out a plan and hands the block out.
    pub(crate) fn carry_out(
        &mut self,
        plan: &Plan,
        space: usize,
        sizes: (u64, u64),
        driver: &Driver,
        depot: &Depot,
    ) -> Result<u64> {
        let pieces = match apply(driver, depot, plan) {
            Ok(pieces) => pieces,
            Err(Failure { error, lost }) => {
                if let Some((at, size)) = lost {
                    let node = self.spaces[space].carve(plan.spot.nodes.1, at, size);
                    self.spaces[space].turn(node, State::Lost, 0);
                    self.tally.lost += size;
                }
                return Err(error);
            }
        };
        self.bury(&plan.parts);
        let node = self.settle_new(plan, space, &pieces);
        let (size, requested) = sizes;
        let node = if plan.spot.grows_up() {
            self.spaces[space].hand_out(node, size, requested);
            node
        } else {
            self.spaces[space].hand_out_high(node, size, requested)
        };
        Ok(self.enter(space, node))
    }

    /// The new mapping becomes free address space, joined with the range it extends.
    fn settle_new(&mut self, plan: &Plan, space: usize, pieces: &[Piece]) -> u32 {
        let space = &mut self.spaces[space];
        let mut at = plan.at;
        for (handle, size) in pieces {
            space.mappings.insert(at, Mapping { handle: *handle, size: *size, pins: 0 });
            at += size;
        }
        let node = space.carve(plan.spot.nodes.1, plan.at, plan.mapped);
        space.turn(node, State::Free, self.epochs.open)
    }

    /// The places where taken handles were mapped become zombies.
    fn bury(&mut self, parts: &[Part]) {
        let mut homes: Vec<(Home, u64)> = parts
            .iter()
            .filter_map(|p| match p {
                Part::Take(offer) => offer.home.map(|h| (h, offer.size)),
                Part::New(_) => None,
            })
            .collect();
        // From the highest address down: what is left of a range keeps its node.
        homes.sort_by_key(|(h, _)| std::cmp::Reverse(h.address));
        for (home, size) in homes {
            self.tally.remapped += size;
            self.bury_one(usize::from(home.space), home.node, home.address, size, self.epochs.open);
        }
    }

    fn bury_one(&mut self, space: usize, node: u32, address: u64, size: u64, epoch: u32) {
        self.spaces[space].mappings.remove(&address);
        let node = self.spaces[space].carve(node, address, size);
        let node = self.spaces[space].turn(node, State::Zombie, epoch);
        self.tally.zombie += size;
        self.zombies.push_back(Zombie { space, node, address, size, epoch });
    }

    /// Takes handles out of free ranges, `want` bytes or all there are. Never [`Which::All`]: their next user may be
    /// another stream.
    pub(crate) fn harvest(&mut self, want: u64, which: Which) -> Vec<Piece> {
        let mut offers = self.offers(which);
        offers.sort_by_key(|o| o.home.map(|h| std::cmp::Reverse(h.address)));
        let mut pieces = Vec::new();
        let mut got = 0;
        for offer in offers {
            if got >= want {
                break;
            }
            if let Some(home) = offer.home {
                // Its range is past: the mapping can go at any time, so it belongs to no epoch that is still open.
                self.bury_one(usize::from(home.space), home.node, home.address, offer.size, 0);
                if let Some(last) = self.zombies.pop_back() {
                    self.zombies.push_front(last);
                }
                got += offer.size;
                pieces.push((offer.handle, offer.size));
            }
        }
        pieces
    }

    /// The next zombies that can be unmapped: at most `most` of them.
    pub(crate) fn ripe(&mut self, most: usize) -> Vec<Zombie> {
        let mut out = Vec::new();
        while out.len() < most {
            match self.zombies.front() {
                Some(z) if self.epochs.is_past(z.epoch) => out.extend(self.zombies.pop_front()),
                _ => break,
            }
        }
        out
    }

    /// A zombie was unmapped, or could not be.
    pub(crate) fn cleared(&mut self, zombie: &Zombie, unmapped: bool) {
        self.tally.zombie -= zombie.size;
        let state = if unmapped { State::Gap } else { State::Lost };
        if !unmapped {
            self.tally.lost += zombie.size;
        }
        self.spaces[zombie.space].turn(zombie.node, state, 0);
    }
}
