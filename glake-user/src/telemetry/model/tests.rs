use crate::{
    clock::Stamp,
    events::sample::*,
    host::{
        inventory::{Container, Inventory},
        workload::WorkloadKind,
    },
    telemetry::state::{Attribution, State, Status, Watched},
};

fn at(seconds: u64) -> Stamp {
    Stamp { monotonic_ns: seconds * 1_000_000_000, realtime_ns: seconds * 1_000_000_000 }
}

fn histogram(values_ns: &[u64]) -> Histogram {
    let mut h = Histogram { slots: vec![0; glake_common::hist::SLOTS], sum_ns: values_ns.iter().sum() };
    values_ns.iter().for_each(|ns| h.slots[glake_common::hist::slot(*ns)] += 1);
    h
}

fn disk(name: &str, completed: u64, bytes: u64, times: &[u64]) -> BlockDevice {
    let operation = BlockOperation {
        operation: Operation::Read,
        completed,
        bytes,
        errors: 0,
        queue: None,
        device: Some(histogram(times)),
    };
    BlockDevice {
        device: name.into(),
        in_flight: Some(3),
        operations: vec![operation],
        ..BlockDevice::default()
    }
}

fn owner(owner: Owner, path: Option<&str>, operation: Operation, bytes: u64) -> OwnerIo {
    let io =
        OwnerDeviceIo { device: "vda".into(), operation, completed: bytes / 4096, bytes, wait_ns: bytes };
    OwnerIo { owner, cgroup_path: path.map(str::to_owned), io: vec![io] }
}

fn task(tgid: u32, comm: &str) -> Owner {
    Owner::Task { tgid, comm: comm.into(), cgroup: 1 }
}

#[test]
fn a_rate_is_the_growth_over_the_time_between_two_readings() {
    let older =
        Sample { at: at(10), block: Some(vec![disk("vda", 100, 4096, &[90_000])]), ..Sample::default() };
    let newer = Sample {
        at: at(12),
        block: Some(vec![disk("vda", 300, 12_288, &[90_000, 90_000, 31_000_000])]),
        ..older.clone()
    };
    let state = State::between(&older, &newer, &Inventory::default());
    let disk = &state.block.as_ref().unwrap()[0];
    let read = &disk.operations[0];
    assert_eq!((read.completed.total, read.completed.per_second), (300, Some(100.0)));
    assert_eq!(read.bytes.per_second, Some(4096.0));
    let latency = read.device.as_ref().unwrap();
    assert_eq!((latency.count, latency.p50_ns, latency.p99_ns), (2, Some(96_000), Some(32_768_000)));
    assert_eq!(disk.in_flight, Some(3), "a level is not subtracted");
    assert_eq!(state.interval_ns, Some(2_000_000_000));
}

#[test]
fn the_first_reading_has_totals_and_no_rates() {
    let newer = Sample { at: at(12), block: Some(vec![disk("vda", 300, 12_288, &[])]), ..Sample::default() };
    let state = State::between(&Sample::default(), &newer, &Inventory::default());
    let read = &state.block.as_ref().unwrap()[0].operations[0];
    assert_eq!((read.completed.total, read.completed.per_second), (300, None));
    assert_eq!(state.interval_ns, None);
}

#[test]
fn a_section_that_was_unknown_before_has_no_rate_yet() {
    let older = Sample { at: at(10), ..Sample::default() };
    let newer = Sample { at: at(12), io_uring_punted: Some(500), ..Sample::default() };
    let state = State::between(&older, &newer, &Inventory::default());
    let punted = state.io_uring_punted.unwrap();
    assert_eq!((punted.total, punted.per_second), (500, None), "the 500 may be older than the interval");
    assert_eq!(state.block, None, "what no probe watches is unknown, not zero");
}

#[test]
fn a_counter_that_fell_makes_the_rate_unknown_and_says_so() {
    let older = Sample { at: at(10), block: Some(vec![disk("vda", 900, 9000, &[])]), ..Sample::default() };
    let newer = Sample { at: at(12), block: Some(vec![disk("vda", 5, 50, &[])]), ..older.clone() };
    let state = State::between(&older, &newer, &Inventory::default());
    assert_eq!(state.block.as_ref().unwrap()[0].operations[0].bytes.per_second, None);
    assert_eq!(state.restarted, ["block vda"]);
}

