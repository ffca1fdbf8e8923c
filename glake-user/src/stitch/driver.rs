//! The device with its calls counted and timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::stats::CallCount;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Call, Device, Event, Handle, Stream};

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    ns: AtomicU64,
}

/// A device as one side of the heap calls it: the foreground (somebody waits) or the reclaimer.
pub(crate) struct Driver {
    pub(crate) device: Arc<dyn Device>,
    counters: [Counter; Call::ALL.len()],
}

impl Driver {
    pub(crate) fn new(device: Arc<dyn Device>) -> Driver {
        Driver { device, counters: Default::default() }
    }

    /// Counts so far, by [`Call`].
    pub(crate) fn counts(&self) -> [CallCount; Call::ALL.len()] {
        std::array::from_fn(|i| CallCount {
            calls: self.counters[i].calls.load(Ordering::Relaxed),
            ns: self.counters[i].ns.load(Ordering::Relaxed),
        })
    }

    /// Calls and nanoseconds of all kinds.
    pub(crate) fn total(&self) -> CallCount {
        self.counts()
            .iter()
            .fold(CallCount::default(), |a, c| CallCount { calls: a.calls + c.calls, ns: a.ns + c.ns })
    }

    fn timed<T>(&self, call: Call, run: impl FnOnce(&dyn Device) -> Result<T>) -> Result<T> {
        let start = self.device.now_ns();
        let out = run(&*self.device);
        let counter = &self.counters[call as usize];
        counter.calls.fetch_add(1, Ordering::Relaxed);
        counter.ns.fetch_add(self.device.now_ns().saturating_sub(start), Ordering::Relaxed);
        out
    }

    pub(crate) fn reserve(&self, size: u64) -> Result<u64> {
        self.timed(Call::Reserve, |d| d.reserve(size))
    }

    pub(crate) fn create(&self, size: u64) -> Result<Handle> {
        self.timed(Call::Create, |d| d.create(size))
    }

    pub(crate) fn release(&self, handle: Handle) -> Result<()> {
        self.timed(Call::Release, |d| d.release(handle))
    }

    pub(crate) fn map(&self, address: u64, size: u64, handle: Handle) -> Result<()> {
        self.timed(Call::Map, |d| d.map(address, size, handle))
    }

    pub(crate) fn set_access(&self, address: u64, size: u64) -> Result<()> {
        self.timed(Call::SetAccess, |d| d.set_access(address, size))
    }

    pub(crate) fn unmap(&self, address: u64, size: u64) -> Result<()> {
        self.timed(Call::Unmap, |d| d.unmap(address, size))
    }

    /// `None` while no event can be recorded: the stream is captured, or the driver refused. It is tried again later.
    pub(crate) fn record(&self, stream: Stream) -> Option<Event> {
        match self.device.is_capturing(stream) {
            Ok(false) => {}
            Ok(true) => return None,
            Err(e) => return put_off("asking whether a stream is captured", &e),
        }
        match self.timed(Call::Record, |d| d.record(stream)) {
            Ok(event) => Some(event),
            Err(e) => put_off("recording an event", &e),
        }
    }

    /// False also where the driver refuses to say; only a lost device is an error.
    pub(crate) fn is_done(&self, event: Event) -> Result<bool> {
        match self.timed(Call::Query, |d| d.is_done(event)) {
            Err(e) if e.kind() != Kind::Device => {
                put_off::<()>("asking after an event", &e);
                Ok(false)
            }
            done => done,
        }
    }

    /// True when the event came in time.
    pub(crate) fn wait(&self, event: Event, timeout_ns: u64) -> Result<bool> {
        match self.timed(Call::Wait, |d| d.wait(event, timeout_ns)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == Kind::TimedOut => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn recycle(&self, event: Event) {
        self.device.recycle(event);
    }
}

/// A step that is tried again later.
fn put_off<T>(doing: &str, e: &Error) -> Option<T> {
    log::debug!("{doing}: {}", e.chain());
    None
}
