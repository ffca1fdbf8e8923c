//! UVM series: by GPU and by workload, nothing guessed, nothing lost when a process ends.

use super::{
    accept::Format,
    tests::Book,
    text::render,
    tree::{Itself, tree},
};
use crate::{
    clock::Stamp,
    events::sample::{Histogram, Sample, Uvm, UvmAccess, UvmGpu, UvmMoved, UvmSpace},
    host::inventory::{Gpu, Inventory},
};

const SECOND: u64 = 1_000_000_000;

fn gpu(uuid: &str, pci: &str) -> Gpu {
    Gpu { uuid: Some(uuid.into()), pci: pci.into(), ..Gpu::default() }
}

fn host(gpus: &[(&str, &str)]) -> Inventory {
    Inventory { gpus: gpus.iter().map(|(u, p)| gpu(u, p)).collect(), ..Inventory::default() }
}

fn moved(cause: &str, direction: &str, bytes: u64) -> UvmMoved {
    UvmMoved { cause: cause.into(), direction: direction.into(), count: 1, bytes }
}

/// One GPU and one process that paged `n` times as much as at first.
pub(super) fn paging(n: u64) -> Uvm {
    let batches = vec![0, 0, n, 3 * n];
    Uvm {
        gpus: vec![UvmGpu {
            uuid: Some("GPU-5c1e".into()),
            service: Some(Histogram { slots: vec![n], sum_ns: 900 * n }),
            batches: Some(batches),
            batched_faults: Some(25 * n),
            replays: Some(4 * n),
            evictions: Some(2 * n),
        }],
        spaces: vec![UvmSpace {
            serial: 7,
            tgid: Some(41),
            comm: "train".into(),
            cgroup_path: Some("/system.slice/train.service".into()),
            processor: 1,
            uuid: Some("GPU-5c1e".into()),
            gpu_faults: UvmAccess { read: 20 * n, write: 5 * n, ..UvmAccess::default() },
            thrashing: Some(n),
            throttled_ns: Some(SECOND * n / 2),
            evictions: Some(n),
            fatal: Some(vec![("invalid_address".into(), n)]),
            moved: vec![moved("on_demand", "to_gpu", 4096 * n), moved("eviction", "to_cpu", 8192 * n)],
            ..UvmSpace::default()
        }],
    }
}

/// After the readings, with a name given to every workload at the first.
fn body(host: &Inventory, readings: Vec<Option<Uvm>>) -> String {
    let mut ledger = Book::default();
    for (i, uvm) in readings.into_iter().enumerate() {
        let ns = SECOND * (1 + 61 * i as u64);
        ledger.advance(
            &Sample { at: Stamp { monotonic_ns: ns, realtime_ns: ns }, uvm, ..Sample::default() },
            host,
        );
    }
    render(&tree(&ledger, &Itself::default()), Format::Classic)
}

