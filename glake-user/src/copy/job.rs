//! One copy: chunks handed out to lanes, progress, deadline, and what came of it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lanes::{Lane, Outcome};
use super::paths::{Paths, Sent, Toward};
use super::span::{Chunk, Span, chunks};
use super::{Relay, Ring, Source};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Refused, Stream};
use crate::sys::buffer::Part;

/// How long lanes get to notice that a copy is given up.
const GRACE: Duration = Duration::from_millis(500);
/// Between two reports of progress.
const REPORT: Duration = Duration::from_millis(100);

/// How a copy is done.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Threads.
    pub lanes: usize,
    /// Parts of the ring for each: one is filled while the others are fetched by the GPU.
    pub parts_per_lane: usize,
    /// The longest that the copy may take.
    pub limit: Duration,
    /// Work of this stream must be over before the device memory is used.
    pub after: Option<Stream>,
    /// Peers that carry parts too.
    pub relays: Vec<Arc<Relay>>,
}

/// What a copy did.
#[derive(Debug, Clone, PartialEq)]
pub struct Moved {
    /// Bytes that arrived.
    pub bytes: u64,
    /// From the first read to the last byte in place.
    pub elapsed: Duration,
    /// What the lanes' threads used of CPUs.
    pub cpu: Duration,
    /// Of them, over peers.
    pub relayed: u64,
    /// What went another way than asked, and why.
    pub notes: Vec<String>,
}

/// What lanes share.
pub struct Job {
    /// What it does, for messages: "copying FILE".
    doing: String,
    device: Arc<dyn Device>,
    /// The stream that all copies over the GPU's own link are in.
    stream: Stream,
    paths: Paths,
    chunks: Vec<Chunk>,
    next: AtomicUsize,
    stop: AtomicBool,
    end: Instant,
    moved: AtomicU64,
    notes: Mutex<Vec<String>>,
}

