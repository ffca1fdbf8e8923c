//! GLake's row: the heap itself, on the host GPU with modelled costs or on a real one.

use std::collections::HashSet;
use std::sync::Arc;

use super::study::{Contestant, Observe};
use crate::error::{Error, Kind, Result};
use crate::gpu::Device;
use crate::gpu::cuda::Cuda;
use crate::standin::gpu::{HostGpu, Settings as HostSettings};
use crate::stitch::model::Caching;
use crate::stitch::snapshot::Settings;
use crate::stitch::trace::{self, Alloc, Outcome, Pool, Target, TraceEvent, Usage};
use crate::stitch::{Heap, HeapTarget, Options};

/// More than any GPU has: where no limit is wanted.
const NO_LIMIT: u64 = 1 << 42;
/// The unit of GPU memory.
const GRANULE: u64 = 2 << 20;

/// Where the heap runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Host,
    Cuda(u32),
}

impl Place {
    pub(super) fn parse(text: &str) -> Result<Place> {
        if text == "host" {
            return Ok(Place::Host);
        }
        text.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(Place::Cuda).ok_or_else(|| {
            Error::new(Kind::Misuse, format!("--on {text}: expected host or cuda:N, as in cuda:0"))
        })
    }
}

pub(super) fn contestant<'a>(
    place: Place,
    run_ahead_ms: u64,
    settings: &'a Settings,
    events: &'a [TraceEvent],
) -> Contestant<'a> {
    Contestant {
        name: "glake",
        play: Box::new(move |capacity, observe| {
            let capacity = capacity.min(NO_LIMIT) / GRANULE * GRANULE;
            match place {
                Place::Host => on_host(capacity, run_ahead_ms, settings, events, observe),
                Place::Cuda(n) => on_cuda(n, capacity, settings, events, observe),
            }
        }),
    }
}

fn on_host(
    capacity: u64,
    run_ahead_ms: u64,
    settings: &Settings,
    events: &[TraceEvent],
    observe: Observe<'_>,
) -> Result<Outcome> {
    let lag_ns = run_ahead_ms.saturating_mul(1_000_000);
    let gpu = Arc::new(HostGpu::new(HostSettings { capacity, lag_ns, ..HostSettings::default() })?);
    let heap = Heap::new(Arc::clone(&gpu) as Arc<dyn Device>, Options::default())?;
    let clock = Box::new(move |at_ns| gpu.advance_to(at_ns));
    play(&heap, clock, capacity, settings, events, observe)
}

fn on_cuda(
    ordinal: u32,
    capacity: u64,
    settings: &Settings,
    events: &[TraceEvent],
    observe: Observe<'_>,
) -> Result<Outcome> {
    let gpu: Arc<dyn Device> = Arc::new(Cuda::open(ordinal)?);
    let max_bytes = (capacity < NO_LIMIT).then_some(capacity);
    let heap = Heap::new(gpu, Options { max_bytes, ..Options::default() })?;
    play(&heap, Box::new(|_| {}), capacity, settings, events, observe)
}

fn play<'a>(
    heap: &'a Heap,
    clock: Box<dyn FnMut(u64) + 'a>,
    capacity: u64,
    settings: &Settings,
    events: &[TraceEvent],
    observe: Observe<'_>,
) -> Result<Outcome> {
    let mut target = WithPools {
        heap: HeapTarget::new(heap, clock),
        pools: Caching::new(settings, capacity),
        private: HashSet::new(),
        capacity,
    };
    trace::play(events, &mut target, observe)
}

/// The heap, beside torch's own allocator for private pools: those blocks stay with it in real life too.
struct WithPools<'a> {
    heap: HeapTarget<'a>,
    pools: Caching,
    private: HashSet<u64>,
    capacity: u64,
}

impl Target for WithPools<'_> {
    fn name(&self) -> &str {
        "glake"
    }

    fn advance(&mut self, at_ns: u64) -> Result<()> {
        self.heap.advance(at_ns)
    }

    fn allocate(&mut self, alloc: &Alloc) -> Result<()> {
        if alloc.pool == Pool::Default {
            self.heap.allocate(alloc)?;
        } else {
            self.pools.allocate(alloc)?;
            self.private.insert(alloc.id);
        }
        if self.usage().reserved > self.capacity {
            return Err(Error::new(Kind::Exhausted, format!("allocating {} bytes", alloc.size)));
        }
        Ok(())
    }

    fn free_requested(&mut self, id: u64) -> Result<()> {
        if self.private.contains(&id) { self.pools.free_requested(id) } else { self.heap.free_requested(id) }
    }

    fn free(&mut self, id: u64) -> Result<()> {
        if self.private.remove(&id) { self.pools.free(id) } else { self.heap.free(id) }
    }

    fn usage(&self) -> Usage {
        let (a, b) = (self.heap.usage(), self.pools.usage());
        Usage {
            allocated: a.allocated + b.allocated,
            requested: a.requested + b.requested,
            reserved: a.reserved + b.reserved,
            driver_calls: a.driver_calls + b.driver_calls,
            foreground_ns: a.foreground_ns + b.foreground_ns,
            background_ns: a.background_ns + b.background_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_torch_writes_devices() {
        assert_eq!(Place::parse("host").unwrap(), Place::Host);
        assert_eq!(Place::parse("cuda:3").unwrap(), Place::Cuda(3));
        for wrong in ["cuda", "cuda:", "gpu:0", ""] {
            assert_eq!(Place::parse(wrong).unwrap_err().kind(), Kind::Misuse);
        }
    }
}
