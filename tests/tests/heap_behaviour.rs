//! What the heap promises, one statement at a time, on the host GPU.

use std::sync::Arc;

use glake::error::Kind;
use glake::gpu::{Call, Costs, Device, Stream};
use glake::standin::gpu::{Fault, HostGpu, Settings};
use glake::stitch::trace::What;
use glake::stitch::{Budget, Heap, Options, Reclaimer};
use glake_tests::steps;

const MIB: u64 = 1 << 20;

fn gpu(lag_ns: u64, capacity: u64) -> Arc<HostGpu> {
    let settings = Settings { capacity, costs: Costs::H200, lag_ns, ..Settings::default() };
    Arc::new(HostGpu::new(settings).unwrap())
}

fn heap(gpu: &Arc<HostGpu>, options: Options) -> Heap {
    Heap::new(Arc::clone(gpu) as Arc<dyn Device>, options).unwrap()
}

/// 32 MiB limit, 8 blocks of 4 MiB, every second one freed: 16 MiB free in four places.
fn scattered(heap: &Heap, stream: Stream) -> Vec<u64> {
    let blocks: Vec<u64> = (0..8).map(|_| heap.allocate(4 * MIB, stream).unwrap().ptr).collect();
    for ptr in blocks.iter().skip(1).step_by(2) {
        heap.free(*ptr, stream).unwrap();
    }
    blocks.into_iter().step_by(2).collect()
}

fn small() -> Options {
    Options { max_bytes: Some(32 * MIB), handle_bytes: 4 * MIB, ..Options::default() }
}

#[test]
fn a_remap_does_not_wait_for_a_busy_stream() {
    let gpu = gpu(300_000_000, 1 << 30);
    let heap = heap(&gpu, small());
    scattered(&heap, Stream(0));
    let before = gpu.now_ns();
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    assert!(gpu.now_ns() - before < 1_000_000, "it took {} ns", gpu.now_ns() - before);
    assert_eq!(heap.stats().waits, 0);
    // The last of the four free places grew in place; the other three gave their memory.
    assert_eq!(heap.stats().zombie_bytes, 12 * MIB);
}

#[test]
fn with_remap_while_busy_off_the_stream_is_waited_for() {
    let gpu = gpu(300_000_000, 1 << 30);
    let heap = heap(&gpu, Options { remap_while_busy: false, ..small() });
    scattered(&heap, Stream(0));
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    assert!(gpu.now_ns() >= 300_000_000);
    assert!(heap.stats().waits > 0);
}

#[test]
fn zombies_are_unmapped_only_after_the_work_before_them() {
    let gpu = gpu(50_000_000, 1 << 30);
    let heap = heap(&gpu, small());
    scattered(&heap, Stream(0));
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    assert_eq!(heap.reclaim(u64::MAX).unwrap().unmapped, 0);
    gpu.advance(60_000_000);
    assert_eq!(heap.reclaim(u64::MAX).unwrap().unmapped, 12 * MIB);
    assert_eq!(heap.stats().zombie_bytes, 0);
}

#[test]
fn every_driver_call_may_fail_and_earlier_blocks_stay_whole() {
    for call in [Call::Create, Call::Map, Call::SetAccess, Call::Record, Call::Unmap] {
        for after in 0..4 {
            let gpu = gpu(0, 1 << 30);
            let heap = heap(&gpu, small());
            let kept = scattered(&heap, Stream(0));
            for (i, ptr) in kept.iter().enumerate() {
                gpu.fill(Stream(0), *ptr, 4 * MIB, i as u8 + 1).unwrap();
            }
            gpu.synchronize(Stream(0)).unwrap();
            gpu.inject(Fault { call, after, times: 1, kind: Kind::Io });
            let first = heap.allocate(16 * MIB, Stream(0));
            gpu.heal();
            heap.verify().unwrap();
            if first.is_err() {
                heap.allocate(16 * MIB, Stream(0)).unwrap();
            }
            for (i, ptr) in kept.iter().enumerate() {
                let mut byte = [0];
                gpu.read(Stream(0), ptr + 4 * MIB - 1, &mut byte).unwrap();
                assert_eq!(byte[0], i as u8 + 1, "{call:?} after {after}");
            }
            heap.verify().unwrap();
            assert_eq!(gpu.lost(), None);
        }
    }
}

