//! Readings of a small busy host, to record, play and serve.

use glake::{
    clock::Stamp,
    events::{
        recording::{Header, Writer},
        sample::{
            BlockDevice, BlockOperation, Histogram, Operation, Owner, OwnerDeviceIo, OwnerIo, Probe,
            ProbeState, Sample,
        },
    },
    host::inventory::Inventory,
    telemetry::state::State,
};

/// The reading at a second: every counter rises by the same in each.
pub fn sample(second: u64) -> Sample {
    let mut slots = vec![0; glake_common::hist::SLOTS];
    slots[glake_common::hist::slot(90_000)] = 1000 * second;
    let read = BlockOperation {
        operation: Operation::Read,
        completed: 1000 * second,
        bytes: 4_096_000 * second,
        errors: 0,
        queue: None,
        device: Some(Histogram { slots, sum_ns: 90_000_000 * second }),
    };
    let io = OwnerDeviceIo {
        device: "vdz".into(),
        operation: Operation::Read,
        completed: 1000 * second,
        bytes: 4_096_000 * second,
        wait_ns: 90_000_000 * second,
    };
    let owner = Owner::Task { tgid: 7, comm: "trainer".into(), cgroup: 3 };
    Sample {
        at: Stamp {
            monotonic_ns: (1_000_000 + second) * 1_000_000_000,
            realtime_ns: 1_796_000_000_000_000_000 + second * 1_000_000_000,
        },
        probes: vec![Probe {
            name: "block_complete".into(),
            family: "block".into(),
            how: "block:block_rq_complete".into(),
            required: true,
            state: ProbeState::On,
            ..Default::default()
        }],
        block: Some(vec![BlockDevice {
            device: "vdz".into(),
            in_flight: Some(3),
            operations: vec![read],
            ..Default::default()
        }]),
        owners: Some(vec![OwnerIo {
            owner,
            cgroup_path: Some("/system.slice/backup.service".into()),
            io: vec![io],
        }]),
        ..Default::default()
    }
}

/// The host of these readings.
pub fn host() -> Inventory {
    Inventory {
        hostname: "node-of-the-test".into(),
        kernel: "6.12.48".into(),
        arch: "x86_64".into(),
        ..Default::default()
    }
}

/// The state of the interval that ends at a second.
pub fn state(second: u64) -> State {
    State::between(&sample(second - 1), &sample(second), &host())
}

/// A recording of `seconds`.
pub fn recording(seconds: std::ops::Range<u64>) -> anyhow::Result<Vec<u8>> {
    let header =
        Header { host: serde_json::to_value(host())?, interval_ns: 1_000_000_000, ..Default::default() };
    let mut writer = Writer::new(Vec::new(), &header)?;
    for second in seconds {
        writer.sample(&sample(second))?;
    }
    Ok(writer.finish()?)
}
