//! Time is passed in: the system's clock, or one moved by hand in tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// A pair of readings taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Stamp {
    /// CLOCK_MONOTONIC in nanoseconds: the clock of BPF.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME in nanoseconds since 1970.
    pub realtime_ns: u64,
}

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Both clocks, read together.
    fn now(&self) -> Stamp;
}

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        let ns = |id| {
            let t = rustix::time::clock_gettime(id);
            u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
        };
        Stamp {
            monotonic_ns: ns(rustix::time::ClockId::Monotonic),
            realtime_ns: ns(rustix::time::ClockId::Realtime),
        }
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct ManualClock {
    ns: AtomicU64,
}

impl ManualClock {
    /// Moves both clocks on.
    pub fn advance_ns(&self, ns: u64) {
        self.ns.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Stamp {
        let ns = self.ns.load(Ordering::SeqCst);
        Stamp { monotonic_ns: ns, realtime_ns: ns }
    }
}
