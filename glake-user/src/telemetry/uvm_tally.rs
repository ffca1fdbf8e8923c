//! Entries of the driver's event queue become numbers: faults, batches, bytes by cause and direction, address heat.
//!
//! A tally only ever grows. Two of them subtract ([`Tally::since`]) to give one second's worth.

use crate::events::uvm::entry::{Access, Cause, Entry, FatalReason, Processor};
use std::collections::BTreeMap;

/// Which way pages moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From host memory to a GPU.
    ToGpu,
    /// From a GPU to host memory.
    ToCpu,
    /// From one GPU to another.
    Peer,
    /// From one NUMA node to another.
    Host,
}

impl Direction {
    /// From the two ends.
    pub fn of(source: Processor, target: Processor) -> Direction {
        match (source.is_cpu(), target.is_cpu()) {
            (true, false) => Direction::ToGpu,
            (false, true) => Direction::ToCpu,
            (false, false) => Direction::Peer,
            (true, true) => Direction::Host,
        }
    }

    /// The word for labels and screens.
    pub fn word(self) -> &'static str {
        match self {
            Direction::ToGpu => "to_gpu",
            Direction::ToCpu => "to_cpu",
            Direction::Peer => "peer",
            Direction::Host => "host",
        }
    }
}

/// Pages moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Migrations.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A fault that the driver could not service: the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fatal {
    /// Who.
    pub processor: Processor,
    /// Where.
    pub address: u64,
    /// How it touched it.
    pub access: Access,
    /// Why it could not be serviced.
    pub reason: FatalReason,
    /// CLOCK_MONOTONIC_RAW, ns.
    pub at: u64,
}

/// One GPU's faults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuFaults {
    /// Faults by access kind. Duplicates that the driver merged are counted once each, as it reports them.
    pub faults: BTreeMap<Access, u64>,
    /// Batches: changes of the batch number among faults, or among replays when faults are not watched.
    pub batches: u64,
    /// Batches by faults in them: slot `i` counts batches of `2^i..2^(i+1)` faults. The newest batch is not in it.
    pub batch_sizes: Vec<u64>,
    /// Replay commands.
    pub replays: u64,
    /// Faults of the batch that is still coming.
    open: Option<(u32, u64)>,
    replayed: Option<u32>,
}

impl GpuFaults {
    /// Faults of all kinds.
    pub fn total(&self) -> u64 {
        self.faults.values().sum()
    }

    fn fault(&mut self, access: Access, batch: u32) {
        *self.faults.entry(access).or_default() += 1;
        match &mut self.open {
            Some((id, n)) if *id == batch => *n += 1,
            open => {
                if let Some((_, n)) = open.replace((batch, 1)) {
                    let slot = n.max(1).ilog2() as usize;
                    if self.batch_sizes.len() <= slot {
                        self.batch_sizes.resize(slot + 1, 0);
                    }
                    self.batch_sizes[slot] += 1;
                }
                self.batches += 1;
            }
        }
    }

    fn replay(&mut self, batch: u32) {
        self.replays += 1;
        let new = self.replayed.replace(batch) != Some(batch);
        if self.open.is_none() && new {
            self.batches += 1;
        }
    }
}

/// Everything counted so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Entries counted.
    pub entries: u64,
    /// The same by type.
    pub by_kind: BTreeMap<u8, u64>,
    /// CPU faults by access kind.
    pub cpu_faults: BTreeMap<Access, u64>,
    /// By GPU, as the queue names it.
    pub gpus: BTreeMap<Processor, GpuFaults>,
    /// Pages moved, by source, target and cause.
    pub moved: BTreeMap<(Processor, Processor, Cause), Moved>,
    /// Fatal faults by processor and reason.
    pub fatal: BTreeMap<(Processor, FatalReason), u64>,
    /// The newest fatal fault.
    pub last_fatal: Option<Fatal>,
    /// Ranges the driver marked as thrashing.
    pub thrashing: u64,
    /// Times a processor was held back, and for how long in all (finished ones), in ns.
    pub throttled: (u64, u64),
    /// Ranges mapped from afar instead of moved.
    pub mapped_remote: Moved,
    /// Ranges made readable in several places.
    pub read_duplicated: Moved,
    /// Where the faults were.
    pub heat: Heat,
    throttling: BTreeMap<(Processor, u64), u64>,
}