#[test]
fn time_that_does_not_move_gives_no_rate() {
    let older = Sample { at: at(10), block: Some(vec![disk("vda", 1, 1, &[])]), ..Sample::default() };
    let state = State::between(&older, &older, &Inventory::default());
    assert_eq!(state.interval_ns, None);
    assert_eq!(state.block.unwrap()[0].operations[0].bytes.per_second, None);
}

#[test]
fn a_value_beyond_the_scale_is_counted_and_not_guessed() {
    let older = Sample { at: at(1), block: Some(vec![disk("vda", 0, 0, &[])]), ..Sample::default() };
    let newer =
        Sample { at: at(2), block: Some(vec![disk("vda", 1, 1, &[60_000_000_000])]), ..Sample::default() };
    let state = State::between(&older, &newer, &Inventory::default());
    let latency = state.block.unwrap()[0].operations[0].device.clone().unwrap();
    assert_eq!((latency.above_scale, latency.p99_ns), (1, Some(16_777_216_000)));
}

#[test]
fn owners_gather_into_pods_units_and_commands_and_the_kernel_is_never_one_of_them() {
    let id = "a".repeat(64);
    let pod = format!("/kubepods.slice/kubepods-podx.slice/cri-containerd-{id}.scope");
    let owners = |scale: u64| {
        vec![
            owner(task(1, "python"), Some(&pod), Operation::Read, 8192 * scale),
            owner(Owner::Writeback { cgroup: 7 }, Some(&pod), Operation::Write, 4096 * scale),
            owner(task(2, "fio"), Some("/"), Operation::Read, 4096 * scale),
            owner(Owner::Writeback { cgroup: 0 }, None, Operation::Write, 4096 * scale),
            owner(Owner::Shared, None, Operation::Write, 4096 * scale),
        ]
    };
    let container = Container { namespace: "train".into(), pod: "llama-0".into(), container: "main".into() };
    let host = Inventory { containers: [(id, container)].into(), ..Inventory::default() };
    let older = Sample { at: at(1), owners: Some(owners(1)), ..Sample::default() };
    let newer = Sample { at: at(2), owners: Some(owners(3)), ..Sample::default() };
    let state = State::between(&older, &newer, &host);
    let workloads = state.workloads.unwrap();
    let names: Vec<_> = workloads.iter().map(|w| w.name.as_str()).collect();
    assert_eq!(names, ["train/llama-0", "fio", "shared", "unknown (writeback)"]);
    assert_eq!(workloads[0].workload.kind, WorkloadKind::Pod);
    assert_eq!(workloads[0].attribution, Attribution::Mixed);
    assert_eq!((workloads[0].read.per_second, workloads[0].write.per_second), (Some(16_384.0), Some(8192.0)));
    assert_eq!(workloads[0].pids, [1], "a write-back has no process");
    assert!(state.host.containers.is_empty(), "the names of all containers are no part of the answer");
}

#[test]
fn health_names_every_blind_required_probe_and_every_miss() {
    let probe = |name: &str, required, state| Probe {
        name: name.into(),
        family: "block".into(),
        how: "block:block_rq_complete".into(),
        required,
        state,
        reason: (state != ProbeState::On).then(|| "EPERM".into()),
        remedy: (state != ProbeState::On).then(|| "run as root".into()),
        ..Probe::default()
    };
    let dropped = |count| vec![Dropped { source: "ring".into(), reason: "ring_full".into(), count }];
    let older = Sample { at: at(1), dropped: dropped(5), ..Sample::default() };
    let mut newer = Sample { at: at(2), dropped: dropped(5), ..Sample::default() };
    newer.probes =
        vec![probe("block_issue", true, ProbeState::On), probe("block_merge", false, ProbeState::Failed)];
    let state = State::between(&older, &newer, &Inventory::default());
    assert_eq!(
        state.health.status,
        Status::Ok,
        "old drops and an optional probe are no alarm: {:?}",
        state.health
    );
    assert_eq!(state.coverage[0].state, Watched::Partly);
    assert_eq!(state.coverage[0].missing, ["block_merge could not be attached: EPERM -> run as root"]);

    newer.probes[0] = probe("block_issue", true, ProbeState::Detached);
    newer.dropped = dropped(7);
    let state = State::between(&older, &newer, &Inventory::default());
    assert_eq!(
        state.health.reasons,
        [
            "required probe block_issue was taken off: EPERM -> run as root",
            "2 events of ring were missed: ring_full"
        ]
    );
}