impl Job {
    /// The next chunk that nobody has taken. `None` when there is no more, or the job was given up.
    pub fn next(&self) -> Option<&Chunk> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        self.chunks.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Time until the deadline, also when the job was given up.
    pub fn time(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Time to go on; an error when there is none.
    pub fn left(&self) -> Result<Duration> {
        let left = self.time();
        if left.is_zero() || self.stop.load(Ordering::Relaxed) {
            let what = format!("{}: the time is over", self.doing);
            return Err(Error::new(Kind::TimedOut, what));
        }
        Ok(left)
    }

    /// Sends a filled part to the device.
    pub(super) fn upload(&self, part: Part, chunk: &Chunk) -> Result<Sent, Refused> {
        self.paths.send(&*self.device, self.stream, part, &chunk.pieces, Toward::Gpu)
    }

    /// Begins to fill a part from the device.
    pub(super) fn download(&self, part: Part, chunk: &Chunk) -> Result<Sent, Refused> {
        self.paths.send(&*self.device, self.stream, part, &chunk.pieces, Toward::Host)
    }

    /// Whether a part is through. Does not wait.
    pub(super) fn is_done(&self, sent: &Sent) -> Result<bool> {
        self.paths.is_done(&*self.device, sent)
    }

    /// Waits until a part is through. Also when the time is over: a copy that is nearly there is waited for a moment, so that its
    /// part is not lost.
    pub(super) fn land(&self, sent: Sent) -> Result<Part> {
        let left = self.time().max(Duration::from_millis(200));
        self.paths.land(&*self.device, sent, u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Counts bytes that are where they belong.
    pub fn arrived(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says once what went another way.
    pub fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

/// Copies `spans` of a file to the device by `lane`, and returns when all bytes are there. `progress` is told the bytes done
/// every tenth of a second.
///
/// Errors: `BadInput` when a span is outside the file or the file changed meanwhile, `TimedOut` after
/// [`Settings::limit`], and what the file, the ring or the device refused. After an error the device memory of the spans
/// holds anything.
pub fn read(
    source: &Source,
    spans: &[Span],
    device: &Arc<dyn Device>,
    ring: &Ring,
    lane: &Arc<dyn Lane>,
    settings: &Settings,
    progress: &mut dyn FnMut(u64),
) -> Result<Moved> {
    let chunks = chunks(spans, source.size(), ring.part_size(), source.align())?;
    let doing = format!("copying {}", source.path().display());
    let moved = carry_out(doing, chunks, device, ring, lane, settings, progress)?;
    source.unchanged()?;
    Ok(moved)
}

/// Hands chunks to lanes until all are done.
pub(super) fn carry_out(
    doing: String,
    chunks: Vec<Chunk>,
    device: &Arc<dyn Device>,
    ring: &Ring,
    lane: &Arc<dyn Lane>,
    settings: &Settings,
    progress: &mut dyn FnMut(u64),
) -> Result<Moved> {
    let stream = device.create_stream()?;
    let job = Arc::new(Job {
        doing,
        device: Arc::clone(device),
        stream,
        paths: Paths::new(settings.relays.clone()),
        chunks,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        end: Instant::now() + settings.limit,
        moved: AtomicU64::new(0),
        notes: Mutex::new(Vec::new()),
    });
    let begun = Instant::now();
    let before = settings.after.map(|other| device.record(other)).transpose()?;
    let waits = match before {
        None => Ok(()),
        Some(event) if settings.relays.is_empty() => device.stream_wait(stream, event),
        // A peer's streams do not wait for this GPU's events: the host does.
        Some(event) => {
            let limit = u64::try_from(settings.limit.as_nanos()).unwrap_or(u64::MAX);
            device.wait(event, limit)
        }
    };
    let ended = waits.and_then(|()| run(&job, ring, lane, settings, progress));
    let elapsed = begun.elapsed();
    // Destroying a stream waits for its work, which may be what never ends.
    if !ended.as_ref().is_err_and(|e| matches!(e.kind(), Kind::TimedOut | Kind::Device)) {
        before.into_iter().for_each(|event| device.recycle(event));
        device.destroy_stream(stream)?;
    }
    let cpu = ended?;
    let notes = std::mem::take(&mut *job.notes.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Moved { bytes: job.moved(), elapsed, cpu, relayed: job.paths.relayed(), notes })
}

/// Starts the lanes and waits for them; the CPU time they used.
fn run(
    job: &Arc<Job>,
    ring: &Ring,
    lane: &Arc<dyn Lane>,
    settings: &Settings,
    progress: &mut dyn FnMut(u64),
) -> Result<Duration> {
    let lanes = settings.lanes.max(1).min(job.chunks.len());
    let mut parts = ring.lend(lanes * settings.parts_per_lane.max(1))?;
    let lent = parts.len();
    let lanes = lanes.min(lent);
    let (tell, told) = channel();
    for number in 0..lanes {
        let share = parts.split_off(parts.len() - parts.len() / (lanes - number));
        let (shared, lane, tell) = (Arc::clone(job), Arc::clone(lane), tell.clone());
        let work = move || {
            let outcome = lane.run(&shared, share);
            // Whoever is told that it is over holds all there is: the file, the job and its relays are nobody else's then.
            drop((shared, lane));
            // The receiver may be gone: then the copy was given up, and the parts count as lost.
            let _ = tell.send(outcome);
        };
        let thread = std::thread::Builder::new().name(format!("glake-copy-{number}"));
        if let Err(e) = thread.spawn(work) {
            job.stop.store(true, Ordering::Relaxed);
            let started = gather(job, &told, number, progress);
            ring.give(started.parts, lent.saturating_sub(started.count));
            return Err(Error::os("starting a thread to copy with", e));
        }
    }
    drop(tell);
    let gathered = gather(job, &told, lanes, progress);
    ring.give(gathered.parts, lent.saturating_sub(gathered.count));
    gathered.result.map(|()| gathered.cpu)
}

/// What the lanes answered, put together.
struct Gathered {
    parts: Vec<crate::sys::buffer::Part>,
    count: usize,
    result: Result<()>,
    cpu: Duration,
}

fn gather(job: &Job, told: &Receiver<Outcome>, lanes: usize, progress: &mut dyn FnMut(u64)) -> Gathered {
    let mut all = Gathered { parts: Vec::new(), count: 0, result: Ok(()), cpu: Duration::ZERO };
    let mut answered = 0;
    while answered < lanes {
        // A lane that has seen the end of the time says so itself, unless it is stuck in the kernel.
        let wait = (job.end + GRACE).saturating_duration_since(Instant::now());
        match told.recv_timeout(wait.min(REPORT)) {
            Ok(outcome) => {
                answered += 1;
                all.parts.extend(outcome.parts);
                all.cpu += outcome.cpu;
                if outcome.result.is_err() {
                    job.stop.store(true, Ordering::Relaxed);
                }
                // The first error is the cause; those after it are its consequences.
                all.result = all.result.and(outcome.result);
            }
            Err(RecvTimeoutError::Timeout) if !wait.is_zero() => progress(job.moved()),
            Err(_) => {
                job.stop.store(true, Ordering::Relaxed);
                let stuck = lanes - answered;
                let what = format!(
                    "{}: {stuck} of {lanes} threads gave no answer in time, {} bytes had arrived",
                    job.doing,
                    job.moved()
                );
                let remedy = "the disk or the GPU does not answer: see `glake doctor` and the kernel log";
                all.result = Err(Error::new(Kind::TimedOut, what).remedy(remedy));
                break;
            }
        }
    }
    progress(job.moved());
    all.count = all.parts.len();
    all
}