/// Throttled ranges remembered until their end comes: more than this would be a driver that forgets ends.
const THROTTLING_LIMIT: usize = 4096;

impl Tally {
    /// Counts one entry.
    pub fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        *self.by_kind.entry(entry.kind()).or_default() += 1;
        match *entry {
            Entry::CpuFault { access, address, .. } => {
                *self.cpu_faults.entry(access).or_default() += 1;
                self.heat.add(address);
            }
            Entry::GpuFault { gpu, access, address, batch, .. } => {
                self.gpus.entry(gpu).or_default().fault(access, batch);
                self.heat.add(address);
            }
            Entry::Replay { gpu, batch, .. } => self.gpus.entry(gpu).or_default().replay(batch),
            Entry::Migration { cause, source, target, bytes, .. } => {
                let moved = self.moved.entry((source, target, cause)).or_default();
                moved.count += 1;
                moved.bytes = moved.bytes.saturating_add(bytes);
            }
            Entry::FatalFault { processor, access, reason, address, at, .. } => {
                *self.fatal.entry((processor, reason)).or_default() += 1;
                self.last_fatal = Some(Fatal { processor, address, access, reason, at });
            }
            Entry::Thrashing { .. } => self.thrashing += 1,
            Entry::ThrottlingStart { processor, address, at } => self.throttle(processor, address, at),
            Entry::ThrottlingEnd { processor, address, at } => {
                if let Some(start) = self.throttling.remove(&(processor, address)) {
                    self.throttled.1 = self.throttled.1.saturating_add(at.saturating_sub(start));
                }
            }
            Entry::MapRemote { bytes, .. } => add(&mut self.mapped_remote, bytes),
            Entry::ReadDuplicate { bytes, .. } => add(&mut self.read_duplicated, bytes),
            Entry::FaultBufferOverflow
            | Entry::ReadDuplicateInvalidate { .. }
            | Entry::PageSizeChange { .. }
            | Entry::Eviction { .. }
            | Entry::Test { .. } => {}
        }
    }

    fn throttle(&mut self, processor: Processor, address: u64, at: u64) {
        self.throttled.0 += 1;
        if self.throttling.len() < THROTTLING_LIMIT {
            self.throttling.insert((processor, address), at);
        }
    }

    /// CPU faults of all kinds.
    pub fn cpu_total(&self) -> u64 {
        self.cpu_faults.values().sum()
    }

    /// GPU faults of all GPUs and kinds.
    pub fn gpu_total(&self) -> u64 {
        self.gpus.values().map(GpuFaults::total).sum()
    }

    /// Batches of all GPUs.
    pub fn batches(&self) -> u64 {
        self.gpus.values().map(|g| g.batches).sum()
    }

    /// Replays of all GPUs.
    pub fn replays(&self) -> u64 {
        self.gpus.values().map(|g| g.replays).sum()
    }

    /// Fatal faults of all processors.
    pub fn fatal_total(&self) -> u64 {
        self.fatal.values().sum()
    }

    /// Moved by cause, all directions.
    pub fn by_cause(&self) -> BTreeMap<Cause, Moved> {
        let mut out = BTreeMap::<Cause, Moved>::new();
        for ((_, _, cause), moved) in &self.moved {
            let sum = out.entry(*cause).or_default();
            sum.count += moved.count;
            sum.bytes = sum.bytes.saturating_add(moved.bytes);
        }
        out
    }

    /// Moved by direction, all causes.
    pub fn by_direction(&self) -> BTreeMap<Direction, Moved> {
        let mut out = BTreeMap::<Direction, Moved>::new();
        for ((source, target, _), moved) in &self.moved {
            let sum = out.entry(Direction::of(*source, *target)).or_default();
            sum.count += moved.count;
            sum.bytes = sum.bytes.saturating_add(moved.bytes);
        }
        out
    }

    /// Everything moved.
    pub fn moved_total(&self) -> Moved {
        self.moved.values().fold(Moved::default(), |a, m| Moved {
            count: a.count + m.count,
            bytes: a.bytes.saturating_add(m.bytes),
        })
    }

    /// The numbers of one line: how much more than `earlier`, a copy of this tally from before.
    pub fn since(&self, earlier: &Tally) -> Line {
        let now = self.moved_total();
        let then = earlier.moved_total();
        let moved = |t: &Tally, d| t.by_direction().get(&d).copied().unwrap_or_default().bytes;
        let cause = |t: &Tally, c| t.by_cause().get(&c).copied().unwrap_or_default().bytes;
        let diff = |f: &dyn Fn(&Tally) -> u64| f(self).saturating_sub(f(earlier));
        Line {
            gpu_faults: diff(&Tally::gpu_total),
            batches: diff(&Tally::batches),
            cpu_faults: diff(&Tally::cpu_total),
            migrations: now.count.saturating_sub(then.count),
            to_gpu_bytes: diff(&|t| moved(t, Direction::ToGpu)),
            to_cpu_bytes: diff(&|t| moved(t, Direction::ToCpu)),
            on_demand_bytes: diff(&|t| cause(t, Cause::OnDemand)),
            prefetch_bytes: diff(&|t| cause(t, Cause::Prefetch)),
            eviction_bytes: diff(&|t| cause(t, Cause::Eviction)),
            fatal: diff(&Tally::fatal_total),
        }
    }
}

