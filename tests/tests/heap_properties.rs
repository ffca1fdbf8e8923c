//! The heap against a plain model: whatever is asked of it, and whatever the device refuses, live blocks are disjoint,
//! keep their bytes, and the books add up.

use std::collections::BTreeMap;
use std::sync::Arc;

use glake::error::Kind;
use glake::gpu::{Call, Costs, Device, Stream};
use glake::standin::gpu::{Fault, HostGpu, Settings};
use glake::stitch::{Heap, Options};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
/// Small granules keep the property cheap: 64 KiB instead of 2 MiB.
const GRANULE: u64 = 64 << 10;
const CAPACITY: u64 = 24 * MIB;

#[derive(Debug, Clone)]
enum Op {
    Allocate {
        size: u64,
        stream: usize,
    },
    Free {
        which: usize,
    },
    /// Freed on a stream that is not its own.
    FreeElsewhere {
        which: usize,
        stream: usize,
    },
    Share {
        which: usize,
        stream: usize,
    },
    Advance {
        ns: u64,
    },
    Reclaim,
    Trim,
    Defragment,
    Fail {
        call: usize,
        after: u64,
        times: u64,
    },
    Heal,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![1..4000_u64, 4000..MIB, MIB..6 * MIB];
    prop_oneof![
        12 => (size, 0..3_usize).prop_map(|(size, stream)| Op::Allocate { size, stream }),
        9 => (0..64_usize).prop_map(|which| Op::Free { which }),
        1 => (0..64_usize, 0..3_usize).prop_map(|(which, stream)| Op::FreeElsewhere { which, stream }),
        2 => (0..64_usize, 0..3_usize).prop_map(|(which, stream)| Op::Share { which, stream }),
        3 => (0..8_000_000_u64).prop_map(|ns| Op::Advance { ns }),
        2 => Just(Op::Reclaim),
        1 => Just(Op::Trim),
        1 => Just(Op::Defragment),
        2 => (0..Call::ALL.len(), 0..4_u64, 1..4_u64).prop_map(|(call, after, times)| Op::Fail { call, after, times }),
        2 => Just(Op::Heal),
    ]
}

/// A block as the model knows it.
#[derive(Debug, Clone, Copy)]
struct Known {
    size: u64,
    requested: u64,
    stream: Stream,
    mark: u8,
}

struct World {
    gpu: Arc<HostGpu>,
    heap: Heap,
    streams: Vec<Stream>,
    live: BTreeMap<u64, Known>,
    marks: u8,
}

impl World {
    fn new(lag_ns: u64, limit: Option<u64>) -> World {
        let settings = Settings { capacity: CAPACITY, granularity: GRANULE, costs: Costs::H200, lag_ns };
        let gpu = Arc::new(HostGpu::new(settings).unwrap());
        let options = Options {
            max_bytes: limit,
            handle_bytes: 8 * GRANULE,
            small_bytes: GRANULE / 2,
            wait_ns: 10_000_000_000,
            ..Options::default()
        };
        let heap = Heap::new(Arc::clone(&gpu) as Arc<dyn Device>, options).unwrap();
        let streams = vec![Stream(0), gpu.create_stream().unwrap(), gpu.create_stream().unwrap()];
        World { gpu, heap, streams, live: BTreeMap::new(), marks: 0 }
    }