fn value(body: &str, series: &str) -> Option<f64> {
    let line = body.lines().find(|l| l.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

const GPU: &str = r#"UUID="GPU-5c1e",pci_bus_id="00000000:3B:00.0""#;

#[test]
fn paging_is_told_by_gpu_and_by_workload() {
    let one = host(&[("GPU-5c1e", "0000:3b:00.0")]);
    let text = body(&one, vec![Some(paging(1)), Some(paging(3))]);
    let of = |series: &str| value(&text, series);
    assert_eq!(of(&format!("glake_uvm_fault_replays_total{{{GPU}}}")), Some(12.0), "{text}");
    assert_eq!(of(&format!("glake_uvm_throttled_seconds_total{{{GPU}}}")), Some(1.5));
    assert_eq!(of(&format!("glake_uvm_fatal_faults_total{{{GPU},reason=\"invalid_address\"}}")), Some(3.0));
    assert_eq!(of(&format!("glake_uvm_fault_service_duration_seconds_count{{{GPU}}}")), Some(3.0));
    let train = r#"workload_kind="systemd",workload="train.service""#;
    let moved =
        format!("glake_uvm_migrated_bytes_total{{{train},{GPU},direction=\"to_cpu\",cause=\"eviction\"}}");
    assert_eq!(of(&moved), Some(16384.0), "what came after it got its name:\n{text}");
    let other = format!(
        "glake_uvm_migrated_bytes_total{{workload_kind=\"other\",{GPU},direction=\"to_cpu\",cause=\"eviction\"}}"
    );
    assert_eq!(of(&other), Some(8192.0), "{text}");
    assert_eq!(of(&format!("glake_uvm_gpu_page_faults_total{{{train},{GPU},access=\"read\"}}")), Some(40.0));
}

#[test]
fn an_eviction_is_booked_to_the_workload_that_lost_the_chunk_and_the_sum_is_the_gpu_s() {
    let one = host(&[("GPU-5c1e", "0000:3b:00.0")]);
    let of = |text: &str, who: &str| value(text, &format!("glake_uvm_evictions_total{{{who},{GPU}}}"));
    let (train, other) = (r#"workload_kind="systemd",workload="train.service""#, r#"workload_kind="other""#);
    let text = body(&one, vec![Some(Uvm::default())]);
    assert_eq!((of(&text, train), of(&text, other)), (None, Some(0.0)), "from the start, at 0:\n{text}");
    // Each reading has as many chunks that nobody lost as chunks of train; train has its name from the second on.
    let text = body(&one, vec![Some(paging(1)), Some(paging(3))]);
    assert_eq!(
        (of(&text, train), of(&text, other)),
        (Some(2.0), Some(2.0)),
        "those of now may get an owner yet"
    );
    let text = body(&one, vec![Some(paging(1)), Some(paging(3)), Some(paging(3))]);
    assert_eq!((of(&text, train), of(&text, other)), (Some(2.0), Some(4.0)), "2 + 4 = 6 of the GPU");
}

#[test]
fn a_chunk_whose_owner_comes_a_reading_later_is_booked_once() {
    let one = host(&[("GPU-5c1e", "0000:3b:00.0")]);
    let mut early = paging(1);
    early.spaces[0].evictions = Some(0);
    let mut late = paging(1);
    late.gpus[0].evictions = Some(2);
    late.spaces[0].evictions = Some(2);
    let text = body(&one, vec![Some(early), Some(late.clone()), Some(late)]);
    let all = text.lines().filter(|l| l.starts_with("glake_uvm_evictions_total{"));
    let sum: f64 = all.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert_eq!(sum, 2.0, "{text}");
}

#[test]
fn batch_sizes_are_a_histogram_of_faults_and_not_of_seconds() {
    let text = body(&host(&[("GPU-5c1e", "0000:3b:00.0")]), vec![Some(paging(1)), Some(paging(2))]);
    let bucket = |le: &str| value(&text, &format!("glake_uvm_fault_batch_size_bucket{{{GPU},le=\"{le}\"}}"));
    assert_eq!(
        (bucket("2.0"), bucket("4.0"), bucket("8.0"), bucket("+Inf")),
        (Some(0.0), Some(2.0), Some(8.0), Some(8.0))
    );
    assert_eq!(value(&text, &format!("glake_uvm_fault_batch_size_sum{{{GPU}}}")), Some(50.0));
}

#[test]
fn a_process_that_ended_between_two_readings_is_counted_and_then_gone() {
    let one = host(&[("GPU-5c1e", "0000:3b:00.0")]);
    let gone = Uvm { spaces: Vec::new(), ..paging(2) };
    let text = body(&one, vec![Some(Uvm::default()), Some(paging(2)), Some(gone.clone()), Some(gone)]);
    let all: f64 = text
        .lines()
        .filter(|l| l.starts_with("glake_uvm_migrated_bytes_total{"))
        .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    assert_eq!(all, 2.0 * (4096.0 + 8192.0), "{text}");
}

#[test]
fn a_gpu_that_could_not_be_told_has_no_uuid_unless_there_is_only_one() {
    let mut uvm = paging(1);
    uvm.spaces[0].uuid = None;
    let two = host(&[("GPU-5c1e", "0000:3b:00.0"), ("GPU-0000", "0000:86:00.0")]);
    let text = body(&two, vec![Some(uvm.clone())]);
    assert!(
        text.contains(r#"glake_uvm_gpu_page_faults_total{workload_kind="other",access="read"} 20"#),
        "{text}"
    );
    let text = body(&host(&[("GPU-5c1e", "0000:3b:00.0")]), vec![Some(uvm)]);
    let known =
        format!("glake_uvm_gpu_page_faults_total{{workload_kind=\"other\",{GPU},access=\"read\"}} 20");
    assert!(text.contains(&known), "{text}");
}

#[test]
fn not_watched_is_absent_and_nothing_happened_is_zero() {
    let one = host(&[("GPU-5c1e", "0000:3b:00.0")]);
    let series = |text: &str| text.lines().filter(|l| l.starts_with("glake_uvm_")).count();
    assert_eq!(series(&body(&one, vec![None])), 0);
    let text = body(&one, vec![Some(Uvm::default())]);
    assert_eq!(value(&text, &format!("glake_uvm_fault_replays_total{{{GPU}}}")), Some(0.0), "{text}");
    assert_eq!(value(&text, &format!("glake_uvm_fault_service_duration_seconds_count{{{GPU}}}")), Some(0.0));
}

/// Case J05: two thousand short programs in an hour, each a process and a session of its own.
#[test]
fn short_programs_by_the_thousand_stay_within_the_series_and_none_is_lost() {
    let one = host(&[("GPU-5c1e", "0000:3b:00.0")]);
    let (minutes, each) = (60, 34);
    let reading = |minute: u64| {
        let space = |i: u64| {
            let n = minute * each + i;
            UvmSpace {
                serial: n,
                tgid: u32::try_from(10_000 + n).ok(),
                comm: format!("job{n}"),
                cgroup_path: Some(format!("/system.slice/job{n}.service")),
                processor: 1,
                uuid: Some("GPU-5c1e".into()),
                gpu_faults: UvmAccess { read: 10, ..UvmAccess::default() },
                ..UvmSpace::default()
            }
        };
        Some(Uvm { spaces: (0..each).map(space).collect(), ..Uvm::default() })
    };
    let text = body(&one, std::iter::once(Some(Uvm::default())).chain((0..minutes).map(reading)).collect());
    let faults: Vec<&str> =
        text.lines().filter(|l| l.starts_with("glake_uvm_gpu_page_faults_total{")).collect();
    assert!(faults.len() <= 160, "{} series", faults.len());
    let sum: f64 = faults.iter().filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert_eq!(sum, 10.0 * (minutes * each) as f64, "{faults:#?}");
    assert!(faults.iter().any(|l| l.contains("workload_kind=\"other\"")), "{faults:#?}");
    for pid in ["pid=", "tgid=", "comm="] {
        assert!(!text.contains(pid), "{pid} is a label");
    }
}

#[test]
fn ten_gpus_are_told_apart_and_what_finds_no_series_is_counted() {
    let names: Vec<(String, String)> =
        (0..10).map(|i| (format!("GPU-{i}"), format!("0000:{:02x}:00.0", 0x10 + i))).collect();
    let host = host(&names.iter().map(|(uuid, pci)| (uuid.as_str(), pci.as_str())).collect::<Vec<_>>());
    let all = |n: u64| {
        let mut all = Uvm::default();
        for (i, (uuid, _)) in (1..).zip(&names) {
            let one = paging(n);
            all.gpus.extend(one.gpus.into_iter().map(|g| UvmGpu { uuid: Some(uuid.clone()), ..g }));
            let space = |s| UvmSpace { serial: i, processor: i as u32, uuid: Some(uuid.clone()), ..s };
            all.spaces.extend(one.spaces.into_iter().map(space));
        }
        all
    };
    let mut ledger = Book::default();
    for (i, n) in [(0, 1), (1, 3)] {
        let at = Stamp { monotonic_ns: SECOND * (1 + 61 * i), realtime_ns: SECOND * (1 + 61 * i) };
        ledger.advance(&Sample { at, uvm: Some(all(n)), ..Sample::default() }, &host);
    }
    let text = render(&tree(&ledger, &Itself::default()), Format::Classic);
    let sum = |family: &str| -> f64 {
        let of = text.lines().filter(|l| l.strip_prefix(family).is_some_and(|rest| rest.starts_with('{')));
        of.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    assert_eq!(sum("glake_uvm_fault_replays_total"), 10.0 * 12.0, "{text}");
    for (i, (uuid, _)) in names.iter().enumerate() {
        let series = format!(
            "glake_uvm_fault_replays_total{{UUID=\"{uuid}\",pci_bus_id=\"00000000:{:02X}:00.0\"}}",
            0x10 + i
        );
        assert_eq!(value(&text, &series), Some(12.0), "{series}");
    }
    assert_eq!(sum("glake_uvm_gpu_page_faults_total"), 10.0 * 75.0, "every GPU, every workload");
    // A histogram takes many series: those of eight GPUs fit.
    assert_eq!(sum("glake_uvm_fault_batch_size_count"), 8.0 * 12.0);
    let refused = text.lines().find(|l| l.starts_with("glake_series_refused_total ")).unwrap();
    assert!(!refused.ends_with(" 0"), "{refused}");
}
