//! Series of GLake's allocator: by workload and GPU, at 0 from the start, nothing counted twice.

use super::{
    accept::Format,
    tests::Book,
    text::render,
    tree::{Itself, tree},
};
use crate::{
    clock::Stamp,
    events::{
        heaps::{Copies, HeapFile, HeapGpu, HeapProcess, Heaps, Route},
        sample::{Histogram, Sample},
    },
    host::inventory::{Gpu, Inventory},
};

const SECOND: u64 = 1_000_000_000;
const GPU: &str = r#"UUID="GPU-5c1e",pci_bus_id="00000000:3B:00.0""#;
const TRAIN: &str = r#"workload_kind="systemd",workload="train.service""#;

/// A process that holds 90 of 100 bytes and has done everything `n` times.
fn process(pid: u32, n: u64) -> HeapProcess {
    let heap = HeapGpu {
        pci: Some("0000:3b:00.0".into()),
        allocated_bytes: 90,
        reserved_bytes: 100,
        remapped_bytes: 7 * n,
        driver_calls: [("create".into(), n), ("query".into(), 2 * n), ("wait".into(), n)].into(),
        ooms: n,
        ooms_avoided: 3 * n,
        ..HeapGpu::default()
    };
    HeapProcess {
        pid,
        comm: "python3".into(),
        cgroup_path: Some("/system.slice/train.service".into()),
        silent: false,
        said: HeapFile {
            schema: 1,
            pid,
            start_ticks: 5,
            fallbacks: 5 * n,
            gpus: vec![heap],
            ..HeapFile::default()
        },
    }
}

pub(super) fn heaps(n: u64) -> Heaps {
    Heaps { processes: vec![process(41, n)], ..Heaps::default() }
}

fn body(readings: Vec<Option<Heaps>>) -> String {
    let gpu = Gpu { uuid: Some("GPU-5c1e".into()), pci: "0000:3b:00.0".into(), ..Gpu::default() };
    let host = Inventory { gpus: vec![gpu], ..Inventory::default() };
    let mut ledger = Book::default();
    for (i, heaps) in readings.into_iter().enumerate() {
        let ns = SECOND * (1 + 61 * i as u64);
        let at = Stamp { monotonic_ns: ns, realtime_ns: ns };
        ledger.advance(&Sample { at, heaps, ..Sample::default() }, &host);
    }
    render(&tree(&ledger, &Itself::default()), Format::Classic)
}

fn value(body: &str, series: &str) -> Option<f64> {
    let line = body.lines().find(|l| l.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn what_is_held_is_told_by_workload_and_gpu_from_the_first_reading_on() {
    let text = body(vec![Some(heaps(100))]);
    let of = |family: &str| value(&text, &format!("glake_allocator_{family}{{{TRAIN},{GPU}}}"));
    assert_eq!((of("allocated_bytes"), of("reserved_bytes")), (Some(90.0), Some(100.0)), "{text}");
    let fallbacks = format!("glake_allocator_fallbacks_total{{{TRAIN}}}");
    assert_eq!(value(&text, &fallbacks), Some(0.0), "an alert on increase() needs the 0");
}

#[test]
fn only_what_happened_since_it_is_watched_is_counted() {
    let two = Heaps { processes: vec![process(41, 103), process(42, 4)], ..Heaps::default() };
    let text = body(vec![Some(heaps(100)), Some(heaps(101)), Some(two)]);
    let of = |series: &str| value(&text, &format!("glake_allocator_{series}"));
    assert_eq!(of(&format!("remapped_bytes_total{{{TRAIN},{GPU}}}")), Some(49.0), "{text}");
    assert_eq!(of(&format!("oom_total{{{TRAIN},{GPU},outcome=\"avoided\"}}")), Some(21.0));
    assert_eq!(of(&format!("driver_calls_total{{{TRAIN},{GPU},call=\"create\"}}")), Some(7.0));
    assert_eq!(of(&format!("driver_calls_total{{{TRAIN},{GPU},call=\"other\"}}")), Some(21.0));
    assert_eq!(of(&format!("fallbacks_total{{{TRAIN}}}")), Some(35.0));
    assert_eq!(of(&format!("reserved_bytes{{{TRAIN},{GPU}}}")), Some(200.0), "two processes");
}

#[test]
fn a_process_that_is_gone_or_silent_holds_nothing_and_no_counter_falls() {
    let mut silent = heaps(101);
    silent.processes[0].silent = true;
    for last in [Some(Heaps::default()), Some(silent)] {
        let text = body(vec![Some(heaps(100)), Some(heaps(101)), last]);
        assert_eq!(value(&text, &format!("glake_allocator_reserved_bytes{{{TRAIN},{GPU}}}")), None, "{text}");
        let fallbacks = value(&text, &format!("glake_allocator_fallbacks_total{{{TRAIN}}}"));
        assert_eq!(fallbacks, Some(5.0));
    }
}

#[test]
fn not_looked_for_is_no_series() {
    assert!(!body(vec![None]).contains("glake_allocator_reserved_bytes{"));
}

/// `n` copies of 10 bytes to the GPU, each of 20 us.
fn copied(n: u64) -> Heaps {
    let slot = glake_common::hist::slot(20_000);
    let mut slots = vec![0; slot + 1];
    slots[slot] = n;
    let copies = Copies {
        pci: Some("0000:3b:00.0".into()),
        bytes: 10 * n,
        route: Route::Disk,
        duration: Histogram { slots, sum_ns: 20_000 * n },
        ..Copies::default()
    };
    Heaps { copies: vec![copies], ..Heaps::default() }
}

#[test]
fn copies_are_counted_by_gpu_direction_and_way_and_timed_by_way() {
    let text = body(vec![Some(Heaps::default()), Some(copied(2)), Some(copied(5))]);
    let bytes = format!("glake_copy_bytes_total{{{GPU},direction=\"to_gpu\",route=\"disk\"}}");
    assert_eq!(value(&text, &bytes), Some(50.0), "{text}");
    assert_eq!(value(&text, "glake_copy_duration_seconds_count{route=\"disk\"}"), Some(5.0));
    assert_eq!(value(&text, "glake_copy_duration_seconds_sum{route=\"disk\"}"), Some(1e-4));
    assert_eq!(value(&text, "glake_copy_duration_seconds_bucket{route=\"disk\",le=\"0.000032\"}"), Some(5.0));
    assert!(!text.contains("glake_allocator_fallbacks_total{"), "nobody uses the allocator: {text}");
}

#[test]
fn what_was_copied_before_the_first_look_is_not_counted_but_its_series_exists() {
    let text = body(vec![Some(copied(2))]);
    let bytes = format!("glake_copy_bytes_total{{{GPU},direction=\"to_gpu\",route=\"disk\"}}");
    assert_eq!(value(&text, &bytes), Some(0.0), "{text}");
}
