//! Giving memory back, and putting free memory together, on demand.

use super::habits::{LARGE, SPACES};
use super::heap::{Heap, Want};
use super::lane::{Lane, Which};
use super::lanes::lock;
use super::plan::{Shortage, plan};
use super::space::State;
use crate::error::{Error, Kind, Result};

/// What [`Heap::defragment`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defragmented {
    /// The largest free range of any stream before.
    pub largest_before: u64,
    /// And after.
    pub largest_after: u64,
    /// Bytes of physical memory remapped.
    pub remapped: u64,
}

impl Heap {
    /// Gives all memory that is wholly free back to the driver (torch's `empty_cache`). Waits for the streams. The bytes
    /// given back.
    pub fn trim(&self) -> Result<u64> {
        self.not_while_capturing("giving memory back")?;
        for lane in self.lanes.all() {
            let mut lane = lock(lane);
            self.wait_for_all(&mut lane)?;
            let pieces = lane.harvest(u64::MAX, Which::Past);
            self.depot.keep(pieces);
            self.unmap_zombies(&mut lane);
        }
        self.depot.release_idle(&self.front)
    }

    fn not_while_capturing(&self, doing: &str) -> Result<()> {
        if self.captures.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            return Ok(());
        }
        Err(Error::new(Kind::Misuse, format!("{doing} while a graph is captured"))
            .remedy("end the capture first"))
    }

    /// All earlier work of the lane's stream is done when this returns.
    fn wait_for_all(&self, lane: &mut Lane) -> Result<()> {
        // Shared blocks first: they become free in the epoch that is then closed.
        while lane.any_waiting() && lane.wait_shared(&self.front, self.options.wait_ns)? {}
        let stream = lane.stream;
        lane.epochs.close(&self.front, stream);
        while lane.epochs.wait_oldest(&self.front, self.options.wait_ns)? {}
        Ok(())
    }

    fn unmap_zombies(&self, lane: &mut Lane) {
        for zombie in lane.ripe(usize::MAX) {
            let unmapped = self.front.unmap(zombie.address, zombie.size);
            if let Err(e) = &unmapped {
                log::warn!("address range {:#x} is given up: {}", zombie.address, e.chain());
            }
            lane.cleared(&zombie, unmapped.is_ok());
        }
    }

    /// Puts the wholly free memory of each stream together into one free range, so that one large block fits without
    /// new memory. Costs driver time for every handle moved; allocations do this themselves as far as they need it.
    pub fn defragment(&self) -> Result<Defragmented> {
        self.not_while_capturing("defragmenting")?;
        let mut done = Defragmented::default();
        for lane in self.lanes.all() {
            let mut held = lock(lane);
            let before = held.largest_free();
            let moved = held.tally.remapped;
            self.gather(&mut held)?;
            done.largest_before = done.largest_before.max(before);
            done.largest_after = done.largest_after.max(held.largest_free());
            done.remapped += held.tally.remapped - moved;
        }
        Ok(done)
    }

    fn gather(&self, lane: &mut Lane) -> Result<()> {
        let whole: u64 = lane.offers(self.own_ranges()).iter().map(|o| o.size).sum();
        if whole <= lane.largest_free() {
            return Ok(());
        }
        let want = Want { space: LARGE, size: whole, requested: 0 };
        let plan = loop {
            let mut view = self.view(lane, &want, 0);
            view.spots.retain(|s| s.free.1 == 0);
            match plan(&view) {
                Ok(plan) => break plan,
                Err(Shortage::Space) => self.add_region(lane, &want)?,
                Err(Shortage::Memory(_)) => return Ok(()),
            }
        };
        let ptr = lane.carry_out(&plan, LARGE, (whole, 0), &self.front, &self.depot)?;
        lane.give_back(ptr, &self.front, None);
        self.settle_zombies(lane)
    }

    /// Ends the heap: gives all memory and address space back. Refused while blocks are allocated.
    pub fn close(self) -> Result<()> {
        let blocks = self.stats().blocks.current;
        if blocks > 0 {
            let doing = format!("closing a heap with {blocks} blocks allocated");
            return Err(Error::new(Kind::Misuse, doing).remedy("free them first"));
        }
        self.dissolve()
    }

    /// Gives everything back that is not in a block any more.
    fn dissolve(&self) -> Result<()> {
        for lane in self.lanes.all() {
            lock(lane).unpin_all();
        }
        self.trim()?;
        for (start, size) in self.regions.drain() {
            let clean = |lane: &Lane| lane.is_clean(start, size);
            if self.lanes.all().into_iter().all(|lane| clean(&lock(lane))) {
                self.front.device.unreserve(start, size)?;
            }
        }
        Ok(())
    }
}

impl Drop for Heap {
    /// A heap that ends with blocks allocated takes them along, once the work that uses them is done. On a lost device, or
    /// while a graph is captured, nothing can be given back.
    fn drop(&mut self) {
        for lane in self.lanes.all() {
            lock(lane).take_all_back(&self.front);
        }
        if let Err(e) = self.dissolve() {
            log::warn!("ending a heap on {}: {}", self.front.device.name(), e.chain());
        }
    }
}

impl Lane {
    fn largest_free(&self) -> u64 {
        self.spaces.iter().map(|s| s.free.largest(&s.nodes)).max().unwrap_or(0)
    }

    fn unpin_all(&mut self) {
        for mapping in self.spaces.iter_mut().flat_map(|s| s.mappings.values_mut()) {
            mapping.pins = 0;
        }
    }

    /// True when nothing is mapped in the region, or it is not this lane's.
    fn is_clean(&self, start: u64, size: u64) -> bool {
        (0..SPACES).all(|i| {
            let space = &self.spaces[i];
            space.in_order().all(|at| {
                let node = space.node(at);
                node.start < start || node.start >= start + size || node.state == State::Gap
            })
        })
    }
}
