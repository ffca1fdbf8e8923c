//! What a program holds to copy with: the GPU, the ring beside it, and what was measured on this host.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::job::{Moved, Settings, read};
use super::lanes::{IoUring, Lane, Pread};
use super::rates::{self, Rate, Rates};
use super::relay::Relay;
use super::ring::Ring;
use super::route::{self, Decision, Facts, Way};
use super::source::Source;
use super::span::Span;
use super::tally;
use super::write::Image;
use crate::error::{Error, Result};
use crate::events::heaps::Direction;
use crate::gpu::{Device, Stream};

/// Bytes that the reference way reads at a time, as a loader that maps a file and copies tensors roughly does.
const PLAIN: usize = 64 << 20;

/// Parts that one peer carries at a time, unless told otherwise.
const CHANNELS: usize = 4;

/// Threads and bytes of a part that write a file: the disk is the limit, and a few large writes are enough for it.
const SAVE: (usize, usize) = (4, 8 << 20);

/// Copies to one GPU. May be used by many threads.
pub struct Engine {
    device: Arc<dyn Device>,
    gpu: String,
    node: Option<u32>,
    rates: Rates,
    note: Option<String>,
    ring: Mutex<Option<Arc<Ring>>>,
    peers: Vec<Arc<dyn Device>>,
    channels: usize,
    relays: Mutex<Vec<Arc<Relay>>>,
}

/// How one copy is to be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish {
    /// The way; `None`: the engine decides.
    pub way: Option<Way>,
    /// Threads and bytes of a part, where not the decided ones.
    pub setting: Option<(usize, usize)>,
    /// Past the page cache: poll for completions instead of being interrupted.
    pub polled: bool,
    /// The longest it may take; `None`: ten minutes.
    pub limit: Option<Duration>,
    /// Work of this stream must be over before the device memory is written.
    pub after: Option<Stream>,
}

impl Wish {
    fn limit(&self) -> Duration {
        self.limit.unwrap_or(Duration::from_secs(600))
    }
}

impl Engine {
    /// An engine for a GPU, with the rates from `rates_file`.
    pub fn new(device: Arc<dyn Device>, rates_file: Option<&Path>) -> Engine {
        let (rates, note) = rates_file.map_or((Rates::default(), None), Rates::load);
        let pci = device.pci_address();
        let node = pci.as_deref().and_then(|pci| crate::host::inventory::numa_node(Path::new("/"), pci));
        let gpu = pci.unwrap_or_else(|| device.name());
        let (ring, relays) = (Mutex::new(None), Mutex::new(Vec::new()));
        Engine { device, gpu, node, rates, note, ring, peers: Vec::new(), channels: CHANNELS, relays }
    }

    /// Lets the links of other GPUs carry parts too, `channels` at a time each. Memory that is copied to or from must be given
    /// access to after this: [`Device::set_access`]. `Unsupported` where a GPU does not reach this one's memory.
    pub fn relay_over(&mut self, peers: Vec<Arc<dyn Device>>, channels: usize) -> Result<()> {
        for peer in &peers {
            self.device.enable_peer(peer.ordinal())?;
        }
        (self.peers, self.channels) = (peers, channels);
        Ok(())
    }

