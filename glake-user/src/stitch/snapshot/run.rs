//! One device's recording as a trace that can be played: blocks with names, and the state before the first event.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::entries::{Action, Entry, NO_SITE};
use super::recording::{BlockState, Coverage, DeviceRecording, Format, Recording};
use crate::stitch::trace::{Alloc, Pool, TraceEvent, What};

/// Free memory below this at the end of a large block belongs to the block: torch splits off nothing smaller.
const UNSPLIT_REMAINDER: u64 = 1 << 20;

/// A block that was there before the first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its name in the events.
    pub id: u64,
    /// Address.
    pub address: u64,
    /// Bytes the recording allocator gave it.
    pub size: u64,
    /// Bytes asked for.
    pub requested: u64,
}

/// A segment that was there before the first event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartSegment {
    /// Address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its stream.
    pub stream: u64,
    /// The pool for small requests.
    pub small: bool,
    /// A CUDA graph's or a MemPool's.
    pub private: bool,
    /// Live blocks, by address.
    pub blocks: Vec<Held>,
}

/// What the recording itself says about memory held from the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Bytes held before the first event.
    pub start: u64,
    /// The largest number of bytes held; `None` where the file does not say.
    pub peak: Option<u64>,
    /// Bytes held over time, a point at each change.
    pub curve: Vec<(u64, u64)>,
    /// Addresses the driver gave, in order: a model that asks for the same sizes gets the same addresses.
    pub addresses: Vec<(u64, u64)>,
    /// `oom` events: allocations that failed.
    pub ooms: u64,
    /// Events of expandable segments.
    pub mapped: u64,
}

/// A trace, ready to play.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// CUDA's number of the device.
    pub device: u32,
    /// Events; those of blocks that were there before come first, at time 0.
    pub events: Vec<TraceEvent>,
    /// How many events at the start only rebuild what was there before.
    pub prelude: usize,
    /// What was there before, by address.
    pub start: Vec<StartSegment>,
    /// What the recording says.
    pub recorded: Recorded,
    /// The trace begins where the process began: nothing was held before.
    pub complete: bool,
    /// Entries of the file that were used.
    pub used: u64,
    /// The call site of each block, by its id.
    pub sites: Vec<u32>,
    /// Streams with allocations.
    pub streams: BTreeSet<u64>,
    /// Largest bytes in private pools at once.
    pub private_peak: u64,
    /// The events carry times.
    pub timed: bool,
    /// Optimizer steps marked.
    pub steps: usize,
    /// What had to be guessed, in words.
    pub notes: Vec<String>,
}

impl Run {
    /// Builds the trace of one device of a recording.
    pub fn of(recording: &Recording, device: &DeviceRecording) -> Run {
        let start = Start::of(recording, device);
        let mut build = Build::new(device, &start);
        build.prelude(&start);
        let steps: Vec<u64> =
            recording.steps.iter().filter(|(d, _)| *d == device.device).map(|(_, t)| *t).collect();
        build.entries(&device.entries, &steps);
        let mut run = build.run;
        run.prelude = start.prelude();
        run.start = start.segments;
        run.recorded = recorded(recording, device, &run.start);
        run.complete = run.prelude == 0 && run.recorded.start == 0 && recording.coverage == Coverage::Whole;
        run.used = device.entries.len() as u64;
        if build.repaired > 0 {
            run.notes.push(format!(
                "{} addresses were allocated twice without a free between: the file misses events",
                build.repaired
            ));
        }
        if start.homeless > 0 {
            run.notes.push(format!(
                "{} blocks were freed that lie in no known segment: they are replayed from the start",
                start.homeless
            ));
        }
        run
    }

    /// The trace's own time in nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.events.last().map_or(0, |e| e.at_ns)
    }
}

/// The state before the first entry, found by walking the trace backwards from the segments at the end.
struct Start {
    segments: Vec<StartSegment>,
    /// Live blocks outside every segment.
    loose: Vec<(u64, Entry)>,
    homeless: u64,
    private: BTreeMap<u64, u64>,
}

impl Start {
    fn of(recording: &Recording, device: &DeviceRecording) -> Start {
        let private = device.segments.iter().filter(|s| s.private);
        let mut start = Start {
            segments: Vec::new(),
            loose: Vec::new(),
            homeless: 0,
            private: private.map(|s| (s.address, s.address + s.size)).collect(),
        };
        let whole = recording.coverage == Coverage::Whole && recording.format == Format::Torch;
        let live = if whole { backwards(device) } else { freed_unseen(device) };
        // Expandable segments are address space, not what was held: their blocks are simply allocated first.
        let expandable = device.segments.iter().any(|s| s.expandable);
        let mut segments = if whole && !expandable { segments_before(device) } else { Vec::new() };
        let known = !segments.is_empty();
        for (id, (address, entry)) in (0..).zip(live) {
            match home(&mut segments, address, entry.size) {
                Some(segment) => {
                    segment.blocks.push(Held { id, address, size: entry.size, requested: entry.size });
                }
                None => {
                    start.homeless += u64::from(known);
                    start.loose.push((id, entry));
                }
            }
        }
        segments.iter_mut().for_each(fill_gaps);
        start.segments = segments;
        start
    }

