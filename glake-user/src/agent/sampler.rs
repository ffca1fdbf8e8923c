//! Readings at an interval, on a thread of their own: a source may block, the answers over HTTP may not.

use super::{findings::Findings, gpu_events::GpuEvents, http::Answerable, uvm_process};
use crate::{
    diagnose::xid::text,
    error::Result,
    events::{sample::Sample, source::Source},
    host::{
        inventory::{self, Inventory},
        process::Process,
        workload,
    },
    telemetry::{
        difference::Difference,
        metrics::{
            ledger::Ledger,
            table::XID_UNLOGGED,
            tree::{Itself, tree},
        },
        state::{AgentProcess, MAX_EVENTS, State, Status},
    },
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// The host's facts are read again this often: drives come and go, a GPU learns its UUID when it is first used.
const INVENTORY_NS: u64 = 60 * 1_000_000_000;
/// Names of containers are looked up at most this often.
const NAMES_NS: u64 = 10 * 1_000_000_000;

/// One reading, ready to be answered with.
pub type Snapshot = Answerable;

/// What the sampler and the answers share.
#[derive(Debug)]
pub struct Shared {
    newest: RwLock<Option<Arc<Snapshot>>>,
    changed: watch::Sender<u64>,
    started: Instant,
    beat_ms: AtomicU64,
    interval_ms: AtomicU64,
    error: Mutex<Option<String>>,
    reload_refused: AtomicBool,
}

impl Shared {
    /// Nothing read yet.
    pub fn new(interval: Duration) -> Shared {
        Shared {
            newest: RwLock::new(None),
            changed: watch::channel(0).0,
            started: Instant::now(),
            beat_ms: AtomicU64::new(0),
            interval_ms: AtomicU64::new(millis(interval)),
            error: Mutex::new(None),
            reload_refused: AtomicBool::new(false),
        }
    }

    /// The newest reading.
    pub fn newest(&self) -> Option<Arc<Snapshot>> {
        self.newest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes with every reading.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Puts a reading, or the error in its place, where everybody sees it.
    pub fn publish(&self, reading: Result<Snapshot>) {
        self.beat();
        match reading {
            Ok(snapshot) => {
                *self.newest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
                *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            Err(e) => {
                log::error!("{}", e.chain());
                *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.chain());
            }
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Time between readings.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.load(Ordering::Relaxed))
    }

    /// Why the newest reading failed.
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn beat(&self) {
        self.beat_ms.store(millis(self.started.elapsed()), Ordering::Relaxed);
    }

    /// How long ago a reading was last tried.
    pub fn beat_age(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }

    /// A sampler that was quiet for longer hangs.
    pub fn stuck_after(&self) -> Duration {
        (self.interval() * 10).max(Duration::from_secs(30))
    }

    /// Notes whether the newest configuration is in use.
    pub fn set_reload_refused(&self, refused: bool) {
        self.reload_refused.store(refused, Ordering::Relaxed);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the sampler is told while it runs.
pub enum Order {
    /// Take readings at another interval.
    Interval(Duration),
    /// Watch what the profile `full` wants, or only what `light` wants.
    Full(bool),
    /// End.
    Stop,
}

/// Takes readings and books them.
pub struct Sampler {
    source: Box<dyn Source>,
    ledger: Ledger,
    host: Inventory,
    root: PathBuf,
    previous: Sample,
    inventory_ns: u64,
    names_ns: u64,
    gpu_events: Option<GpuEvents>,
    findings: Findings,
}

impl Sampler {
    /// A sampler over `source` on the host below `root`.
    pub fn new(source: Box<dyn Source>, root: PathBuf) -> Sampler {
        let host = Inventory::read(&root);
        let (ledger, previous) = (Ledger::default(), Sample::default());
        let findings = Findings::default();
        Sampler {
            source,
            ledger,
            host,
            root,
            previous,
            inventory_ns: 0,
            names_ns: 0,
            gpu_events: None,
            findings,
        }
    }

    /// Joins Xid reports into records from now on and keeps them in `folder` (empty: only in memory).
    pub fn keep_gpu_events(&mut self, folder: &Path) {
        self.gpu_events = Some(GpuEvents::open(folder, &self.root, &self.host));
    }

    /// Takes one reading.
    ///
    /// # Errors
    /// When the source can give none.
    pub fn step(&mut self, shared: &Shared) -> Result<Snapshot> {
        let sample = self.source.sample()?;
        let mut events = self.source.events()?;
        self.look_around(&sample);
        if let Some(gpu_events) = &mut self.gpu_events {
            let records = gpu_events.take(&events, &sample, &self.host);
            for record in &records {
                log::warn!("GPU event: {}", text::line(record));
            }
            self.findings.records(&records);
            let (troubles, hmm_off) = gpu_events.troubles();
            troubles.iter().for_each(|(at, trouble)| self.findings.trouble(*at, trouble, hmm_off));
            self.ledger.set_xid_lasts(gpu_events.lasts().clone());
        }
        events.drain(..events.len().saturating_sub(MAX_EVENTS));
        let difference = Difference::between(&self.previous, &sample);
        self.ledger.book(&difference, &self.host);
        let unlogged = self.gpu_events.as_ref().and_then(GpuEvents::unlogged);
        if let (Some(unlogged), Some(_)) = (unlogged, &sample.xid) {
            self.ledger.tell(&XID_UNLOGGED, Vec::new(), unlogged);
        }
        let mut state = State::of(&self.previous, &sample, &difference, &self.host);
        drop(difference);
        self.previous = sample;
        if let Some(gpu_events) = &mut self.gpu_events {
            gpu_events.observe(&state);
            if let Some(why) = gpu_events.not_kept() {
                state.health.reasons.push(why);
                state.health.status = Status::Degraded;
            }
        }
        state.events = events;
        state.coverage.push(uvm_process::coverage(&self.root));
        state.findings = self.findings.observe(&state);
        self.ledger.find(&state.findings);
        let process = Process::read(&self.root, "self");
        state.agent = process.map(|process| AgentProcess {
            pid: std::process::id(),
            started_seconds: process.started_seconds,
            cpu_seconds: process.cpu_seconds,
            resident_bytes: process.resident_bytes,
            interval_ns: u64::try_from(shared.interval().as_nanos()).unwrap_or(u64::MAX),
        });
        let reload_ok = Some(!shared.reload_refused.load(Ordering::Relaxed));
        let branches = tree(&self.ledger, &Itself { process, reload_ok });
        Ok(Answerable::new(state, branches))
    }

    /// Learns what changed on the host: drives, GPUs, and the names of containers that have none yet.
    fn look_around(&mut self, sample: &Sample) {
        let now = sample.at.monotonic_ns;
        if now.saturating_sub(self.inventory_ns) >= INVENTORY_NS {
            self.host = Inventory::read(&self.root);
            (self.inventory_ns, self.names_ns) = (now, now);
            return;
        }
        if now.saturating_sub(self.names_ns) < NAMES_NS {
            return;
        }
        let paths = sample.owners.iter().flatten().filter_map(|owner| owner.cgroup_path.as_deref());
        let mut ids = paths.filter(|path| path.contains("kubepods")).flat_map(|path| path.split('/'));
        let nameless = ids.any(|part| {
            workload::container_id(part).is_some_and(|id| !self.host.containers.contains_key(id))
        });
        if nameless {
            self.names_ns = now;
            self.host.containers = inventory::containers(&self.root);
        }
    }

    /// Takes readings until told to stop. A reading that takes longer than the interval delays the next one; none is
    /// made up for.
    pub fn run(mut self, shared: &Shared, orders: &Receiver<Order>) {
        let mut next = Instant::now() + shared.interval();
        loop {
            match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    // What came since the last reading, and what is not complete yet, is kept all the same.
                    shared.publish(self.step(shared));
                    if let Some(gpu_events) = &mut self.gpu_events {
                        gpu_events.end();
                    }
                    return;
                }
                Ok(Order::Interval(interval)) => {
                    shared.interval_ms.store(millis(interval), Ordering::Relaxed);
                    next = Instant::now() + interval;
                }
                Ok(Order::Full(full)) => match self.source.set_full(full) {
                    Ok(()) => log::info!("profile {}", if full { "full" } else { "light" }),
                    Err(e) => log::error!("the profile stays as it is: {}", e.chain()),
                },
                Err(RecvTimeoutError::Timeout) => {
                    shared.publish(self.step(shared));
                    next = (next + shared.interval()).max(Instant::now());
                }
            }
        }
    }
}