    /// Relays whose slots hold parts of this size, and what is to be said of peers that cannot relay now.
    fn relays(&self, part_bytes: usize) -> (Vec<Arc<Relay>>, Vec<String>) {
        let mut held = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes = Vec::new();
        if held.iter().any(|r| r.slot_size() < part_bytes) {
            held.clear();
        }
        for peer in &self.peers {
            if held.iter().any(|r| r.device().ordinal() == peer.ordinal()) {
                continue;
            }
            match Relay::new(Arc::clone(peer), &*self.device, self.channels, part_bytes) {
                Ok(relay) => held.push(Arc::new(relay)),
                Err(e) => notes.push(format!("GPU {} does not relay: {}", peer.ordinal(), e.chain())),
            }
        }
        (held.clone(), notes)
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The GPU as rates are kept by.
    pub fn gpu(&self) -> &str {
        &self.gpu
    }

    /// The GPU's NUMA node, where the host says.
    pub fn node(&self) -> Option<u32> {
        self.node
    }

    /// Why the file of rates was not used, if it was not.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// What is to be known before a way is chosen.
    pub fn facts(&self, source: &Arc<Source>, size: u64) -> Facts {
        let disk = disk_of(source);
        let ways = [Way::PageCache, Way::Disk, Way::Plain];
        Facts {
            size,
            cached: source.cached_share(),
            direct: IoUring { source: Arc::clone(source), polled: false }.probe().map_err(|e| e.chain()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            peers: self.peers.len(),
            measured: ways
                .iter()
                .filter_map(|way| self.rates.best(*way, &self.gpu, &disk, self.peers.len()).cloned())
                .collect(),
        }
    }

    /// Which way a file of these facts would take.
    pub fn decide(&self, facts: &Facts, wish: &Wish) -> Decision {
        let mut decision = route::decide(facts, wish.way);
        if let Some((lanes, part_bytes)) = wish.setting {
            (decision.lanes, decision.part_bytes) = (lanes, part_bytes);
        }
        decision
    }

    /// A ring that is large enough, made now or before.
    fn ring(&self, count: usize, part_bytes: usize) -> Result<Arc<Ring>> {
        let mut held = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |r: &&Arc<Ring>| r.part_size() == part_bytes && r.count() - r.lost().min(r.count()) >= count;
        if let Some(ring) = held.as_ref().filter(fits) {
            return Ok(Arc::clone(ring));
        }
        // The old one goes first: two at once could be more than may be locked.
        *held = None;
        let ring = Arc::new(Ring::new(&*self.device, count, part_bytes, self.node)?);
        *held = Some(Arc::clone(&ring));
        Ok(ring)
    }

    /// Writes a file from device memory; see [`write`](super::write::write).
    pub fn write(
        &self,
        path: &Path,
        image: Image,
        wish: &Wish,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Moved> {
        let (lanes, part_bytes) = wish.setting.unwrap_or(SAVE);
        let ring = self.ring(lanes * 2, part_bytes)?;
        let (relays, notes) = self.relays(part_bytes);
        let settings = Settings { lanes, parts_per_lane: 2, limit: wish.limit(), after: wish.after, relays };
        let mut moved = super::write::write(path, image, &self.device, &ring, &settings, progress)?;
        moved.notes.extend(notes);
        self.count(Direction::FromGpu, Way::Disk, &moved);
        Ok(moved)
    }

    /// Copies parts of a file to the device, and returns when they are there.
    pub fn read(
        &self,
        source: &Arc<Source>,
        spans: &[Span],
        wish: &Wish,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Decision, Moved)> {
        let size = spans.iter().map(|s| s.size).sum();
        let decision = self.decide(&self.facts(source, size), wish);
        let moved = match lane_of(decision.way, source, wish.polled) {
            Some(lane) => {
                let ring = self.ring(decision.lanes * decision.parts_per_lane, decision.part_bytes)?;
                let (relays, notes) = self.relays(decision.part_bytes);
                let settings = Settings {
                    relays,
                    lanes: decision.lanes,
                    parts_per_lane: decision.parts_per_lane,
                    limit: wish.limit(),
                    after: wish.after,
                };
                let mut moved = read(source, spans, &self.device, &ring, &lane, &settings, progress)?;
                moved.notes.extend(notes);
                if let Err(why) = ring.registered() {
                    moved.notes.push(format!("the ring is plain memory, slower to copy from: {why}"));
                }
                moved
            }
            None => plain(&self.device, source, spans, wish.after, progress)?,
        };
        self.count(Direction::ToGpu, decision.way, &moved);
        Ok((decision, moved))
    }

    fn count(&self, direction: Direction, way: Way, moved: &Moved) {
        tally::count(self.device.pci_address(), direction, way, moved);
    }
}

/// The lane of a way; the reference has none.
fn lane_of(way: Way, source: &Arc<Source>, polled: bool) -> Option<Arc<dyn Lane>> {
    let source = Arc::clone(source);
    match way {
        Way::PageCache => Some(Arc::new(Pread { source, direct: false })),
        Way::Disk => Some(Arc::new(IoUring { source, polled })),
        Way::Plain => None,
    }
}

/// The file system's device as rates are kept by.
pub fn disk_of(source: &Source) -> String {
    let device = source.device();
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// The reference: reads into plain memory and lets the driver copy that, one after the other.
fn plain(
    device: &Arc<dyn Device>,
    source: &Source,
    spans: &[Span],
    after: Option<Stream>,
    progress: &mut dyn FnMut(u64),
) -> Result<Moved> {
    let stream = after.unwrap_or_default();
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let mut buffer = vec![0; PLAIN];
    let mut moved = 0;
    for span in spans {
        let mut done = 0;
        while done < span.size {
            let size = (span.size - done).min(PLAIN as u64) as usize;
            let n = rustix::io::pread(source.cached(), &mut buffer[..size], span.offset + done)
                .map_err(|e| Error::os(format!("reading {}", source.path().display()), e.into()))?;
            if n == 0 {
                let what = format!("{} ended at byte {}", source.path().display(), span.offset + done);
                return Err(Error::new(crate::error::Kind::BadInput, what));
            }
            device.write(stream, span.address + done, &buffer[..n])?;
            done += n as u64;
            moved += n as u64;
            progress(moved);
        }
    }
    source.unchanged()?;
    let used = cpu();
    let ns = |t: rustix::time::Timespec| t.tv_sec * 1_000_000_000 + t.tv_nsec;
    let cpu = Duration::from_nanos(u64::try_from(ns(used) - ns(cpu_begun)).unwrap_or(0));
    Ok(Moved { bytes: moved, elapsed: begun.elapsed(), cpu, relayed: 0, notes: Vec::new() })
}

/// A measurement made now.
pub fn rate(engine: &Engine, source: &Source, decision: &Decision, moved: &Moved) -> Rate {
    let seconds = moved.elapsed.as_secs_f64().max(1e-9);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Rate {
        way: decision.way,
        gpu: engine.gpu().to_owned(),
        peers: decision.way.helped_by(engine.peers.len()),
        disk: (decision.way == Way::Disk).then(|| disk_of(source)),
        lanes: decision.lanes,
        part_bytes: decision.part_bytes,
        bytes: moved.bytes,
        bytes_per_second: moved.bytes as f64 / seconds,
        cpu_seconds_per_gb: moved.cpu.as_secs_f64() / (moved.bytes.max(1) as f64 / 1e9),
        measured_at: now.map_or(0, |t| t.as_secs()),
    }
}

/// Where the rates of this host are kept.
pub fn rates_file() -> Option<std::path::PathBuf> {
    rates::default_path()
}
