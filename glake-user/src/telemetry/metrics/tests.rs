use super::{
    accept::Format,
    booking::{ELECTION_NS, IDLE_NS, NAMED},
    ledger::Ledger,
    table::{BLOCK_IO_BYTES, LATENCY_BOUNDS_US, MAX_SERIES, TABLE},
    text::render,
    tree::{Branch, Itself, Value, fold, series_count, tree},
};
use crate::{
    clock::Stamp,
    events::sample::*,
    host::inventory::{Gpu, Inventory},
    telemetry::difference::Difference,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A ledger that remembers the reading before.
#[derive(Default)]
pub(super) struct Book {
    ledger: Ledger,
    previous: Sample,
}

impl Book {
    pub(super) fn advance(&mut self, sample: &Sample, host: &Inventory) {
        self.ledger.book(&Difference::between(&self.previous, sample), host);
        self.previous = sample.clone();
    }
}

impl std::ops::Deref for Book {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl std::ops::DerefMut for Book {
    fn deref_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

const SECOND: u64 = 1_000_000_000;

fn at(ns: u64) -> Stamp {
    Stamp { monotonic_ns: ns, realtime_ns: ns }
}

fn owner(unit: &str, bytes: u64) -> OwnerIo {
    OwnerIo {
        owner: Owner::Task { tgid: 1, comm: unit.into(), cgroup: 1 },
        cgroup_path: Some(format!("/system.slice/{unit}.service")),
        io: vec![OwnerDeviceIo {
            device: "vda".into(),
            operation: Operation::Read,
            completed: 1,
            bytes,
            wait_ns: 1,
        }],
    }
}

fn ledger_tree(ledger: &Ledger) -> Vec<Branch> {
    tree(ledger, &Itself::default())
}

/// Every line of values, by series, as a client reads them.
fn values(body: &str) -> BTreeMap<String, f64> {
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

fn bytes_by_workload(ledger: &Ledger) -> BTreeMap<String, u64> {
    let name = |labels: &super::ledger::Labels| {
        labels.iter().find(|(n, _)| *n == "workload").map_or_else(|| "other".into(), |(_, v)| v.clone())
    };
    ledger.workloads().series(&BLOCK_IO_BYTES).iter().map(|(labels, total)| (name(labels), *total)).collect()
}

#[test]
fn a_delta_is_booked_to_a_name_only_if_the_workload_has_one_at_that_instant() {
    let (mut ledger, host) = (Book::default(), Inventory::default());
    let reading =
        |ns, bytes| Sample { at: at(ns), owners: Some(vec![owner("db", bytes)]), ..Sample::default() };
    ledger.advance(&reading(SECOND, 100), &host);
    assert_eq!(
        bytes_by_workload(&ledger),
        [("db.service".into(), 0), ("other".into(), 100)].into(),
        "what came before the name stays in other, and the new series starts at 0"
    );
    ledger.advance(&reading(2 * SECOND, 150), &host);
    assert_eq!(bytes_by_workload(&ledger), [("db.service".into(), 50), ("other".into(), 100)].into());
}

#[test]
fn each_source_of_iommu_faults_has_its_own_series_and_is_named_in_the_help() {
    let (mut ledger, host) = (Book::default(), Inventory::default());
    let fault = |pci: Option<&str>, source: &str, count| IommuFaults {
        pci: pci.map(str::to_owned),
        source: source.to_owned(),
        count,
    };
    let sources = ["tracepoint", "kprobe", "interrupts", "kmsg"];
    let reading = |ns, each| {
        let faults = sources.iter().zip([Some("0000:03:00.0"), None, None, Some("0000:03:00.0")]);
        let faults = faults.map(|(source, pci)| fault(pci, source, each)).collect();
        Sample { at: at(ns), iommu_faults: Some(faults), ..Sample::default() }
    };
    ledger.advance(&reading(SECOND, 0), &host);
    ledger.advance(&reading(2 * SECOND, 3), &host);
    let body = render(&ledger_tree(&ledger), Format::Classic);
    let faults: BTreeMap<String, f64> = values(&body)
        .into_iter()
        .filter(|(series, _)| series.starts_with("glake_iommu_faults_total"))
        .collect();
    let series = |labels: &str| (format!("glake_iommu_faults_total{{{labels}}}"), 3.0);
    assert_eq!(
        faults,
        [
            series("pci_bus_id=\"0000:03:00.0\",source=\"tracepoint\""),
            series("source=\"kprobe\""),
            series("source=\"interrupts\""),
            series("pci_bus_id=\"0000:03:00.0\",source=\"kmsg\""),
        ]
        .into()
    );
    let help = body.lines().find(|l| l.starts_with("# HELP glake_iommu_faults_total")).unwrap();
    assert!(sources.iter().all(|source| help.contains(source)), "{help}");
}

#[test]
fn names_change_at_most_once_a_minute() {
    let (mut ledger, host) = (Book::default(), Inventory::default());
    let reading = |ns, owners| Sample { at: at(ns), owners: Some(owners), ..Sample::default() };
    ledger.advance(&reading(SECOND, vec![owner("a", 10)]), &host);
    let with_b = |ns, b| reading(ns, vec![owner("a", 10), owner("b", b)]);
    ledger.advance(&with_b(2 * SECOND, 1000), &host);
    assert!(!bytes_by_workload(&ledger).contains_key("b.service"), "a second has passed");
    ledger.advance(&with_b(SECOND + ELECTION_NS, 2000), &host);
    assert_eq!(bytes_by_workload(&ledger)["b.service"], 0, "a minute has passed");
}

#[test]
fn a_name_ends_after_ten_idle_minutes_and_goes_on_where_it_ended() {
    let (mut ledger, host) = (Book::default(), Inventory::default());
    let reading =
        |ns, bytes| Sample { at: at(ns), owners: Some(vec![owner("a", bytes)]), ..Sample::default() };
    ledger.advance(&reading(SECOND, 10), &host);
    ledger.advance(&reading(2 * SECOND, 30), &host);
    ledger.advance(&reading(2 * SECOND + IDLE_NS - 1, 30), &host);
    assert!(bytes_by_workload(&ledger).contains_key("a.service"), "just short of ten minutes");
    let later = 3 * SECOND + IDLE_NS + ELECTION_NS;
    ledger.advance(&reading(later, 30), &host);
    assert!(!bytes_by_workload(&ledger).contains_key("a.service"));
    ledger.advance(&reading(later + ELECTION_NS, 37), &host);
    ledger.advance(&reading(later + ELECTION_NS + SECOND, 40), &host);
    assert_eq!(
        bytes_by_workload(&ledger),
        [("a.service".into(), 23), ("other".into(), 17)].into(),
        "20 before the pause and 3 after it are its own; 10 and 7 came while it had no name"
    );
}

#[test]
fn a_newcomer_takes_over_only_when_clearly_busier() {
    let (mut ledger, host) = (Book::default(), Inventory::default());
    let many = |scale: u64| (0..NAMED).map(move |i| owner(&format!("u{i:02}"), scale * (1000 + i as u64)));
    let reading = |ns, owners| Sample { at: at(ns), owners: Some(owners), ..Sample::default() };
    ledger.advance(&reading(SECOND, many(1).collect()), &host);
    assert_eq!(ledger.workloads().names().count(), NAMED);
    let minute = SECOND + ELECTION_NS;
    ledger.advance(&reading(minute, many(2).chain([owner("new", 1500)]).collect()), &host);
    assert!(!bytes_by_workload(&ledger).contains_key("new.service"), "half as busy again is not enough");
    ledger.advance(&reading(minute + ELECTION_NS, many(3).chain([owner("new", 9000)]).collect()), &host);
    let names = bytes_by_workload(&ledger);
    assert!(names.contains_key("new.service") && !names.contains_key("u00.service"), "{names:?}");
    assert_eq!(ledger.workloads().names().count(), NAMED);
}

/// Case J05: short programs by the thousand.
#[test]
fn ten_thousand_owners_stay_within_the_series_of_a_host() {
    let (mut ledger, host) = (Book::default(), Inventory::default());
    for round in 1..=40u64 {
        let owners = (0..10_000).map(|i| owner(&format!("job{i}"), round * (i + 1) * 4096)).collect();
        let disk = |i| BlockDevice {
            device: format!("sd{i}"),
            requeues: Some(round),
            operations: [Operation::Read, Operation::Write, Operation::Flush]
                .map(|operation| BlockOperation {
                    operation,
                    completed: round,
                    bytes: round,
                    errors: 0,
                    queue: Some(Histogram { slots: vec![round; 50], sum_ns: round }),
                    device: Some(Histogram { slots: vec![round; 50], sum_ns: round }),
                })
                .into(),
            ..BlockDevice::default()
        };
        let sample = Sample {
            at: at(round * ELECTION_NS),
            owners: Some(owners),
            block: Some((0..200).map(disk).collect()),
            ..Sample::default()
        };
        ledger.advance(&sample, &host);
    }
    let tree = ledger_tree(&ledger);
    assert!(series_count(&tree) <= MAX_SERIES, "{}", series_count(&tree));
    for branch in &tree {
        let one = std::slice::from_ref(branch);
        assert!(series_count(one) <= branch.family.max, "{}: {}", branch.family.name, series_count(one));
    }
    let booked: u64 = bytes_by_workload(&ledger).values().sum();
    assert_eq!(booked, 40 * 4096 * (10_000 * 10_001 / 2), "nothing is lost and nothing is counted twice");
    let waited = tree.iter().find(|b| b.family.name == "glake_block_queue_duration_seconds").unwrap();
    let count = |value: &Value| if let Value::Histogram { count, .. } = value { *count } else { 0 };
    let counted: u64 = waited.series.iter().map(|(_, value)| count(value)).sum();
    assert_eq!(counted, 200 * 3 * 40 * 50, "devices beyond the cap are in `other`");
}

#[test]
fn both_formats_carry_the_same_series() {
    let body = full_ledger();
    let tree = ledger_tree(&body);
    let (classic, open) = (render(&tree, Format::Classic), render(&tree, Format::OpenMetrics));
    assert_eq!(values(&classic), values(&open));
    assert!(values(&classic).len() > 60, "{classic}");
    assert!(open.ends_with("# EOF\n") && !classic.contains("EOF"));
    for family in TABLE {
        assert!(
            classic.contains(&format!("# TYPE {} {}\n", family.name, family.kind.name())),
            "{}",
            family.name
        );
        let stem = family.name.strip_suffix("_total").unwrap_or(family.name);
        assert!(open.contains(&format!("# TYPE {stem} {}\n", family.kind.name())), "{}", family.name);
    }
}

#[test]
fn every_series_carries_only_the_labels_of_its_family_in_order_and_once() {
    for branch in ledger_tree(&full_ledger()) {
        let mut seen = std::collections::BTreeSet::new();
        for (labels, _) in &branch.series {
            let places: Vec<_> =
                labels.iter().map(|(n, _)| branch.family.labels.iter().position(|l| l == n)).collect();
            assert!(places.iter().all(Option::is_some), "{}: {labels:?}", branch.family.name);
            assert!(places.windows(2).all(|w| w[0] < w[1]), "{}: {labels:?}", branch.family.name);
            assert!(labels.iter().all(|(_, value)| !value.is_empty()), "{}: {labels:?}", branch.family.name);
            assert!(seen.insert(labels.clone()), "{}: {labels:?} twice", branch.family.name);
        }
    }
}

#[test]
fn a_label_is_escaped_so_that_it_reads_back() {
    let mut ledger = Book::default();
    let nasty = "a\"b\\c\nd";
    let sample = Sample {
        at: at(SECOND),
        dropped: vec![Dropped { source: nasty.into(), reason: "ring_full".into(), count: 1 }],
        ..Sample::default()
    };
    ledger.advance(&sample, &Inventory::default());
    let body = render(&ledger_tree(&ledger), Format::Classic);
    assert!(body.contains(r#"{source="a\"b\\c\nd",reason="ring_full"} 1"#), "{body}");
}

#[test]
fn folding_moves_no_value_across_a_bound() {
    for bound in LATENCY_BOUNDS_US {
        for (ns, within) in [(bound * 1000, true), (bound * 1000 + 1, false)] {
            let mut histogram = Histogram { slots: vec![0; 50], sum_ns: ns };
            histogram.slots[glake_common::hist::slot(ns)] = 1;
            let Value::Histogram { below, count, .. } = fold(&histogram) else { panic!("no histogram") };
            let i = LATENCY_BOUNDS_US.iter().position(|b| *b == bound).unwrap();
            assert_eq!((below[i] == 1, count), (within, 1), "{ns} ns at {bound} us");
        }
    }
}

#[test]
fn at_most_sixteen_codes_of_a_gpu_have_a_series_and_the_rest_is_other() {
    let mut ledger = Book::default();
    let xid = |code| XidCount {
        pci: "0000:3b:00.0".into(),
        code,
        source: "tracepoint".into(),
        count: 1,
        last: at(u64::from(code) * SECOND),
        ..XidCount::default()
    };
    let sample = Sample { at: at(SECOND), xid: Some((1..=40).map(xid).collect()), ..Sample::default() };
    ledger.advance(&sample, &Inventory::default());
    let body = render(&ledger_tree(&ledger), Format::Classic);
    let lines = values(&body);
    let xids: Vec<_> = lines.iter().filter(|(s, _)| s.starts_with("glake_gpu_xid_errors_total{")).collect();
    assert_eq!(xids.len(), 17, "{xids:?}");
    assert_eq!(xids.iter().map(|(_, v)| **v).sum::<f64>(), 40.0);
    let series = r#"glake_gpu_xid_errors_total{pci_bus_id="00000000:3B:00.0",xid="13",action="restart_app",source="tracepoint"}"#;
    assert_eq!(lines[series], 1.0);
    let newest =
        r#"glake_gpu_xid_last_timestamp_seconds{pci_bus_id="00000000:3B:00.0",xid="other",action="other"}"#;
    assert_eq!(lines[newest], 40.0);
}

#[test]
fn codes_that_page_somebody_exist_at_zero_and_times_outlive_a_restart() {
    let gpu = Gpu { pci: "0000:3b:00.0".into(), uuid: Some("GPU-5c1e".into()), minor: Some(1), model: None };
    let host =
        Inventory { gpus: vec![gpu], nvidia_driver: Some("580.159.04".into()), ..Inventory::default() };
    let body = |ledger: &Ledger| render(&ledger_tree(ledger), Format::Classic);
    let mut ledger = Book::default();
    let mut sample = Sample { at: at(100 * SECOND), ..Sample::default() };
    sample.at.realtime_ns = 5_000 * SECOND;
    ledger.advance(&sample, &host);
    assert!(
        !body(&ledger).contains("glake_gpu_xid_errors_total{"),
        "Xids are not watched: no series, no zero"
    );
    sample.xid = Some(Vec::new());
    ledger.set_xid_lasts([(("0000:3b:00.0".to_owned(), 79), 1_000 * SECOND)].into());
    ledger.advance(&sample, &host);
    let text = body(&ledger);
    let lines = values(&text);
    let gpu = r#"UUID="GPU-5c1e",pci_bus_id="00000000:3B:00.0""#;
    assert_eq!(
        lines[format!(
            "glake_gpu_xid_errors_total{{{gpu},xid=\"79\",action=\"restart_node\",source=\"kmsg\"}}"
        )
        .as_str()],
        0.0
    );
    assert_eq!(
        lines[format!("glake_gpu_xid_last_timestamp_seconds{{{gpu},xid=\"79\",action=\"restart_node\"}}")
            .as_str()],
        1000.0
    );
    assert_eq!(lines[format!("glake_gpu_up{{{gpu}}}").as_str()], 1.0, "it fell off before this boot");
    let info = format!("glake_gpu_info{{{gpu},gpu=\"0\",device=\"nvidia1\",driver_version=\"580.159.04\"}}");
    assert_eq!(lines[info.as_str()], 1.0);
    ledger.set_xid_lasts([(("0000:3b:00.0".to_owned(), 79), 4_950 * SECOND)].into());
    ledger.advance(&sample, &host);
    let text = body(&ledger);
    assert_eq!(values(&text)[format!("glake_gpu_up{{{gpu}}}").as_str()], 0.0);
}

#[test]
fn the_reference_page_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == super::reference::markdown(),
        "docs/metrics.md differs from the table: `glake metrics-reference > docs/metrics.md`"
    );
}

/// A ledger in which every family of the probes has at least one series.
fn full_ledger() -> Book {
    let mut ledger = Book::default();
    let probe =
        Probe { name: "block_issue".into(), required: true, state: ProbeState::On, ..Probe::default() };
    let read = BlockOperation {
        operation: Operation::Read,
        completed: 1,
        bytes: 1,
        errors: 1,
        queue: Some(Histogram { slots: vec![1], sum_ns: 5 }),
        device: Some(Histogram { slots: vec![1], sum_ns: 5 }),
    };
    let commands = NvmeCommands {
        queue: 1,
        opcode: 2,
        completed: 1,
        latency: Histogram { slots: vec![1], sum_ns: 1 },
        ..NvmeCommands::default()
    };
    let nvme = NvmeController {
        controller: "nvme0".into(),
        pci: Some("0000:81:00.0".into()),
        commands: vec![commands],
        retries: Some(0),
        timeouts: Some(0),
        resets: Some(0),
        queues: Some(vec![NvmeQueue { queue: 1, completed: 1, max_fill: 1, depth: Some(8) }]),
        ..NvmeController::default()
    };
    let sample = Sample {
        at: at(SECOND),
        probes: vec![probe],
        block: Some(vec![BlockDevice {
            device: "vda".into(),
            requeues: Some(0),
            operations: vec![read],
            ..BlockDevice::default()
        }]),
        owners: Some(vec![owner("a", 10)]),
        nvme: Some(vec![nvme]),
        iommu: Some(Iommu { maps: 1, ..Iommu::default() }),
        iommu_faults: Some(vec![IommuFaults { pci: None, source: "kmsg".into(), count: 0 }]),
        dma: Some(vec![DmaDevice { device: "0000:81:00.0".into(), maps: 1, bytes: 1, errors: None }]),
        swiotlb: Some(vec![SwiotlbDevice { device: "0000:81:00.0".into(), bounces: 1, bytes: 1 }]),
        aer: Some(vec![AerDevice { pci: "0000:81:00.0".into(), corrected: 1, nonfatal: 0, fatal: 0 }]),
        io_uring_punted: Some(1),
        xid: Some(vec![XidCount {
            pci: "0000:3b:00.0".into(),
            code: 31,
            source: "tracepoint".into(),
            count: 1,
            last: at(SECOND),
            ..XidCount::default()
        }]),
        uvm: Some(super::uvm_tests::paging(1)),
        heaps: Some(super::heap_tests::heaps(1)),
        nvml: Some(super::nvml_tests::health()),
        dropped: vec![Dropped { source: "ring".into(), reason: "ring_full".into(), count: 0 }],
        cost: Cost { map_bytes: 4096, ebpf_run_time_ns: Some(7) },
    };
    ledger.advance(&sample, &Inventory::default());
    ledger
}

/// One step of a random life: how far the clock moves, and each owner's growth (or a restart of its counters).
type Step = (u64, Vec<(u8, u32, bool)>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_series_ever_falls_and_every_byte_is_booked_once(
        steps in proptest::collection::vec((1u64..400, proptest::collection::vec((0u8..60, 0u32..1000, proptest::bool::weighted(0.05)), 0..12)), 1..40)
    ) {
        let steps: Vec<Step> = steps;
        let (mut ledger, host) = (Book::default(), Inventory::default());
        let mut raw: BTreeMap<u8, u64> = BTreeMap::new();
        let (mut now, mut caused) = (0, 0u64);
        let mut highest: BTreeMap<String, u64> = BTreeMap::new();
        for (seconds, growths) in steps {
            now += seconds * SECOND;
            let mut restarted = std::collections::BTreeSet::new();
            for (who, growth, restart) in growths {
                let cell = raw.entry(who).or_default();
                // A restart shows only if the counter ends lower than it was.
                if restart && u64::from(growth) < *cell && restarted.insert(who) {
                    *cell = u64::from(growth);
                    caused += u64::from(growth);
                } else if !restarted.contains(&who) {
                    *cell += u64::from(growth);
                    caused += u64::from(growth);
                    restarted.insert(who);
                }
            }
            let owners = raw.iter().map(|(who, bytes)| owner(&format!("u{who}"), *bytes)).collect();
            ledger.advance(&Sample { at: at(now), owners: Some(owners), ..Sample::default() }, &host);
            for (name, total) in bytes_by_workload(&ledger) {
                let before = highest.insert(name.clone(), total).unwrap_or(0);
                prop_assert!(total >= before, "{name} fell from {before} to {total}");
            }
            prop_assert_eq!(highest.values().sum::<u64>(), caused);
        }
    }
}