fn add(sum: &mut Moved, bytes: u64) {
    sum.count += 1;
    sum.bytes = sum.bytes.saturating_add(bytes);
}

/// What happened in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[allow(missing_docs, reason = "each field is named as it is counted")]
pub struct Line {
    pub gpu_faults: u64,
    pub batches: u64,
    pub cpu_faults: u64,
    pub migrations: u64,
    pub to_gpu_bytes: u64,
    pub to_cpu_bytes: u64,
    pub on_demand_bytes: u64,
    pub prefetch_bytes: u64,
    pub eviction_bytes: u64,
    pub fatal: u64,
}

/// Faults by address, in cells that grow when there are too many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heat {
    shift: u32,
    cells: BTreeMap<u64, u64>,
}

/// Cells kept at most; twice as many bytes of address space a cell each time they run out.
const CELLS: usize = 4096;

impl Default for Heat {
    fn default() -> Self {
        // 2 MiB: the driver's own block size.
        Heat { shift: 21, cells: BTreeMap::new() }
    }
}

/// A stretch of neighbouring cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub start: u64,
    /// Bytes of one cell.
    pub cell: u64,
    /// Faults by cell.
    pub faults: Vec<u64>,
}

impl Heat {
    fn add(&mut self, address: u64) {
        *self.cells.entry(address >> self.shift).or_default() += 1;
        while self.cells.len() > CELLS {
            self.shift += 1;
            let mut merged = BTreeMap::new();
            for (cell, n) in std::mem::take(&mut self.cells) {
                *merged.entry(cell >> 1).or_default() += n;
            }
            self.cells = merged;
        }
    }

    /// The stretches with the most faults, at most `spans` of them, each in at most `columns` cells, by address.
    /// Cells without faults between two with faults stay inside a stretch up to 32 of them.
    pub fn spans(&self, spans: usize, columns: usize) -> Vec<Span> {
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for (&cell, &n) in &self.cells {
            match runs.last_mut() {
                Some((_, last, sum)) if cell - *last <= 32 => {
                    *last = cell;
                    *sum += n;
                }
                _ => runs.push((cell, cell, n)),
            }
        }
        runs.sort_by_key(|(_, _, sum)| std::cmp::Reverse(*sum));
        runs.truncate(spans);
        runs.sort_unstable();
        runs.into_iter().map(|(first, last, _)| self.span(first, last, columns.max(1))).collect()
    }

    fn span(&self, first: u64, last: u64, columns: usize) -> Span {
        let per = (last - first + 1).div_ceil(columns as u64).next_power_of_two();
        let width = usize::try_from((last - first) / per + 1).unwrap_or(columns);
        let mut faults = vec![0; width];
        for (&cell, &n) in self.cells.range(first..=last) {
            let i = usize::try_from((cell - first) / per).unwrap_or(0).min(width - 1);
            faults[i] += n;
        }
        Span { start: first << self.shift, cell: per << self.shift, faults }
    }
}

#[cfg(test)]
#[path = "uvm_tally_tests.rs"]
mod tests;