#[test]
fn out_of_memory_names_the_numbers_and_leaves_the_heap_usable() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    let block = heap.allocate(30 * MIB, Stream(0)).unwrap();
    let e = heap.allocate(4 * MIB, Stream(0)).unwrap_err();
    assert_eq!(e.kind(), Kind::Exhausted);
    assert!(e.chain().contains("4.00 MiB") && e.chain().contains("allocator.max_bytes"), "{}", e.chain());
    assert_eq!(heap.stats().ooms, 1);
    heap.free(block.ptr, Stream(0)).unwrap();
    heap.allocate(30 * MIB, Stream(0)).unwrap();
}

#[test]
fn memory_that_another_program_frees_on_request_is_used() {
    let gpu = gpu(0, 64 * MIB);
    let heap = heap(&gpu, Options { handle_bytes: 4 * MIB, ..Options::default() });
    let other = gpu.create(60 * MIB).unwrap();
    let device = Arc::clone(&gpu);
    heap.on_pressure(Box::new(move |_| device.release(other).map_or(0, |()| 60 * MIB)));
    heap.allocate(40 * MIB, Stream(0)).unwrap();
}

#[test]
fn a_pinned_block_is_not_remapped_even_after_its_free() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    let blocks: Vec<u64> = (0..8).map(|_| heap.allocate(4 * MIB, Stream(0)).unwrap().ptr).collect();
    heap.pin(blocks[1]).unwrap();
    for ptr in blocks.iter().skip(1).step_by(2) {
        heap.free(*ptr, Stream(0)).unwrap();
    }
    // 16 MiB are free, but 4 of them must stay where they are.
    assert_eq!(heap.allocate(16 * MIB, Stream(0)).unwrap_err().kind(), Kind::Exhausted);
    heap.allocate(12 * MIB, Stream(0)).unwrap();
    assert!(heap.map().handles.iter().any(|h| h.pinned && h.address == Some(blocks[1])));
}

#[test]
fn a_block_used_by_another_stream_comes_back_after_that_stream() {
    let gpu = gpu(10_000_000, 1 << 30);
    let heap = heap(&gpu, small());
    let side = gpu.create_stream().unwrap();
    let block = heap.allocate(20 * MIB, Stream(0)).unwrap();
    heap.record_stream(block.ptr, side).unwrap();
    gpu.fill(side, block.ptr, block.size, 1).unwrap();
    heap.free(block.ptr, Stream(0)).unwrap();
    assert_eq!(heap.stats().active.current, 20 * MIB);
    assert_eq!(heap.stats().allocated.current, 0);
    // It fits only where the shared block was: the heap waits.
    heap.allocate(20 * MIB, Stream(0)).unwrap();
    assert!(gpu.now_ns() >= 10_000_000);
}

#[test]
fn nothing_is_asked_or_unmapped_while_a_graph_is_captured() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    scattered(&heap, Stream(0));
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    heap.begin_capture();
    let before = heap.stats().background_total().calls;
    assert_eq!(heap.reclaim(u64::MAX).unwrap().unmapped, 0);
    assert_eq!(heap.stats().background_total().calls, before);
    assert_eq!(heap.trim().unwrap_err().kind(), Kind::Misuse);
    heap.end_capture();
    assert!(heap.reclaim(u64::MAX).unwrap().unmapped > 0);
}

#[test]
fn a_repeating_step_needs_no_driver_call_after_the_third() {
    let calls = steps::calls_by_round(8, steps::training).unwrap();
    assert_eq!(calls[3..], [0; 5], "{calls:?}");
}

#[test]
fn sizes_that_repeat_in_any_order_come_to_rest() {
    let sizes = [100 * MIB, 7 * MIB, 3000, 64 * MIB, 250 * MIB, 900_000, 33 * MIB];
    let round = |heap: &Heap| {
        let mut live: Vec<u64> = Vec::new();
        for (i, size) in sizes.iter().cycle().take(60).enumerate() {
            live.push(heap.allocate(*size, Stream(0))?.ptr);
            if i % 3 == 2 {
                heap.free(live.remove(i % live.len()), Stream(0))?;
            }
        }
        live.into_iter().try_for_each(|ptr| heap.free(ptr, Stream(0)))
    };
    let calls = steps::calls_by_round(16, round).unwrap();
    assert_eq!(calls[10..], [0; 6], "{calls:?}");
}

#[test]
fn defragmenting_makes_one_free_range() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    let kept = scattered(&heap, Stream(0));
    let done = heap.defragment().unwrap();
    assert_eq!((done.largest_before, done.largest_after), (4 * MIB, 16 * MIB));
    assert_eq!(heap.stats().fragmentation(), 0.0);
    for ptr in kept {
        heap.free(ptr, Stream(0)).unwrap();
    }
    heap.close().unwrap();
    assert_eq!(gpu.held(), 0);
}

