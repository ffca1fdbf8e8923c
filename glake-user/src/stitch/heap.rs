//! The heap of one GPU: what programs call.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::bins::UNIT;
use super::checks::{Checks, GUARD};
use super::depot::Depot;
use super::driver::Driver;
use super::habits::{LARGE, SMALL};
use super::lane::{self, Bounds, Lane};
use super::lanes::{Lanes, lock};
use super::options::Options;
use super::recorder::Recorder;
use super::regions::Regions;
use super::space::Space;
use super::trace::TraceEvent;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Costs, Device, Stream};

/// A piece of GPU memory handed out. A plain value: the owner gives it back with [`Heap::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The address on the device, a multiple of 512.
    pub ptr: u64,
    /// The bytes behind it: the request rounded up to 512.
    pub size: u64,
}

/// A block that is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
    /// The bytes that were asked for.
    pub requested: u64,
    /// The stream it was allocated for.
    pub stream: Stream,
}

/// A lane tells the heap's totals about changes of this size and more, and of this share of what it holds; see
/// [`Heap::stats`].
const PUBLISH_BYTES: u64 = 1 << 20;
const PUBLISH_SHARE: u64 = 32;

/// Bits of `Heap::extras`.
const CHECKS: u8 = 1;
const RECORD: u8 = 2;
const LOST: u8 = 4;

/// Called when memory is short; gives back the bytes it freed elsewhere.
pub type OnPressure = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// What one allocation wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    pub(crate) space: usize,
    pub(crate) size: u64,
    pub(crate) requested: u64,
}

/// The sum over all lanes, as far as they published it. On cache lines of its own (two, since processors fetch pairs): what
/// lies beside it is read by every allocation.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Totals {
    pub(crate) allocated: AtomicU64,
    pub(crate) allocated_peak: AtomicU64,
    pub(crate) requested: AtomicU64,
    pub(crate) requested_peak: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) ooms: AtomicU64,
    pub(crate) ooms_avoided: AtomicU64,
}

/// The allocator of one GPU. Shared by all threads and streams of the process.
///
/// A stream that was used for an allocation must not be destroyed while the heap lives.
pub struct Heap {
    pub(crate) options: Options,
    pub(crate) costs: Costs,
    pub(crate) granule: u64,
    /// Bytes of memory the device has.
    pub(crate) total: u64,
    pub(crate) front: Driver,
    pub(crate) back: Driver,
    pub(crate) depot: Depot,
    pub(crate) lanes: Lanes,
    pub(crate) totals: Totals,
    /// Allocations that need the driver right now: the reclaimer steps back.
    pub(crate) busy: AtomicU32,
    /// Graph captures under way: then nothing is asked after, waited for or unmapped.
    pub(crate) captures: AtomicU32,
    pub(crate) grows: AtomicBool,
    /// What beside allocating is to be done, as bits: one load tells the hot path that nothing is.
    extras: AtomicU8,
    checks: Checks,
    recorder: Mutex<Option<Recorder>>,
    pub(crate) on_pressure: Mutex<Vec<OnPressure>>,
    /// Address space reserved.
    pub(crate) regions: Regions,
}