#[test]
fn duplicates_are_told_beside_the_faults_that_they_are_part_of() {
    let sample = |seconds, n: u64| Sample {
        at: at(seconds),
        uvm: Some(Uvm {
            spaces: vec![UvmSpace {
                processor: 1,
                gpu_faults: UvmAccess { read: 10 * n, ..UvmAccess::default() },
                duplicates: 3 * n,
                ..UvmSpace::default()
            }],
            ..Uvm::default()
        }),
        ..Sample::default()
    };
    let state = State::between(&sample(1, 1), &sample(3, 2), &Inventory::default());
    let gpu = &state.uvm.expect("watched").gpus[0];
    assert_eq!((gpu.faults.total, gpu.duplicates.total), (20, 6));
    assert_eq!((gpu.faults.per_second, gpu.duplicates.per_second), (Some(5.0), Some(1.5)));
}

#[test]
fn a_trifle_of_unmatched_ends_among_many_is_no_alarm_and_lost_events_always_are() {
    let reasons = |completed: u64, reason: &str, count: u64| {
        let sample = |seconds, completed, count| Sample {
            at: at(seconds),
            block: Some(vec![disk("nvme0n1", completed, 0, &[])]),
            dropped: vec![Dropped { source: "block".into(), reason: reason.into(), count }],
            ..Sample::default()
        };
        let (older, newer) = (sample(1, 0, 0), sample(2, completed, count));
        State::between(&older, &newer, &Inventory::default()).health.reasons
    };
    assert!(reasons(3000, "unmatched", 3).is_empty());
    assert_eq!(reasons(2999, "unmatched", 3), ["3 events of block were missed, beside 2999 seen: unmatched"]);
    assert_eq!(reasons(0, "recursion", 1), ["1 events of block were missed, beside 0 seen: recursion"]);
    assert_eq!(reasons(1_000_000, "map_full", 1), ["1 events of block were missed: map_full"]);
}

#[test]
fn nvme_commands_are_added_up_by_operation_and_by_queue() {
    let commands = |queue, opcode, completed, bytes| NvmeCommands {
        queue,
        opcode,
        completed,
        bytes,
        latency: histogram(&vec![90_000; completed as usize]),
    };
    let controller = |n: u64| NvmeController {
        controller: "nvme0".into(),
        commands: vec![
            commands(0, 0x06, n, None),
            commands(1, 0x02, 3 * n, Some(3 * n * 4096)),
            commands(2, 0x02, n, Some(n * 4096)),
            commands(2, 0x00, n, None),
        ],
        queues: Some(vec![NvmeQueue { queue: 1, completed: 3 * n, max_fill: 31, depth: Some(32) }]),
        timeouts: Some(0),
        ..NvmeController::default()
    };
    let older = Sample { at: at(1), nvme: Some(vec![controller(1)]), ..Sample::default() };
    let newer = Sample { at: at(2), nvme: Some(vec![controller(11)]), ..Sample::default() };
    let state = State::between(&older, &newer, &Inventory::default());
    let nvme = &state.nvme.unwrap()[0];
    let rates: Vec<_> =
        nvme.operations.iter().map(|o| (o.operation.as_str(), o.completed.per_second)).collect();
    assert_eq!(rates, [("read", Some(40.0)), ("flush", Some(10.0)), ("admin", Some(10.0))]);
    assert_eq!(nvme.operations[0].bytes.unwrap().total, 44 * 4096);
    assert_eq!(nvme.operations[1].bytes, None, "a flush has no bytes");
    assert_eq!(nvme.queues.len(), 3);
    assert_eq!(nvme.queues[2].opcodes[0].name, "read");
    assert_eq!(nvme.fill_ratio, Some(1.0), "31 commands fill a queue of 32 entries");
    assert_eq!(nvme.busiest_queue_ratio, Some(0.6), "30 of 50 I/O commands; admin commands do not count");
    assert_eq!((nvme.retries, nvme.timeouts.unwrap().total), (None, 0));
}

#[test]
fn a_state_survives_json() {
    let older = Sample { at: at(1), ..Sample::default() };
    let newer = Sample { at: at(2), block: Some(vec![disk("vda", 1, 1, &[1000])]), ..Sample::default() };
    let state = State::between(&older, &newer, &Inventory::default());
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
}
