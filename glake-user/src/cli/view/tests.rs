use super::*;
use crate::clock::Stamp;
use crate::events::sample::{
    BlockDevice, BlockOperation, Dropped, Owner, OwnerDeviceIo, OwnerIo, Probe, ProbeState, Sample, XidCount,
};
use crate::host::inventory::Inventory;
use glake_common::hist::{SLOTS, slot};

/// A histogram of `n` requests that took `us` each, and one that took `worst_us`.
fn histogram(n: u64, us: u64, worst_us: u64) -> Histogram {
    let mut slots = vec![0; SLOTS];
    slots[slot(us * 1000)] += n;
    slots[slot(worst_us * 1000)] += 1;
    Histogram { slots, sum_ns: 0 }
}

fn operation(operation: Operation, n: u64, us: u64) -> BlockOperation {
    BlockOperation {
        operation,
        completed: n,
        bytes: n * 4096,
        errors: 0,
        queue: None,
        device: Some(histogram(n, us, us * 50)),
    }
}

/// A reading at a second, with counters that rise by the same amount in every second.
pub(crate) fn sample(second: u64) -> Sample {
    let probe = |name: &str, state, reason: Option<&str>| Probe {
        name: name.into(),
        family: "block".into(),
        how: "block:block_rq_complete".into(),
        required: true,
        state,
        reason: reason.map(str::to_owned),
        ..Default::default()
    };
    let block = vec![
        BlockDevice {
            device: "vda".into(),
            in_flight: Some(3),
            operations: vec![
                operation(Operation::Read, 1000 * second, 90),
                operation(Operation::Write, 20 * second, 900),
            ],
            ..Default::default()
        },
        BlockDevice { device: "loop0".into(), ..Default::default() },
    ];
    let owner = Owner::Task { tgid: 7, comm: "fio".into(), cgroup: 3 };
    let io = OwnerDeviceIo {
        device: "vda".into(),
        operation: Operation::Read,
        completed: 1000 * second,
        bytes: 4_096_000 * second,
        wait_ns: 90_000_000 * second,
    };
    Sample {
        at: Stamp {
            monotonic_ns: (273_600 + second) * 1_000_000_000,
            realtime_ns: 1_796_000_000_000_000_000 + second * 1_000_000_000,
        },
        probes: vec![
            probe("block_complete", ProbeState::On, None),
            Probe { required: false, ..probe("uvm_evict", ProbeState::Off, Some("symbol not found")) },
        ],
        block: Some(block),
        owners: Some(vec![OwnerIo {
            owner,
            cgroup_path: Some("/system.slice/backup.service".into()),
            io: vec![io],
        }]),
        io_uring_punted: Some(5 * second),
        xid: Some(vec![]),
        dropped: vec![Dropped { source: "block".into(), reason: "ring_full".into(), count: 0 }],
        ..Default::default()
    }
}

/// The state of second `n`.
pub(crate) fn state(n: u64) -> State {
    let host = Inventory {
        hostname: "gpu-node-17".into(),
        kernel: "6.12.48".into(),
        arch: "x86_64".into(),
        ..Default::default()
    };
    let older = if n == 0 { Sample::default() } else { sample(n) };
    State::between(&older, &sample(n + 1), &host)
}

#[test]
fn a_busy_device_is_one_line_under_a_heading() {
    let mut lines = Lines::default();
    assert_eq!(
        lines.of(&state(1)),
        [
            "TIME      DEVICE        REQUESTS       READ      WRITE      p50      p99  DEPTH  ERRORS",
            "00:53:22Z vda             1020/s  4.10 MB/s  81.9 kB/s  96.0 us  1.02 ms      3       0",
        ]
    );
    assert_eq!(lines.of(&state(2)).len(), 1, "the heading is not repeated on the same screen");
}

#[test]
fn the_first_reading_has_no_rates_and_says_so() {
    assert_eq!(
        Lines::default().of(&state(0)),
        ["00:53:21Z watching vda; the first rates come after an interval"]
    );
}

#[test]
fn an_idle_host_says_that_it_is_idle() {
    let mut newer = sample(1);
    newer.at.monotonic_ns += 1_000_000_000;
    let idle = State::between(&sample(1), &newer, &Inventory::default());
    let mut lines = Lines::default();
    assert_eq!(lines.of(&idle), ["00:53:21Z no I/O on vda"]);
    assert_eq!(lines.of(&idle), [""; 0], "said once");
    assert_eq!(lines.of(&state(3)).len(), 2);
    assert_eq!(lines.of(&idle).len(), 1, "and again after it was busy");
}