    fn prelude(&self) -> usize {
        self.segments.iter().map(|s| s.blocks.len()).sum::<usize>() + self.loose.len()
    }
}

fn home(segments: &mut [StartSegment], address: u64, size: u64) -> Option<&mut StartSegment> {
    let at = segments.partition_point(|s| s.address <= address).checked_sub(1)?;
    let segment = &mut segments[at];
    (address + size <= segment.address + segment.size).then_some(segment)
}

/// Gives each block the size the recording allocator gave it, as far as the rules of splitting tell.
fn fill_gaps(segment: &mut StartSegment) {
    let end = segment.address + segment.size;
    for i in 0..segment.blocks.len() {
        let next = segment.blocks.get(i + 1).map_or(end, |b| b.address);
        let block = &mut segment.blocks[i];
        let room = next.saturating_sub(block.address);
        let rounded = block.requested.next_multiple_of(512).max(512);
        let whole = !segment.small && room >= rounded && room - rounded <= UNSPLIT_REMAINDER;
        block.size = if whole { room } else { rounded.min(room) };
    }
}

/// Live blocks before the first entry: those at the end, with every entry undone.
fn backwards(device: &DeviceRecording) -> BTreeMap<u64, Entry> {
    let mut live = BTreeMap::new();
    for segment in &device.segments {
        for block in segment.blocks.iter().filter(|b| b.state != BlockState::Free) {
            live.insert(block.address, block_entry(block.address, block.requested.max(1), segment.stream));
        }
    }
    for entry in device.entries.iter().rev() {
        match entry.action {
            Action::Alloc => drop(live.remove(&entry.addr)),
            Action::FreeCompleted => drop(live.insert(entry.addr, *entry)),
            _ => {}
        }
    }
    live
}

fn block_entry(addr: u64, size: u64, stream: u64) -> Entry {
    Entry { action: Action::Alloc, addr, size, stream, time_us: 0, site: NO_SITE }
}

/// Where the end is not known: blocks that are freed without having been allocated.
fn freed_unseen(device: &DeviceRecording) -> BTreeMap<u64, Entry> {
    let mut seen = BTreeSet::new();
    let mut live = BTreeMap::new();
    for entry in &device.entries {
        match entry.action {
            Action::Alloc => drop(seen.insert(entry.addr)),
            Action::FreeCompleted if seen.insert(entry.addr) => drop(live.insert(entry.addr, *entry)),
            _ => {}
        }
    }
    live
}

fn segments_before(device: &DeviceRecording) -> Vec<StartSegment> {
    let blank = |address, size, stream, small, private| StartSegment {
        address,
        size,
        stream,
        small,
        private,
        blocks: Vec::new(),
    };
    let mut held: BTreeMap<u64, StartSegment> = device
        .segments
        .iter()
        .map(|s| (s.address, blank(s.address, s.size, s.stream, s.small, s.private)))
        .collect();
    for entry in device.entries.iter().rev() {
        match entry.action {
            Action::SegmentAlloc => drop(held.remove(&entry.addr)),
            Action::SegmentFree => {
                // Small segments are 2 MiB, and no large one is that small.
                let small = entry.size <= 2 << 20;
                held.insert(entry.addr, blank(entry.addr, entry.size, entry.stream, small, false));
            }
            _ => {}
        }
    }
    let mut out: Vec<StartSegment> = Vec::new();
    for segment in held.into_values() {
        // A broken file may name overlapping segments: the first one counts.
        if out.last().is_none_or(|last: &StartSegment| last.address + last.size <= segment.address)
            && segment.address.checked_add(segment.size).is_some()
        {
            out.push(segment);
        }
    }
    out
}

/// Bytes held over time as the recording's own segment events say.
fn recorded(recording: &Recording, device: &DeviceRecording, start: &[StartSegment]) -> Recorded {
    let mut out = Recorded::default();
    if recording.format != Format::Torch {
        return out;
    }
    let whole = recording.coverage == Coverage::Whole;
    let first = device.entries.first().map_or(0, |e| e.time_us);
    let (mut grown, mut shrunk) = (0u64, 0u64);
    for entry in &device.entries {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => grown = grown.saturating_add(entry.size),
            Action::SegmentFree | Action::SegmentUnmap => shrunk = shrunk.saturating_add(entry.size),
            _ => {}
        }
    }
    let end: u64 = device.segments.iter().fold(0, |sum, s| sum.saturating_add(s.size));
    // Expandable segments are one segment that changes: what was there before follows from the sums.
    let before = if whole { (end.saturating_add(shrunk)).saturating_sub(grown) } else { 0 };
    out.start = if start.is_empty() && !whole { 0 } else { before };
    let mut now = out.start;
    let mut peak = now;
    out.curve.push((0, now));
    for entry in &device.entries {
        let before = now;
        match entry.action {
            Action::SegmentAlloc => {
                now = now.saturating_add(entry.size);
                out.addresses.push((entry.size, entry.addr));
            }
            Action::SegmentMap => {
                now = now.saturating_add(entry.size);
                out.mapped += 1;
            }
            Action::SegmentFree | Action::SegmentUnmap => now = now.saturating_sub(entry.size),
            Action::Oom => out.ooms += 1,
            _ => {}
        }
        peak = peak.max(now);
        if now != before {
            out.curve.push((entry.time_us.saturating_sub(first).saturating_mul(1000), now));
        }
    }
    out.peak = (whole && !(device.segments.is_empty() && grown == 0)).then_some(peak);
    out
}

