use super::*;
use proptest::prelude::*;

fn fault(gpu: u16, batch: u32, address: u64) -> Entry {
    Entry::GpuFault {
        gpu: Processor(gpu),
        fault_type: 2,
        access: Access::Write,
        address,
        at: 0,
        gpu_at: 0,
        batch,
        replayable: true,
        unit: 0,
        client: 0,
    }
}

fn migration(source: u16, target: u16, cause: Cause, bytes: u64) -> Entry {
    Entry::Migration {
        cause,
        source: Processor(source),
        target: Processor(target),
        source_node: None,
        target_node: None,
        address: 0,
        bytes,
        begin: 0,
        end: 0,
        gpu_begin: 0,
        gpu_end: 0,
    }
}

fn replay(gpu: u16, batch: u32) -> Entry {
    Entry::Replay { gpu: Processor(gpu), batch, at: 0, gpu_at: 0 }
}

#[test]
fn batches_are_counted_per_gpu_though_their_faults_interleave() {
    let mut t = Tally::default();
    for i in 0..8 {
        t.add(&fault(1, i / 4, 0));
        t.add(&fault(2, i / 2, 0));
    }
    assert_eq!(t.gpu_total(), 16);
    assert_eq!(t.gpus[&Processor(1)].batches, 2);
    assert_eq!(t.gpus[&Processor(2)].batches, 4);
    assert_eq!(t.gpus[&Processor(1)].batch_sizes, [0, 0, 1], "one finished batch of 4");
    assert_eq!(t.gpus[&Processor(2)].batch_sizes, [0, 3]);
}

#[test]
fn replays_stand_for_batches_only_where_faults_are_not_watched() {
    let mut t = Tally::default();
    t.add(&replay(1, 7));
    t.add(&replay(1, 7));
    t.add(&replay(1, 8));
    assert_eq!((t.replays(), t.batches()), (3, 2));
    let mut t = Tally::default();
    t.add(&fault(1, 7, 0));
    t.add(&replay(1, 7));
    t.add(&fault(1, 8, 0));
    t.add(&replay(1, 8));
    assert_eq!((t.replays(), t.batches()), (2, 2));
}

#[test]
fn bytes_are_told_apart_by_cause_and_direction() {
    let mut t = Tally::default();
    t.add(&migration(0, 1, Cause::OnDemand, 100));
    t.add(&migration(0, 1, Cause::Prefetch, 1000));
    t.add(&migration(1, 0, Cause::Prefetch, 500));
    t.add(&migration(1, 2, Cause::User, 7));
    t.add(&migration(0, 0, Cause::User, 3));
    let cause = t.by_cause();
    assert_eq!(cause[&Cause::Prefetch], Moved { count: 2, bytes: 1500 });
    let direction = t.by_direction();
    assert_eq!(direction[&Direction::ToGpu].bytes, 1100);
    assert_eq!(direction[&Direction::ToCpu].bytes, 500);
    assert_eq!(direction[&Direction::Peer].bytes, 7);
    assert_eq!(direction[&Direction::Host].bytes, 3);
    assert_eq!(t.moved_total(), Moved { count: 5, bytes: 1610 });
}

#[test]
fn one_interval_is_the_difference_of_two_tallies() {
    let mut t = Tally::default();
    t.add(&fault(1, 1, 0));
    let before = t.clone();
    t.add(&fault(1, 2, 0));
    t.add(&migration(0, 1, Cause::OnDemand, 4096));
    let want = Line {
        gpu_faults: 1,
        batches: 1,
        migrations: 1,
        to_gpu_bytes: 4096,
        on_demand_bytes: 4096,
        ..Line::default()
    };
    assert_eq!(t.since(&before), want);
    assert_eq!(t.since(&t), Line::default());
}

#[test]
fn throttled_time_is_from_each_start_to_its_own_end() {
    let mut t = Tally::default();
    let p = Processor(1);
    t.add(&Entry::ThrottlingStart { processor: p, address: 1, at: 100 });
    t.add(&Entry::ThrottlingStart { processor: p, address: 2, at: 150 });
    t.add(&Entry::ThrottlingEnd { processor: p, address: 1, at: 300 });
    t.add(&Entry::ThrottlingEnd { processor: p, address: 9, at: 999 });
    assert_eq!(t.throttled, (2, 200), "an end without a start tells no time");
}

#[test]
fn heat_shows_the_touched_stretches_and_their_gaps() {
    let mut h = Heat::default();
    let base = 0x7f12_4000_0000u64;
    for block in 0..64u64 {
        for _ in 0..=block {
            h.add(base + (block << 21));
        }
    }
    h.add(0x1000);
    let spans = h.spans(2, 64);
    assert_eq!(spans.len(), 2);
    assert_eq!(spans[0].start, 0);
    assert_eq!(spans[1].start, base);
    assert_eq!(spans[1].cell, 2 << 20);
    assert_eq!(spans[1].faults.len(), 64);
    assert_eq!(spans[1].faults[63], 64);
    let narrow = h.spans(1, 16);
    assert_eq!((narrow[0].cell, narrow[0].faults.len()), (8 << 20, 16));
}

proptest! {
    #[test]
    fn heat_keeps_every_fault_and_stays_small(addresses in proptest::collection::vec(any::<u64>(), 0..6000)) {
        let mut h = Heat::default();
        for a in &addresses {
            h.add(*a);
        }
        prop_assert!(h.cells.len() <= CELLS);
        prop_assert_eq!(h.cells.values().sum::<u64>(), addresses.len() as u64);
        let shown: u64 = h.spans(usize::MAX, 32).iter().flat_map(|s| s.faults.iter()).sum();
        prop_assert_eq!(shown, addresses.len() as u64);
        for s in h.spans(3, 32) {
            prop_assert!(s.faults.len() <= 32);
        }
    }
}