impl Heap {
    /// A heap on `device`. Nothing is reserved or created before the first allocation.
    pub fn new(device: Arc<dyn Device>, options: Options) -> Result<Heap> {
        let granule = device.granularity()?.minimum;
        if options.handle_bytes == 0 || !options.handle_bytes.is_multiple_of(granule) {
            let doing = format!("allocator.handle_bytes = {} with a unit of {granule}", options.handle_bytes);
            return Err(
                Error::new(Kind::BadInput, doing).remedy("use a multiple of the unit, 16 MiB by default")
            );
        }
        Ok(Heap {
            costs: device.costs(),
            granule,
            total: device.memory()?.total,
            front: Driver::new(Arc::clone(&device)),
            back: Driver::new(device),
            depot: Depot::new(options.max_bytes, options.budget.clone()),
            lanes: Lanes::new(Bounds { low_end: options.handle_bytes, vast: options.vast_bytes() }),
            totals: Totals::default(),
            busy: AtomicU32::new(0),
            captures: AtomicU32::new(0),
            grows: AtomicBool::new(false),
            extras: AtomicU8::new(if options.checks { CHECKS } else { 0 }),
            checks: Checks::default(),
            recorder: Mutex::new(None),
            on_pressure: Mutex::new(Vec::new()),
            regions: Regions::new(),
            options,
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The device it allocates on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.front.device
    }

    /// Changes `allocator.max_bytes`. Memory already held is kept, even above the limit.
    pub fn set_max_bytes(&self, limit: Option<u64>) {
        self.depot.set_limit(limit);
    }

    /// GPU `ordinal` may read and write this heap's memory from now on: what is mapped already, and all that comes. Costs
    /// driver time for every handle, and a context on that GPU: call it only when the program asks for it.
    pub fn enable_peer(&self, ordinal: u32) -> Result<()> {
        self.device().enable_peer(ordinal)?;
        for lane in self.lanes.all() {
            let lane = lock(lane);
            for (start, size) in lane.spaces.iter().flat_map(Space::mapped_runs) {
                self.front.set_access(start, size)?;
            }
        }
        Ok(())
    }

    /// Asked in order when memory is short, before an allocation fails.
    pub fn on_pressure(&self, ask: OnPressure) {
        self.on_pressure.lock().unwrap_or_else(PoisonError::into_inner).push(ask);
    }

    /// Memory for work in `stream`. `Exhausted` when the memory or the limit does not suffice; `Device` once the device
    /// is lost.
    pub fn allocate(&self, size: u64, stream: Stream) -> Result<Block> {
        let extras = self.extras.load(Ordering::Relaxed);
        if extras != 0 {
            return self.allocate_with(extras, size, stream);
        }
        self.allocate_plain(size, 0, stream)
    }

    #[inline]
    fn allocate_plain(&self, size: u64, guard: u64, stream: Stream) -> Result<Block> {
        let rounded =
            size.max(1).checked_next_multiple_of(UNIT).filter(|s| *s <= 1 << 46).ok_or_else(|| {
                Error::new(
                    Kind::Exhausted,
                    format!("allocating {size} bytes, more than there is address space"),
                )
            })?;
        let rounded = rounded + guard;
        let space = if size < self.options.small_bytes { SMALL } else { LARGE };
        let lane = self.lanes.get(stream)?;
        {
            let mut lane = lock(lane);
            if lane.is_due() {
                self.poll(&mut lane)?;
            }
            if let Some(ptr) = lane.take(space, rounded, size) {
                self.publish(&mut lane);
                return Ok(Block { ptr, size: rounded });
            }
        }
        let want = Want { space, size: rounded, requested: size };
        let ptr = self.slow(lane, &want).inspect_err(|e| self.note_loss(e))?;
        Ok(Block { ptr, size: rounded })
    }

    #[cold]
    fn allocate_with(&self, extras: u8, size: u64, stream: Stream) -> Result<Block> {
        if extras & LOST != 0 {
            let doing = format!("allocating {size} bytes on a lost device");
            return Err(Error::new(Kind::Device, doing).remedy("end the process: its GPU memory is gone"));
        }
        let guard = if extras & CHECKS != 0 { GUARD } else { 0 };
        let mut block = self.allocate_plain(size, guard, stream)?;
        if guard > 0 {
            self.checks.arm(&**self.device(), block, size, stream)?;
            block.size -= guard;
        }
        if let Some(recorder) = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            recorder.allocated(self.device().now_ns(), block.ptr, size, stream.0);
        }
        Ok(block)
    }

    fn note_loss(&self, e: &Error) {
        if e.kind() == Kind::Device {
            self.extras.fetch_or(LOST, Ordering::Relaxed);
        }
    }

    /// Gives a block back: later work in `stream` may have it at once. If `stream` is not the one the block was
    /// allocated for, the memory waits for both; in checking mode that is an error.
    pub fn free(&self, ptr: u64, stream: Stream) -> Result<()> {
        if self.extras.load(Ordering::Relaxed) != 0 {
            self.before_free(ptr, stream)?;
        }
        let own = self.lanes.get(stream)?;
        if self.give_back(own, ptr, None).is_some() {
            return Ok(());
        }
        self.free_elsewhere(ptr, stream)
    }

    /// [`Heap::free`] by a caller who knows the size that was asked for; in checking mode a wrong one is an error.
    pub fn free_sized(&self, ptr: u64, size: u64, stream: Stream) -> Result<()> {
        if self.extras.load(Ordering::Relaxed) & CHECKS != 0 {
            self.check_size(ptr, size)?;
        }
        self.free(ptr, stream)
    }

    fn check_size(&self, ptr: u64, size: u64) -> Result<()> {
        match self.size_of(ptr) {
            Some((_, requested)) if requested != size => {
                let history = self.checks.history(ptr);
                let doing = format!("freeing {ptr:#x} as {size} bytes, but it has {requested} ({history})");
                Err(Error::new(Kind::Misuse, doing))
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn before_free(&self, ptr: u64, stream: Stream) -> Result<()> {
        let extras = self.extras.load(Ordering::Relaxed);
        if extras & CHECKS != 0 {
            if extras & LOST != 0 {
                let doing = format!("freeing {ptr:#x} on a lost device ({})", self.checks.history(ptr));
                return Err(Error::new(Kind::Device, doing));
            }
            let owner = self.lanes.all().into_iter().find_map(|lane| {
                let lane = lock(lane);
                lane.find(ptr).map(|found| (lane.stream, found))
            });
            let Some((owner, found)) = owner else { return Err(self.checks.explain(ptr, "freeing")) };
            if owner != stream {
                let history = self.checks.history(ptr);
                let doing = format!("freeing {ptr:#x} on stream {:#x}, not its own ({history})", stream.0);
                return Err(Error::new(Kind::Misuse, doing).remedy("use record_stream for other streams"));
            }
            let checked = self.checks.disarm(&**self.device(), ptr, found.size, stream);
            checked.inspect_err(|e| self.note_loss(e))?;
        }
        if let Some(recorder) = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            recorder.freed(self.device().now_ns(), ptr);
        }
        Ok(())
    }

    /// Begins to record allocations and frees, at most `events` of them.
    pub fn record(&self, events: usize) {
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = Some(Recorder::new(events));
        self.extras.fetch_or(RECORD, Ordering::Relaxed);
    }

    /// Ends the recording: the events, and how many came when it was full.
    pub fn take_record(&self) -> (Vec<TraceEvent>, u64) {
        self.extras.fetch_and(!RECORD, Ordering::Relaxed);
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        recorder.map(Recorder::finish).unwrap_or_default()
    }

    fn give_back(&self, lane: &Mutex<Lane>, ptr: u64, other: Option<Stream>) -> Option<lane::Found> {
        let mut lane = lock(lane);
        let found = lane.give_back(ptr, &self.front, other)?;
        self.publish(&mut lane);
        Some(found)
    }

    #[cold]
    fn free_elsewhere(&self, ptr: u64, stream: Stream) -> Result<()> {
        if self.lanes.all().into_iter().any(|lane| self.give_back(lane, ptr, Some(stream)).is_some()) {
            return Ok(());
        }
        Err(unknown(ptr, "freeing"))
    }

    /// Whether frees must be gated by events: other streams may want the memory, or remaps wait for the GPU.
    pub(crate) fn needs_epochs(&self) -> bool {
        self.lanes.count() > 1 || !self.options.remap_while_busy
    }

    /// `stream` uses the block too: after its free the memory waits for the work that is then in `stream`.
    pub fn record_stream(&self, ptr: u64, stream: Stream) -> Result<()> {
        match self.lanes.all().into_iter().any(|lane| lock(lane).share(ptr, stream)) {
            true => Ok(()),
            false => Err(unknown(ptr, "recording a stream on")),
        }
    }

    /// The memory under the block is captured in a graph, registered or exported: it is never remapped or unmapped, also
    /// after the block is freed, until [`Heap::unpin`]. Pins count.
    pub fn pin(&self, ptr: u64) -> Result<()> {
        self.set_pin(ptr, true)
    }

    /// Takes back one [`Heap::pin`] of a block that is still allocated.
    pub fn unpin(&self, ptr: u64) -> Result<()> {
        self.set_pin(ptr, false)
    }

    fn set_pin(&self, ptr: u64, on: bool) -> Result<()> {
        match self.lanes.all().into_iter().any(|lane| lock(lane).pin(ptr, on)) {
            true => Ok(()),
            false => Err(unknown(ptr, if on { "pinning" } else { "unpinning" })),
        }
    }

    /// The bytes of the block at `ptr`: rounded and as requested.
    pub fn size_of(&self, ptr: u64) -> Option<(u64, u64)> {
        let found = self.lanes.all().into_iter().find_map(|lane| lock(lane).find(ptr))?;
        Some((found.size, found.requested))
    }

    /// Whether the address lies in this heap's address space. Takes no lock.
    pub fn owns(&self, address: u64) -> bool {
        self.regions.hold(address)
    }

    /// The block that holds `address`, which may lie inside of it. Looks through the blocks of the stream: for questions that
    /// are asked now and then.
    pub fn find(&self, address: u64) -> Option<Found> {
        if !self.owns(address) {
            return None;
        }
        self.lanes.all().into_iter().find_map(|lane| {
            let lane = lock(lane);
            let node = *lane.spaces.iter().find_map(|space| space.used_at(address))?;
            let (start, size, requested) = (node.start, node.size, node.requested);
            Some(Found { start, size, requested, stream: lane.stream })
        })
    }

    /// A graph capture begins on some stream of this process: until [`Heap::end_capture`] the heap asks after no event,
    /// waits for none and unmaps nothing.
    pub fn begin_capture(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
    }

    /// The capture ended.
    pub fn end_capture(&self) {
        let _ = self.captures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }

    pub(crate) fn poll(&self, lane: &mut Lane) -> Result<()> {
        if self.captures.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        lane.poll(&self.front)
    }

    /// Brings the totals up to date, if the lane moved enough for that: the hot path of several streams must not meet here.
    #[inline]
    pub(crate) fn publish(&self, lane: &mut Lane) {
        // With one stream its own tally is the whole.
        if self.lanes.count() < 2 {
            return;
        }
        let tally = &lane.tally;
        let apart = (tally.allocated / PUBLISH_SHARE).max(PUBLISH_BYTES);
        if tally.allocated.abs_diff(tally.published.0) >= apart {
            self.publish_now(lane);
        }
    }

    /// Brings the totals up to date.
    pub(crate) fn publish_now(&self, lane: &mut Lane) {
        let tally = &mut lane.tally;
        let add = |total: &AtomicU64, peak: &AtomicU64, now: u64, before: u64| {
            let delta = now.wrapping_sub(before);
            // Wrapping: a fall is added as its two's complement; the sum of all lanes is never below zero.
            let sum = total.fetch_add(delta, Ordering::Relaxed).wrapping_add(delta);
            peak.fetch_max(sum, Ordering::Relaxed);
        };
        let totals = &self.totals;
        add(&totals.allocated, &totals.allocated_peak, tally.allocated, tally.published.0);
        add(&totals.requested, &totals.requested_peak, tally.requested, tally.published.1);
        tally.published = (tally.allocated, tally.requested);
    }
}

pub(crate) fn unknown(ptr: u64, doing: &str) -> Error {
    Error::new(Kind::Misuse, format!("{doing} {ptr:#x}, which this heap did not hand out or has taken back"))
        .remedy("set checks = true to see the pointer's history")
}