struct Build {
    run: Run,
    live: HashMap<u64, (u64, u64, bool)>,
    private: BTreeMap<u64, u64>,
    private_now: u64,
    next: u64,
    first_us: u64,
    at_ns: u64,
    repaired: u64,
}

impl Build {
    fn new(device: &DeviceRecording, start: &Start) -> Build {
        Build {
            run: Run {
                device: device.device,
                events: Vec::with_capacity(device.entries.len()),
                prelude: 0,
                start: Vec::new(),
                recorded: Recorded::default(),
                complete: false,
                used: 0,
                sites: Vec::new(),
                streams: BTreeSet::new(),
                private_peak: 0,
                timed: device.entries.iter().any(|e| e.time_us > 0),
                steps: 0,
                notes: Vec::new(),
            },
            live: HashMap::new(),
            private: start.private.clone(),
            private_now: 0,
            next: 0,
            first_us: device.entries.first().map_or(0, |e| e.time_us),
            at_ns: 0,
            repaired: 0,
        }
    }

    fn prelude(&mut self, start: &Start) {
        let mut held: Vec<Entry> = Vec::new();
        for segment in &start.segments {
            held.extend(segment.blocks.iter().map(|b| block_entry(b.address, b.requested, segment.stream)));
        }
        // Ids were given by address over all blocks; the prelude keeps that order.
        held.extend(start.loose.iter().map(|(_, e)| Entry { action: Action::Alloc, ..*e }));
        held.sort_by_key(|e| e.addr);
        for entry in held {
            self.alloc(&entry);
        }
    }

    fn entries(&mut self, entries: &[Entry], steps: &[u64]) {
        let mut steps = steps.iter().copied().peekable();
        let mut at = 0;
        while let Some(entry) = entries.get(at) {
            let now = entry.time_us.saturating_sub(self.first_us).saturating_mul(1000);
            self.at_ns = self.at_ns.max(now);
            while steps.next_if(|t| *t < entry.time_us).is_some() {
                self.run.steps += 1;
                self.push(What::Step);
            }
            at += 1;
            match entry.action {
                Action::Alloc => self.alloc(entry),
                Action::FreeRequested => {
                    // Followed at once by its completion: the block was used on its own stream only.
                    let own = entries
                        .get(at)
                        .is_some_and(|n| n.action == Action::FreeCompleted && n.addr == entry.addr);
                    at += usize::from(own);
                    self.free(entry.addr, if own { Freeing::AtOnce } else { Freeing::Requested });
                }
                Action::FreeCompleted => self.free(entry.addr, Freeing::Completed),
                _ => {}
            }
        }
    }

    fn push(&mut self, what: What) {
        self.run.events.push(TraceEvent { at_ns: self.at_ns, what });
    }

    fn alloc(&mut self, entry: &Entry) {
        if self.live.contains_key(&entry.addr) {
            self.repaired += 1;
            self.free(entry.addr, Freeing::AtOnce);
        }
        let private = self.private.range(..=entry.addr).next_back().is_some_and(|(_, end)| entry.addr < *end);
        let pool = if private { Pool::Private } else { Pool::Default };
        if private {
            self.private_now = self.private_now.saturating_add(entry.size);
            self.run.private_peak = self.run.private_peak.max(self.private_now);
        }
        let id = self.next;
        self.next += 1;
        self.live.insert(entry.addr, (id, if private { entry.size } else { 0 }, false));
        self.run.sites.push(entry.site);
        self.run.streams.insert(entry.stream);
        self.push(What::Alloc(Alloc { id, size: entry.size, stream: entry.stream, pool }));
    }

    fn free(&mut self, addr: u64, how: Freeing) {
        if how == Freeing::Requested {
            if let Some((id, _, requested)) = self.live.get_mut(&addr) {
                *requested = true;
                let id = *id;
                self.push(What::FreeRequested { id });
            }
            return;
        }
        if let Some((id, private, requested)) = self.live.remove(&addr) {
            self.private_now = self.private_now.saturating_sub(private);
            self.push(if requested { What::FreeCompleted { id } } else { What::Free { id } });
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Freeing {
    AtOnce,
    Requested,
    Completed,
}
