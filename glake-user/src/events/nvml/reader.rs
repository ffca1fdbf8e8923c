//! The thread that asks, and what is known while it does.

use super::{Health, Nvml, Reading, ask};
use crate::clock::{Clock, Stamp, SystemClock};
use crate::sys::nvml::{Answer, Library, Refusal};
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The library's name where none is configured: the dynamic linker finds it.
pub const WELL_KNOWN: &str = "libnvidia-ml.so.1";

/// After a failure it is tried again so soon at first, then after twice the time, and so on up to the second.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(120);
/// How long the end waits for a call to come back, so that the library is left in order.
const END: Duration = Duration::from_millis(300);

/// How to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The library's name or path.
    pub library: OsString,
    /// Time between readings.
    pub interval: Duration,
    /// A reading that takes longer makes everything unknown until it comes back.
    pub timeout: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    /// A reading is under way since then.
    busy_since: Option<Stamp>,
    /// That reading is over its time and has been counted as failed.
    overdue: bool,
    /// How the newest complete one ended, and when.
    ended: Option<(Stamp, Result<Reading, Refusal>)>,
    /// When the newest good one ended, how long it took.
    good: Option<(Stamp, u64)>,
    failed: u64,
}

/// Asks NVML on a thread of its own. Nothing here ever waits for that thread.
#[derive(Debug)]
pub struct Reader {
    settings: Settings,
    started: Stamp,
    shared: Arc<Mutex<Shared>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts the thread, with the privileges that this one has.
    pub fn start(settings: Settings) -> Reader {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (stop, stopped) = channel();
        let thread = {
            let (settings, shared) = (settings.clone(), Arc::clone(&shared));
            let builder = std::thread::Builder::new().name("glake-nvml".into());
            builder.spawn(move || run(&settings, &shared, &stopped)).ok()
        };
        Reader { settings, started: SystemClock.now(), shared, stop: Some(stop), thread }
    }