#[test]
fn a_host_on_which_nothing_was_ever_used_is_idle_in_plain_words() {
    let (mut older, mut newer) = (sample(1), sample(2));
    (older.block, newer.block) = (Some(vec![]), Some(vec![]));
    let mut lines = Lines::default();
    let first = State::between(&Sample::default(), &older, &Inventory::default());
    assert_eq!(lines.of(&first), ["00:53:21Z watching block I/O; the first rates come after an interval"]);
    let idle = State::between(&older, &newer, &Inventory::default());
    assert_eq!(lines.of(&idle), ["00:53:22Z no I/O on any device since the start"]);
}

#[test]
fn a_blind_host_says_why() {
    let mut newer = sample(2);
    (newer.block, newer.nvme) = (None, None);
    newer.probes[0].state = ProbeState::Failed;
    newer.probes[0].reason = Some("EPERM".into());
    newer.probes[0].remedy = Some("run it with sudo".into());
    let blind = State::between(&sample(1), &newer, &Inventory::default());
    let line = &Lines::default().of(&blind)[0];
    assert!(line.contains("nothing is watched") && line.ends_with("EPERM -> run it with sudo"), "{line}");
}

#[test]
fn what_is_watched_no_more_is_said_once() {
    let mut state = state(1);
    state.health.reasons = vec![
        "3 events of block were missed: unmatched".into(),
        "required probe block_complete detached: too costly".into(),
    ];
    let mut lines = Lines::default();
    let said = "00:53:22Z not all is watched: required probe block_complete detached: too costly";
    assert_eq!(lines.of(&state).last().map(String::as_str), Some(said));
    assert!(!lines.of(&state).iter().any(|line| line == said));
}

#[test]
fn nvme_queues_have_lines_while_they_are_few_and_the_iommu_while_it_is_busy() {
    use crate::telemetry::state::{Iommu, NvmeQueue};
    let count = |total, rate| Count { total, per_second: Some(rate) };
    let mut state = state(1);
    let mut latency = state.block.as_ref().unwrap()[0].operations[0].device.clone().unwrap();
    latency.slots.resize(SLOTS, 0);
    let queue = |queue| NvmeQueue {
        queue,
        completed: count(400, 200.0),
        latency: latency.clone(),
        opcodes: vec![],
        max_fill: None,
        depth: None,
    };
    let nvme = |queues: std::ops::Range<u16>| Nvme {
        controller: "nvme0".into(),
        pci: None,
        in_flight: None,
        operations: vec![],
        queues: queues.map(queue).collect(),
        errors: count(0, 0.0),
        errors_by_status: vec![],
        retries: None,
        timeouts: None,
        resets: None,
        async_events: None,
        fill_ratio: None,
        busiest_queue_ratio: None,
    };
    state.nvme = Some(vec![nvme(0..3)]);
    state.iommu = Some(Iommu {
        maps: count(10, 5.0),
        mapped_bytes: count(40_960, 20_480.0),
        unmaps: count(10, 4.0),
        unmapped_bytes: count(40_960, 16_384.0),
        map_sizes: vec![],
    });
    let lines = Lines::default().of(&state);
    let queues = |lines: &[String]| lines.iter().filter(|l| l.contains("nvme0 q")).count();
    assert_eq!(queues(&lines), 2, "the admin queue is none of them: {lines:?}");
    assert!(
        lines.contains(&"00:53:22Z IOMMU maps 5.0/s (20.5 kB/s), unmaps 4.0/s (16.4 kB/s)".into()),
        "{lines:?}"
    );
    state.nvme = Some(vec![nvme(0..130)]);
    assert_eq!(queues(&Lines::default().of(&state)), 0);
}

#[test]
fn an_xid_and_a_drop_are_told_at_once() {
    let (older, mut newer) = (sample(1), sample(2));
    newer.xid = Some(vec![XidCount {
        pci: "0000:3b:00.0".into(),
        code: 79,
        source: "tracepoint".into(),
        count: 1,
        ..Default::default()
    }]);
    newer.dropped[0].count = 4;
    let news = news(&State::between(&older, &newer, &Inventory::default()));
    assert_eq!(
        news,
        [
            "00:53:22Z Xid 79 on 0000:3b:00.0 (1 since the start)",
            "00:53:22Z events of block were dropped: ring_full (4 since the start)",
        ]
    );
}

#[test]
fn unknown_is_a_dash_and_never_zero() {
    assert_eq!(rate_text(None), "-");
    assert_eq!(number_text(None), "-");
    assert_eq!(quantile_text(&Histogram::default(), 0.5), "-");
    assert_eq!(per_second_text(Some(210_000.0)), "210k/s");
    assert_eq!(per_second_text(Some(0.5)), "0.5/s");
    let mut beyond = vec![0; SLOTS];
    beyond[SLOTS - 1] = 1;
    assert_eq!(quantile_text(&Histogram { slots: beyond, sum_ns: 0 }, 0.5), ">16.8 s");
}