    fn nth(&self, which: usize) -> Option<(u64, Known)> {
        let at = which.checked_rem(self.live.len())?;
        self.live.iter().nth(at).map(|(ptr, known)| (*ptr, *known))
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Allocate { size, stream } => self.allocate(size, self.streams[stream]),
            Op::Free { which } => {
                if let Some((ptr, known)) = self.nth(which) {
                    self.look(ptr, &known);
                    self.heap.free(ptr, known.stream).unwrap();
                    self.live.remove(&ptr);
                }
            }
            Op::FreeElsewhere { which, stream } => {
                if let Some((ptr, _)) = self.nth(which) {
                    self.heap.free(ptr, self.streams[stream]).unwrap();
                    self.live.remove(&ptr);
                }
            }
            Op::Share { which, stream } => {
                if let Some((ptr, _)) = self.nth(which) {
                    self.heap.record_stream(ptr, self.streams[stream]).unwrap();
                }
            }
            Op::Advance { ns } => self.gpu.advance(ns),
            // Refused driver calls are errors here; what counts is that nothing is lost by them.
            Op::Reclaim => drop(self.heap.reclaim(1_000_000)),
            Op::Trim => drop(self.heap.trim()),
            Op::Defragment => drop(self.heap.defragment()),
            Op::Fail { call, after, times } => {
                let call = Call::ALL[call];
                let kind = if call == Call::Create { Kind::Exhausted } else { Kind::Io };
                // Work and waits are the program's own calls: the heap cannot be blamed for those.
                if !matches!(call, Call::Wait | Call::Record) {
                    self.gpu.inject(Fault { call, after, times, kind });
                }
            }
            Op::Heal => self.gpu.heal(),
        }
    }

    fn allocate(&mut self, size: u64, stream: Stream) {
        let Ok(block) = self.heap.allocate(size, stream) else { return };
        self.marks = self.marks.wrapping_add(1);
        let known = Known { size: block.size, requested: size, stream, mark: self.marks };
        let before = self.live.range(..block.ptr + block.size).next_back();
        if let Some((ptr, other)) = before {
            assert!(ptr + other.size <= block.ptr, "{block:?} overlaps {ptr:#x} of {} bytes", other.size);
        }
        self.gpu.fill(stream, block.ptr, block.size, known.mark).unwrap();
        self.live.insert(block.ptr, known);
    }

    /// Reads three bytes of a block, in its stream's order.
    fn look(&self, ptr: u64, known: &Known) {
        for at in [ptr, ptr + known.size / 2, ptr + known.size - 1] {
            let mut byte = [0];
            // Read faults are injected too: only a byte that was read can be wrong.
            if self.gpu.read(known.stream, at, &mut byte).is_ok() {
                assert_eq!(byte[0], known.mark, "at {at:#x} of block {ptr:#x}");
            }
        }
    }

    fn audit(&self, limit: Option<u64>) {
        self.heap.verify().unwrap();
        let stats = self.heap.stats();
        let allocated: u64 = self.live.values().map(|k| k.size).sum();
        let requested: u64 = self.live.values().map(|k| k.requested).sum();
        assert_eq!((stats.allocated.current, stats.requested.current), (allocated, requested));
        assert_eq!(stats.blocks.current, self.live.len() as u64);
        assert!(stats.reserved.peak <= limit.unwrap_or(CAPACITY));
        assert!(stats.reserved.current >= allocated);
        assert_eq!(self.gpu.lost(), None, "the device met an unmapped address");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn live_blocks_are_disjoint_keep_their_bytes_and_add_up(
        ops in prop::collection::vec(op(), 1..250),
        lag_ns in prop_oneof![Just(0_u64), Just(5_000_000), Just(300_000_000)],
        limit in prop_oneof![Just(None), Just(Some(16 * MIB))],
    ) {
        let mut world = World::new(lag_ns, limit);
        for op in &ops {
            world.step(op);
        }
        world.gpu.heal();
        world.audit(limit);
        // Everything in flight lands, and nobody's bytes were touched by it.
        world.gpu.advance(1_000_000_000);
        for (ptr, known) in &world.live {
            world.look(*ptr, known);
        }
        for (ptr, known) in std::mem::take(&mut world.live) {
            world.heap.free(ptr, known.stream).unwrap();
        }
        world.audit(limit);
        world.heap.trim().unwrap();
        world.audit(limit);
        if world.heap.stats().lost_bytes == 0 {
            prop_assert_eq!(world.heap.reserved(), 0);
            prop_assert_eq!(world.gpu.held(), 0);
        }
    }
}

#[test]
fn threads_and_streams_at_once_keep_the_books() {
    let settings =
        Settings { capacity: 256 * MIB, granularity: GRANULE, costs: Costs::FREE, lag_ns: 1_000_000 };
    let gpu = Arc::new(HostGpu::new(settings).unwrap());
    let options = Options { handle_bytes: 8 * GRANULE, max_bytes: Some(200 * MIB), ..Options::default() };
    let heap = Arc::new(Heap::new(Arc::clone(&gpu) as Arc<dyn Device>, options).unwrap());
    let streams: Vec<Stream> = (0..3).map(|_| gpu.create_stream().unwrap()).collect();
    let workers: Vec<_> = (0..6_u64)
        .map(|n| {
            let (heap, gpu, stream) = (Arc::clone(&heap), Arc::clone(&gpu), streams[n as usize % 3]);
            std::thread::spawn(move || {
                let mut random = glake_tests::conformance::heap::Random(n + 1);
                let mut live = Vec::new();
                for turn in 0..4000_u64 {
                    let size = 1 + random.below(if turn % 4 == 0 { 8 * MIB } else { 100_000 });
                    match heap.allocate(size, stream) {
                        Ok(block) => live.push(block),
                        Err(e) => assert_eq!(e.kind(), Kind::Exhausted, "{}", e.chain()),
                    }
                    if !live.is_empty() && (live.len() > 20 || turn % 3 == 0) {
                        heap.free(live.swap_remove(0).ptr, stream).unwrap();
                    }
                    if turn % 64 == n {
                        gpu.advance(100_000);
                        heap.reclaim(1_000_000).unwrap();
                    }
                }
                for block in live {
                    heap.free(block.ptr, stream).unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    heap.verify().unwrap();
    assert_eq!(heap.stats().blocks.current, 0);
    assert!(heap.stats().reserved.peak <= 200 * MIB);
    heap.trim().unwrap();
    assert_eq!((heap.reserved(), gpu.held()), (0, 0));
    assert_eq!(gpu.lost(), None);
}