    /// What is known at `now`.
    pub fn look(&self, now: Stamp) -> Nvml {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if self.thread.is_none() {
            shared.ended =
                Some((self.started, Err(Refusal::Other("its thread could not be started".into()))));
        }
        if late(&shared, &self.settings, now) && !shared.overdue {
            shared.overdue = true;
            shared.failed += 1;
        }
        known(&shared, &self.settings, self.started, now)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop = None;
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + END;
        // A call that hangs must not hold up the end: the kernel closes its files.
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn late(shared: &Shared, settings: &Settings, now: Stamp) -> bool {
    let busy = |since: Stamp| now.monotonic_ns.saturating_sub(since.monotonic_ns);
    shared.busy_since.is_some_and(|since| busy(since) > nanoseconds(settings.timeout))
}

/// What can be said at `now`: values only of a reading that ended well and is not old.
fn known(shared: &Shared, settings: &Settings, started: Stamp, now: Stamp) -> Nvml {
    let age = |at: Stamp| now.monotonic_ns.saturating_sub(at.monotonic_ns);
    let mut nvml = Nvml {
        read_at: shared.good.map(|(at, _)| at),
        age_ns: shared.good.map(|(at, _)| age(at)),
        took_ns: shared.good.map(|(_, took)| took),
        failed_reads: shared.failed,
        ..Nvml::default()
    };
    // Where the last value was good it is known until then; else nothing was ever known.
    let unknown_since = Some(shared.good.map_or(started, |(at, _)| at));
    if late(shared, settings, now) {
        let since = shared.busy_since.map_or(0, age);
        nvml.health = Health::Silent;
        nvml.unknown_since = unknown_since;
        nvml.reason =
            Some(format!("NVML has not answered for {} s: the driver or a GPU hangs", since / 1_000_000_000));
        nvml.remedy = Some(
            "`glake who` shows tasks stuck in the driver and `glake events` what came before; nothing else of GLake \
             waits for it, and it is asked no second time meanwhile"
                .into(),
        );
        return nvml;
    }
    match &shared.ended {
        None => nvml.reason = Some("the first reading is under way".into()),
        Some((_, Ok(reading))) => {
            nvml.health = Health::Answering;
            nvml.driver.clone_from(&reading.driver);
            nvml.gpus.clone_from(&reading.gpus);
        }
        Some((_, Err(why))) => {
            let (reason, remedy) = why_not(why, &settings.library.to_string_lossy());
            nvml.health = Health::Failed;
            nvml.unknown_since = unknown_since;
            (nvml.reason, nvml.remedy) = (Some(reason), Some(remedy));
        }
    }
    nvml
}

/// Why the library does not answer, and what to do.
pub(super) fn why_not(why: &Refusal, library: &str) -> (String, String) {
    let (reason, remedy) = match why {
        Refusal::NoLibrary(text) => (
            format!("{library} cannot be loaded: {text}"),
            "install the driver's NVML library (Debian: libnvidia-ml1), or set nvml.library to its path; in a container \
             mount it from the host",
        ),
        Refusal::NoDriver => {
            ("the NVIDIA driver is not loaded".into(), "modprobe nvidia; it is tried again by itself")
        }
        Refusal::Mismatch => (
            format!("{library} and the loaded kernel module are of different releases"),
            "after a driver update: restart the machine, or unload and load the modules; it is tried again by itself",
        ),
        Refusal::NoPermission => (
            "the driver's device nodes may not be opened".into(),
            "give the agent's user read and write on /dev/nvidiactl and /dev/nvidia*; in a container pass them in",
        ),
        Refusal::Lost => (
            "a GPU fell off the bus".into(),
            "restart the machine; if it comes again, have the GPU looked at",
        ),
        Refusal::ResetRequired => ("a GPU answers only after a reset".into(), "drain the GPU and reset it"),
        Refusal::NotSupported | Refusal::NotFound => (
            "this libnvidia-ml lacks what every release has: it is not NVIDIA's".into(),
            "set nvml.library to the driver's own",
        ),
        Refusal::Other(text) => (format!("NVML says: {text}"), "`nvidia-smi -q` should say the same"),
    };
    (reason, remedy.to_owned())
}

/// Reads, waits, reads, until the reader is dropped.
fn run(settings: &Settings, shared: &Mutex<Shared>, stopped: &Receiver<()>) {
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let mut library: Option<Library> = None;
    let mut before = Reading::default();
    let mut failures: u32 = 0;
    loop {
        let begun = SystemClock.now();
        lock().busy_since = Some(begun);
        let result = read(&mut library, settings, &before);
        let now = SystemClock.now();
        let wait = match &result {
            Ok(reading) => {
                before.clone_from(reading);
                failures = 0;
                settings.interval
            }
            Err(_) => {
                // What a failed call left behind is not trusted: it is unloaded, and loaded anew.
                library = None;
                failures = failures.saturating_add(1);
                retry(settings, failures)
            }
        };
        let mut shared = lock();
        if result.is_ok() {
            shared.good = Some((now, now.monotonic_ns.saturating_sub(begun.monotonic_ns)));
        } else if !shared.overdue {
            shared.failed += 1;
        }
        (shared.busy_since, shared.overdue) = (None, false);
        shared.ended = Some((now, result));
        drop(shared);
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn read(library: &mut Option<Library>, settings: &Settings, before: &Reading) -> Answer<Reading> {
    let open = match library.take() {
        Some(open) => open,
        None => Library::open(&settings.library)?,
    };
    ask(library.insert(open), before)
}

/// How long to wait after so many failures in a row.
fn retry(settings: &Settings, failures: u32) -> Duration {
    let first = settings.interval.min(FIRST_RETRY);
    first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LAST_RETRY.max(settings.interval))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::nvml::GpuHealth;
    use crate::events::sample::ProbeState;

    fn at(s: u64) -> Stamp {
        Stamp { monotonic_ns: s * 1_000_000_000, realtime_ns: s * 1_000_000_000 }
    }

    fn settings() -> Settings {
        let (interval, timeout) = (Duration::from_secs(30), Duration::from_secs(5));
        Settings { library: WELL_KNOWN.into(), interval, timeout }
    }

    fn read_well(s: u64) -> Shared {
        let reading = Reading { driver: None, gpus: vec![GpuHealth::default()] };
        Shared { ended: Some((at(s), Ok(reading))), good: Some((at(s), 7)), ..Shared::default() }
    }

    #[test]
    fn a_reading_has_an_age_and_is_gone_when_the_next_one_hangs() {
        let mut shared = read_well(100);
        let fresh = known(&shared, &settings(), at(1), at(112));
        assert_eq!(
            (fresh.health, fresh.age_ns, fresh.gpus.len()),
            (Health::Answering, Some(12_000_000_000), 1)
        );
        shared.busy_since = Some(at(130));
        assert_eq!(
            known(&shared, &settings(), at(1), at(135)).health,
            Health::Answering,
            "it has five seconds"
        );
        let silent = known(&shared, &settings(), at(1), at(136));
        assert_eq!((silent.health, silent.gpus.len()), (Health::Silent, 0), "an old value is no value");
        assert_eq!(silent.unknown_since, Some(at(100)));
        assert!(silent.reason.as_ref().is_some_and(|r| r.contains("for 6 s")), "{silent:?}");
        assert_eq!(silent.probe().state, ProbeState::Failed);
    }

    #[test]
    fn before_the_first_reading_nothing_is_known_and_nothing_is_wrong() {
        let shared = Shared { busy_since: Some(at(1)), ..Shared::default() };
        let nvml = known(&shared, &settings(), at(1), at(2));
        assert_eq!((nvml.health, nvml.read_at, nvml.unknown_since), (Health::Starting, None, None));
        assert!(!nvml.probe().required, "no alarm for a start");
        assert_eq!(known(&shared, &settings(), at(1), at(7)).unknown_since, Some(at(1)), "it never answered");
    }

    #[test]
    fn it_is_tried_again_sooner_than_the_interval_and_then_less_and_less_often() {
        let waits: Vec<u64> = (1..8).map(|n| retry(&settings(), n).as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 120, 120]);
        let rare = Settings { interval: Duration::from_secs(600), ..settings() };
        assert_eq!(retry(&rare, 40), Duration::from_secs(600));
    }

    #[test]
    fn every_refusal_has_its_reason_and_its_remedy() {
        let all = [
            Refusal::NoLibrary("not found".into()),
            Refusal::NoDriver,
            Refusal::Mismatch,
            Refusal::NoPermission,
            Refusal::NotSupported,
            Refusal::Lost,
            Refusal::ResetRequired,
            Refusal::Other("an internal driver error occurred".into()),
        ];
        let texts: std::collections::BTreeSet<(String, String)> =
            all.iter().map(|why| why_not(why, WELL_KNOWN)).collect();
        assert_eq!(texts.len(), all.len(), "each its own: {texts:?}");
        assert!(texts.iter().all(|(reason, remedy)| !reason.is_empty() && !remedy.is_empty()));
    }
}
