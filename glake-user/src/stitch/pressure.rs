//! When a request fits in no free range: extend one, and when memory is short climb the ladder.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::habits::{LARGE, SMALL, VAST};
use super::heap::{Heap, Want};
use super::lane::{Lane, Which};
use super::lanes::lock;
use super::plan::{Offer, Part, Plan, Shortage, View, granules, plan};
use crate::error::{Error, Kind, Result};
use crate::units;

/// What is tried when memory is short, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rung {
    /// Free memory of other streams that the GPU is done with.
    OtherStreams,
    /// Blocks of this stream that other streams still use: wait for those.
    SharedBlocks,
    /// Free memory of other streams: wait for their work.
    OtherStreamsBusy,
    /// Ask the program.
    Callbacks,
}

const LADDER: [Rung; 4] = [Rung::OtherStreams, Rung::SharedBlocks, Rung::OtherStreamsBusy, Rung::Callbacks];

/// Address space of small blocks comes in regions of this size.
const SMALL_REGION: u64 = 4 << 30;

/// New memory of this size and more is asked after before any of it is made: else a request that cannot be served would first
/// take all that other processes could use. One question costs less than the first of its handles.
const ASK_FIRST_BYTES: u64 = 1 << 30;

/// A block of this many handles has some that are larger than the usual, by this factor at most; and the least is this part of
/// the usual. The driver's time goes by the number of handles, and somebody waits for it.
const MANY: u64 = 16;
const LARGER: u64 = 4;
const LEAST: u64 = 2;

/// New handles hold at most this part of what the limits leave.
const NEAR: u64 = 512;

/// So much more of the peak, where the program repeats itself: what is remapped now would be remapped at every step, and memory
/// is paid for once.
const AGAIN: f64 = 0.03;

/// How an attempt to extend ended short of a block.
enum Short {
    /// Bytes missing.
    Memory(u64),
    /// The device itself had no more, though the limit would have allowed it.
    Device,
}

impl Want {
    /// The same, where the lane keeps blocks of this habit.
    fn in_its_space(self, lane: &Lane) -> Want {
        let space = if self.space == LARGE { lane.spaces_for(self.size)[0] } else { self.space };
        Want { space, ..self }
    }
}