#[test]
fn a_recording_plays_the_same_way_again() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    heap.record(100);
    scattered(&heap, Stream(0));
    let (events, dropped) = heap.take_record();
    let frees = events.iter().filter(|e| matches!(e.what, What::Free { .. })).count();
    assert_eq!((events.len(), frees, dropped), (12, 4, 0));
}

#[test]
fn checking_mode_names_the_pointer_and_its_history() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, Options { checks: true, ..small() });
    let block = heap.allocate(5000, Stream(0)).unwrap();
    heap.free(block.ptr, Stream(0)).unwrap();
    let twice = heap.free(block.ptr, Stream(0)).unwrap_err().chain();
    assert!(twice.contains("again") && twice.contains("allocated 5000 bytes"), "{twice}");
    let foreign = heap.free(0x1234, Stream(0)).unwrap_err().chain();
    assert!(foreign.contains("foreign pointer") && foreign.contains("0x1234"), "{foreign}");

    let block = heap.allocate(5000, Stream(0)).unwrap();
    let wrong = heap.free_sized(block.ptr, 4000, Stream(0)).unwrap_err().chain();
    assert!(wrong.contains("4000") && wrong.contains("5000"), "{wrong}");
    let stream = gpu.create_stream().unwrap();
    assert!(heap.free(block.ptr, stream).unwrap_err().chain().contains("not its own"));

    gpu.fill(Stream(0), block.ptr, block.size + 1, 9).unwrap();
    let over = heap.free(block.ptr, Stream(0)).unwrap_err().chain();
    assert!(over.contains("written past its end") && over.contains("allocated 5000 bytes"), "{over}");
}

#[test]
fn a_lost_device_is_an_error_that_says_so() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    gpu.inject(Fault { call: Call::Map, after: 0, times: 1, kind: Kind::Device });
    assert_eq!(heap.allocate(MIB, Stream(0)).unwrap_err().kind(), Kind::Device);
    assert!(heap.allocate(MIB, Stream(0)).unwrap_err().chain().contains("lost"));
}

#[test]
fn memory_stranded_on_one_stream_serves_another() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    let side = gpu.create_stream().unwrap();
    let block = heap.allocate(28 * MIB, side).unwrap();
    heap.free(block.ptr, side).unwrap();
    heap.allocate(28 * MIB, Stream(0)).unwrap();
    assert!(heap.stats().reserved.peak <= 32 * MIB);
    assert_eq!(heap.stats().ooms, 0);
}

#[test]
fn the_reclaimer_ends_with_its_owner_and_with_the_heap() {
    let gpu = gpu(0, 1 << 30);
    let heap = Arc::new(heap(&gpu, small()));
    let reclaimer = Reclaimer::start(&heap).unwrap();
    scattered(&heap, Stream(0));
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    drop(reclaimer);
    let second = Reclaimer::start(&heap).unwrap();
    drop(heap);
    drop(second);
}

#[test]
fn two_heaps_of_one_budget_hold_no_more_than_it_together() {
    let budget = Budget::new(64 * MIB);
    let (first, second) = (gpu(0, 1 << 30), gpu(0, 1 << 30));
    let options = || Options { budget: Some(budget.clone()), handle_bytes: 4 * MIB, ..Options::default() };
    let (a, b) = (heap(&first, options()), heap(&second, options()));
    let block = a.allocate(48 * MIB, Stream(0)).unwrap();
    assert_eq!(b.allocate(32 * MIB, Stream(0)).unwrap_err().kind(), Kind::Exhausted);
    b.allocate(16 * MIB, Stream(0)).unwrap();
    assert_eq!(budget.held(), 64 * MIB);
    a.free(block.ptr, Stream(0)).unwrap();
    a.trim().unwrap();
    b.allocate(32 * MIB, Stream(0)).unwrap();
    drop((a, b));
    assert_eq!(budget.held(), 0);
}

#[test]
fn an_allocation_that_only_remapping_could_serve_counts_also_where_a_shared_budget_is_the_limit() {
    let budget = Budget::new(32 * MIB);
    let gpu = gpu(0, 1 << 30);
    let options = Options { budget: Some(budget.clone()), handle_bytes: 4 * MIB, ..Options::default() };
    let heap = heap(&gpu, options);
    scattered(&heap, Stream(0));
    assert_eq!((budget.held(), heap.stats().ooms_avoided), (32 * MIB, 0));
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    assert_eq!(heap.stats().ooms_avoided, 1);
}

#[test]
fn blocks_that_stay_lie_together_and_not_in_the_holes_of_those_that_come_and_go() {
    let gpu = gpu(0, 4 << 30);
    let heap = heap(&gpu, Options::default());
    let get = |size| heap.allocate(size, Stream(0)).unwrap().ptr;
    let _weights: Vec<u64> = (0..4).map(|_| get(30 * MIB)).collect();
    // Activations go, the gradients between them are still there: holes of 100 MiB and more.
    let pass: Vec<(u64, u64)> = (0..10).map(|n| (get((100 + n) * MIB), get((20 + n) * MIB))).collect();
    pass.iter().for_each(|(activation, _)| heap.free(*activation, Stream(0)).unwrap());
    let state: Vec<u64> = (0..8).map(|_| get(30 * MIB)).collect();
    let span = state.iter().max().unwrap() + 30 * MIB - state.iter().min().unwrap();
    assert_eq!(span, 8 * 30 * MIB);
}

#[test]
fn a_heap_that_ends_gives_everything_back_allocated_blocks_included() {
    let gpu = gpu(50_000_000, 1 << 30);
    let heap = heap(&gpu, small());
    let kept = scattered(&heap, Stream(0));
    gpu.fill(Stream(0), kept[0], 4 * MIB, 1).unwrap();
    heap.allocate(16 * MIB, Stream(0)).unwrap();
    heap.pin(kept[1]).unwrap();
    drop(heap);
    assert_eq!((gpu.held(), gpu.lost()), (0, None));
}

#[test]
fn frees_make_no_driver_call_also_with_several_streams() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, Options::default());
    let streams = [Stream(0), gpu.create_stream().unwrap()];
    let turn = || {
        for stream in streams {
            for size in [40 * MIB, 3 * MIB, 700] {
                let block = heap.allocate(size, stream).unwrap();
                heap.free(block.ptr, stream).unwrap();
            }
        }
    };
    turn();
    let before = heap.stats().foreground_total().calls;
    (0..100).for_each(|_| turn());
    assert_eq!(heap.stats().foreground_total().calls, before);
}

#[test]
fn what_one_stream_freed_goes_to_another_without_a_wait_once_the_reclaimer_saw_it() {
    let gpu = gpu(5_000_000, 1 << 30);
    let heap = heap(&gpu, small());
    let side = gpu.create_stream().unwrap();
    heap.allocate(700, Stream(0)).unwrap();
    let block = heap.allocate(24 * MIB, side).unwrap();
    heap.free(block.ptr, side).unwrap();
    heap.reclaim(u64::MAX).unwrap();
    gpu.advance(6_000_000);
    heap.allocate(24 * MIB, Stream(0)).unwrap();
    assert_eq!(heap.stats().waits, 0);
}

#[test]
fn each_pool_is_told_apart() {
    let gpu = gpu(0, 1 << 30);
    let heap = heap(&gpu, small());
    let blocks: Vec<u64> = [100, 700_000, 5 * MIB].map(|s| heap.allocate(s, Stream(0)).unwrap().ptr).into();
    let [small, large] = heap.stats().pools;
    assert_eq!((small.blocks, small.requested, small.allocated), (2, 700_100, 512 + 700_416));
    assert_eq!((large.blocks, large.allocated, large.reserved), (1, 5 * MIB, 6 * MIB));
    heap.free(blocks[0], Stream(0)).unwrap();
    assert_eq!(heap.stats().pools[0].active, 700_416);
    assert_eq!(heap.stats().pools[0].reserved + large.reserved, heap.stats().reserved.current);
}

#[test]
fn a_request_that_the_device_cannot_serve_takes_nothing_from_it() {
    let gpu = gpu(0, 8 << 30);
    let heap = heap(&gpu, Options::default());
    let kept = heap.allocate(MIB, Stream(0)).unwrap();
    let before = gpu.held();
    let e = heap.allocate(9 << 30, Stream(0)).unwrap_err();
    assert_eq!(e.kind(), Kind::Exhausted);
    assert_eq!(gpu.held(), before, "other processes can still have what they could have before");
    heap.allocate(6 << 30, Stream(0)).unwrap();
    heap.free(kept.ptr, Stream(0)).unwrap();
    heap.verify().unwrap();
}