impl Heap {
    /// An allocation that fits in no free range.
    #[cold]
    pub(crate) fn slow(&self, lane: &Mutex<Lane>, want: &Want) -> Result<u64> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let out = self.climb(lane, want);
        self.busy.fetch_sub(1, Ordering::Relaxed);
        out
    }

    fn climb(&self, lane: &Mutex<Lane>, want: &Want) -> Result<u64> {
        let mut ladder = LADDER.iter();
        // What the device can still give, once it has refused.
        let mut device_left = u64::MAX;
        let missing = loop {
            match self.attempt(lane, want, device_left)? {
                Ok(ptr) => return Ok(ptr),
                Err(Short::Device) => {
                    let free = self.front.device.memory()?.free / self.granule * self.granule;
                    // The same answer twice: the device has it, but not for us.
                    device_left = if free < device_left { free } else { 0 };
                }
                Err(Short::Memory(bytes)) => {
                    let Some(rung) = ladder.next() else { break bytes };
                    self.step(*rung, lane, bytes)?;
                    device_left = u64::MAX;
                }
            }
        };
        self.totals.ooms.fetch_add(1, Ordering::Relaxed);
        Err(self.out_of_memory(want, missing))
    }

    fn attempt(&self, lane: &Mutex<Lane>, want: &Want, device_left: u64) -> Result<Result<u64, Short>> {
        let mut lane = lock(lane);
        self.poll(&mut lane)?;
        if let Some(ptr) = lane.take(want.space, want.size, want.requested) {
            self.publish_now(&mut lane);
            return Ok(Ok(ptr));
        }
        let want = &want.in_its_space(&lane);
        let plan = match self.make_plan(&mut lane, want, device_left)? {
            Ok(plan) => plan,
            Err(missing) => return Ok(self.beside(&mut lane, want).ok_or(Short::Memory(missing))),
        };
        let new = new_bytes(&plan);
        if new > self.slack(&lane, want.size)
            && let Some(ptr) = self.beside(&mut lane, want)
        {
            return Ok(Ok(ptr));
        }
        if new >= ASK_FIRST_BYTES && device_left == u64::MAX && self.front.device.memory()?.free < new {
            return Ok(Err(Short::Device));
        }
        let grows = new > 0;
        let spared = self.headroom() < want.size && plan.parts.iter().any(|p| matches!(p, Part::Take(_)));
        match lane.carry_out(&plan, want.space, (want.size, want.requested), &self.front, &self.depot) {
            Ok(ptr) => {
                self.grows.store(grows, Ordering::Relaxed);
                if self.options.log {
                    log_plan(&plan, want, &lane);
                }
                self.totals.ooms_avoided.fetch_add(u64::from(spared), Ordering::Relaxed);
                self.publish_now(&mut lane);
                self.settle_zombies(&mut lane)?;
                Ok(Ok(ptr))
            }
            Err(e) if e.kind() == Kind::Exhausted => Ok(Err(Short::Device)),
            // Another stream took an idle handle of the plan: make a new plan.
            Err(e) if e.kind() == Kind::TimedOut => Ok(Err(Short::Device)),
            Err(e) => Err(e),
        }
    }

    /// A place beside blocks of another habit: better than none, and than more memory than the policy likes.
    fn beside(&self, lane: &mut Lane, want: &Want) -> Option<u64> {
        let ptr = lane.take_anywhere(want.space, want.size, want.requested)?;
        self.publish_now(lane);
        Some(ptr)
    }

    /// New memory that the limits, the budget that heaps share and the device leave, other processes left out.
    fn headroom(&self) -> u64 {
        self.depot.headroom().min(self.total.saturating_sub(self.depot.reserved()))
    }

    /// A plan, or the bytes that are missing.
    fn make_plan(&self, lane: &mut Lane, want: &Want, device_left: u64) -> Result<Result<Plan, u64>> {
        let mut harvested = false;
        loop {
            let view = self.view(lane, want, device_left);
            match plan(&view) {
                Ok(plan) => {
                    let new = new_bytes(&plan);
                    if new > view.slack && !harvested && self.harvest_cold(lane, new - view.slack) > 0 {
                        harvested = true;
                        continue;
                    }
                    return Ok(Ok(plan));
                }
                Err(Shortage::Space) => self.add_region(lane, want)?,
                Err(Shortage::Memory(missing)) => return Ok(Err(missing)),
            }
        }
    }

    pub(crate) fn view(&self, lane: &mut Lane, want: &Want, device_left: u64) -> View {
        self.publish_now(lane);
        let idle = self.depot.list().into_iter().map(|(handle, size)| Offer { handle, size, home: None });
        let mut offers: Vec<Offer> = idle.collect();
        offers.extend(lane.offers(self.own_ranges()));
        let usual = self.handle_bytes(want);
        View {
            size: want.size,
            space: want.space as u8,
            spots: lane.spots(want.space),
            offers,
            headroom: self.depot.headroom().min(device_left) / self.granule * self.granule,
            slack: self.slack(lane, want.size),
            granule: self.granule,
            handle_bytes: usual,
            most_bytes: if want.size >= MANY * usual { LARGER * usual } else { usual },
            least_bytes: (usual / LEAST).next_multiple_of(self.granule),
            apart: want.space == VAST,
            costs: self.costs,
        }
    }

    /// Which free ranges of its own a stream may take handles from.
    pub(crate) fn own_ranges(&self) -> Which {
        if self.options.remap_while_busy { Which::All } else { Which::Past }
    }

    /// The usual size of a new handle: most are alike, so that any wholly free one fits where one is needed. Smaller where
    /// little is left: what is held then must be used to the last byte.
    fn handle_bytes(&self, want: &Want) -> u64 {
        if want.space == SMALL {
            return self.granule;
        }
        self.options.handle_bytes.min(granules(self.granule, self.headroom() / NEAR))
    }

    /// New memory that the policy prefers to remapping: `reserved <= peak allocated * (1 + ratio)`, see also [`AGAIN`].
    fn slack(&self, lane: &Lane, size: u64) -> u64 {
        let now = self.totals.allocated.load(Ordering::Relaxed) + size;
        let peak = self.totals.allocated_peak.load(Ordering::Relaxed).max(lane.tally.allocated_peak).max(now);
        let again = if lane.habits.repeats(size) { AGAIN } else { 0.0 };
        let allowed = (peak as f64 * (1.0 + self.options.remap_slack_ratio + again)) as u64;
        allowed.saturating_sub(self.depot.reserved()) / self.granule * self.granule
    }

    /// Takes memory that other lanes left alone, where their lock is free: `lane`'s own is held.
    fn harvest_cold(&self, lane: &Lane, want: u64) -> u64 {
        if self.lanes.count() < 2 || self.captures.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        let mut got = 0;
        for other in self.lanes.all() {
            let Ok(mut other) = other.try_lock() else { continue };
            if other.stream == lane.stream || got >= want || self.poll(&mut other).is_err() {
                continue;
            }
            other.epochs.cool(self.front.device.now_ns());
            let pieces = other.harvest(want - got, Which::Cold);
            got += pieces.iter().map(|p| p.1).sum::<u64>();
            self.depot.keep(pieces);
        }
        got
    }

    fn step(&self, rung: Rung, lane: &Mutex<Lane>, missing: u64) -> Result<()> {
        let capturing = self.captures.load(Ordering::Relaxed) > 0;
        match rung {
            Rung::OtherStreams => {
                let stream = lock(lane).stream;
                for other in self.lanes.all() {
                    let mut other = lock(other);
                    if other.stream != stream {
                        self.poll(&mut other)?;
                        self.depot.keep(other.harvest(missing, Which::Past));
                    }
                }
            }
            Rung::SharedBlocks if !capturing => {
                let mut lane = lock(lane);
                while lane.any_waiting() {
                    self.totals.waits.fetch_add(1, Ordering::Relaxed);
                    if !lane.wait_shared(&self.front, self.options.wait_ns)? {
                        break;
                    }
                }
            }
            Rung::OtherStreamsBusy if !capturing => self.wait_for_others(lane, missing)?,
            Rung::Callbacks => {
                let asks = self.on_pressure.lock().unwrap_or_else(PoisonError::into_inner);
                let mut left = missing;
                for ask in asks.iter() {
                    left = left.saturating_sub(ask(left));
                    if left == 0 {
                        break;
                    }
                }
            }
            Rung::SharedBlocks | Rung::OtherStreamsBusy => {}
        }
        Ok(())
    }

    fn wait_for_others(&self, lane: &Mutex<Lane>, missing: u64) -> Result<()> {
        let stream = lock(lane).stream;
        let mut got = 0;
        for other in self.lanes.all() {
            let mut other = lock(other);
            let own = other.stream == stream && self.options.remap_while_busy;
            if own || got >= missing {
                continue;
            }
            let its_stream = other.stream;
            other.epochs.close(&self.front, its_stream);
            self.totals.waits.fetch_add(1, Ordering::Relaxed);
            while other.epochs.wait_oldest(&self.front, self.options.wait_ns)? {}
            let pieces = other.harvest(missing - got, Which::Past);
            got += pieces.iter().map(|p| p.1).sum::<u64>();
            self.depot.keep(pieces);
        }
        Ok(())
    }

    /// Marks the new zombies with an event, and waits when too much address space waits.
    pub(crate) fn settle_zombies(&self, lane: &mut Lane) -> Result<()> {
        if lane.zombies.back().is_some_and(|z| z.epoch == lane.epochs.open) {
            let stream = lane.stream;
            lane.epochs.close(&self.front, stream);
        }
        while lane.tally.zombie > self.options.zombie_bytes && self.captures.load(Ordering::Relaxed) == 0 {
            let ripe = lane.ripe(1);
            if let Some(zombie) = ripe.first() {
                let unmapped = self.front.unmap(zombie.address, zombie.size);
                lane.cleared(zombie, unmapped.is_ok());
                continue;
            }
            self.totals.waits.fetch_add(1, Ordering::Relaxed);
            if !lane.epochs.wait_oldest(&self.front, self.options.wait_ns)? {
                break;
            }
        }
        Ok(())
    }

    /// Reserves more address space: four times the device's memory for large blocks, less where that is refused.
    pub(crate) fn add_region(&self, lane: &mut Lane, want: &Want) -> Result<()> {
        let need = (want.size + self.options.handle_bytes).next_multiple_of(self.granule);
        let usual = if want.space == SMALL { SMALL_REGION } else { self.total.saturating_mul(4) };
        let mut size = usual.max(need).next_multiple_of(self.granule);
        loop {
            match self.front.reserve(size) {
                Ok(start) => {
                    lane.spaces[want.space].add_region(start, size);
                    return self.regions.add(start, size);
                }
                Err(e) if e.kind() == Kind::Exhausted && size > need => {
                    size = (size / 2).max(need).next_multiple_of(self.granule);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn out_of_memory(&self, want: &Want, missing: u64) -> Error {
        let allocated = self.totals.allocated.load(Ordering::Relaxed);
        let reserved = self.depot.reserved();
        let doing = format!(
            "allocating {}: {} more is needed; {} is reserved, {} of it allocated, the device has {}",
            units::bytes(want.requested),
            units::bytes(missing),
            units::bytes(reserved),
            units::bytes(allocated),
            units::bytes(self.total),
        );
        let error = Error::new(Kind::Exhausted, doing);
        if self.depot.limit() < self.total {
            let limit = units::bytes(self.depot.limit());
            return error.remedy(format!("raise allocator.max_bytes (now {limit}) or allocate less"));
        }
        error.remedy("allocate less, or free memory that other processes hold on this GPU")
    }
}

/// One line for an allocation that needed the driver.
fn log_plan(plan: &Plan, want: &Want, lane: &Lane) {
    let new = new_bytes(plan);
    log::info!(
        "allocated {} on stream {:#x}: {} mapped in {} handles, {} of it new, {} remapped; about {} us of driver time",
        units::bytes(want.requested),
        lane.stream.0,
        units::bytes(plan.mapped),
        plan.parts.len(),
        units::bytes(new),
        units::bytes(plan.mapped - new),
        plan.now_ns / 1000,
    );
}

fn new_bytes(plan: &Plan) -> u64 {
    plan.parts.iter().map(|p| if let Part::New(size) = p { *size } else { 0 }).sum()
}
