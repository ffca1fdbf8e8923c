use super::super::saved;
use super::super::text::show;
use super::*;
use crate::host::inventory::Gpu;

fn host() -> Inventory {
    let gpu = |pci: &str, uuid: &str| Gpu {
        pci: pci.into(),
        uuid: Some(uuid.into()),
        minor: None,
        model: Some("NVIDIA H200".into()),
    };
    Inventory {
        hostname: "gpu-node-17".into(),
        gpus: vec![gpu("0000:19:00.0", "GPU-aaaa"), gpu("0000:3b:00.0", "GPU-5c1e")],
        ..Inventory::default()
    }
}

fn joiner() -> Joiner {
    let mut j = Joiner::new(host(), Vec::new());
    let families = ["aer", "iommu", "nvme"];
    j.set_coverage(families.iter().map(|f| ((*f).to_owned(), Ok(()))).collect(), 0);
    j
}

fn at(ms: u64) -> Stamp {
    Stamp { monotonic_ns: ms * 1_000_000, realtime_ns: 1_780_000_000_000_000_000 + ms * 1_000_000 }
}

fn trace(ms: u64, pci: &str, code: u32, text: &str) -> Incoming {
    Incoming {
        at: at(ms),
        source: "nvidia:nvidia_dev_xid (trace point)".into(),
        pci: Some(pci.into()),
        code: Some(code),
        text: text.into(),
        ..Incoming::default()
    }
}

fn log(ms: u64, pci: &str, code: u32, text: &str) -> Incoming {
    Incoming { source: "kernel log".into(), clock_error_ns: 10_000, ..trace(ms, pci, code, text) }
}

fn nobody(_: u32) -> Option<Process> {
    None
}

/// A log of `(seconds, text)` lines in dmesg's form.
fn records(lines: &[(u64, &str)]) -> Vec<Record> {
    let text: Vec<String> = lines.iter().map(|(s, t)| format!("[{s:>5}.000000] {t}")).collect();
    saved::read(text.iter().map(String::as_str), &mut joiner()).records
}

const PCI: &str = "0000:3b:00.0";
const MMU: &str = "MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_4 faulted @ 0x7f3a_1c200000. Fault is of type \
                   FAULT_PDE ACCESS_TYPE_VIRT_READ";

#[test]
fn the_trace_point_counts_and_the_log_line_names_the_process() {
    let mut j = joiner();
    j.report(&trace(1000, PCI, 31, MMU), &nobody);
    assert!(j.tick(at(1500)).is_empty(), "the log line may still come");
    let found = |pid| {
        assert_eq!(pid, 88213);
        let workload = Some("serve/chat-5d9".to_owned());
        Some(Process { cgroup: Some("/kubepods/pod9a2e".into()), workload, ..Process::default() })
    };
    let line = format!("pid=88213, name=VLLM::EngineCore, Ch 00000010, intr 00000000. {MMU}");
    j.report(&log(1001, PCI, 31, &line), &found);
    let out = j.tick(at(2000));
    let r = &out[0];
    assert_eq!(r.codes[&31].count(), 1, "one event, seen twice");
    assert!(r.exact());
    let who = r.who.as_ref().expect("named");
    assert_eq!((who.pid, who.lag_ns), (Some(88213), 1_000_000));
    assert_eq!(who.workload.as_deref(), Some("serve/chat-5d9"));
    assert_eq!(r.mmu.as_ref().and_then(|m| m.address), Some(0x7f3a_1c20_0000));
    assert_eq!((r.uuid.as_deref(), r.gpu), (Some("GPU-5c1e"), Some(1)));
    assert_eq!(r.pci_bus_id.as_deref(), Some("00000000:3B:00.0"));
    assert_eq!(r.action, "restart_app");
    assert!(!r.closed);
    assert!(j.tick(at(3000)).is_empty(), "nothing changed");
    let out = j.tick(at(40_000));
    assert!(out[0].closed && out[0].id == r.id, "the complete record replaces the first");
    assert!(j.tick(at(90_000)).is_empty());
}

#[test]
fn without_a_trace_point_the_count_is_a_lower_bound_and_says_so() {
    let mut j = joiner();
    j.report(&log(0, PCI, 31, "pid=5, name=a, x"), &nobody);
    let r = &j.end()[0];
    assert!(!r.exact());
    assert!(show(r).contains("lower bound"), "{}", show(r));
}

#[test]
fn consequences_are_folded_and_never_become_the_record() {
    let mut j = joiner();
    j.report(&trace(0, PCI, 45, "Ch 8"), &nobody);
    j.report(&trace(1, PCI, 31, MMU), &nobody);
    j.report(&trace(5, PCI, 43, "Ch 8"), &nobody);
    j.report(&trace(6, PCI, 45, "Ch 9"), &nobody);
    let out = j.end();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].code, 31, "45 came first and is still not the root");
    assert_eq!(out[0].folded().collect::<Vec<_>>(), [(43, 1), (45, 2)]);
}

#[test]
fn two_gpus_and_two_problems_are_four_records() {
    let mut j = joiner();
    for pci in ["0000:19:00.0", PCI] {
        j.report(&trace(0, pci, 31, "a"), &nobody);
        j.report(&trace(1, pci, 74, "b"), &nobody);
        j.report(&trace(2, pci, 31, "a"), &nobody);
    }
    let mut codes: Vec<(String, u32, u64)> =
        j.end().iter().map(|r| (r.pci.clone().expect("told"), r.code, r.codes[&r.code].count())).collect();
    codes.sort();
    let pci = PCI.to_owned();
    let other = "0000:19:00.0".to_owned();
    assert_eq!(codes, [(other.clone(), 31, 2), (other, 74, 1), (pci.clone(), 31, 2), (pci, 74, 1)]);
}

#[test]
fn the_same_code_after_a_quiet_time_is_a_new_record() {
    let mut j = joiner();
    j.report(&trace(0, PCI, 31, "a"), &nobody);
    let first = j.tick(at(31_000));
    j.report(&trace(31_001, PCI, 31, "a"), &nobody);
    let second = j.end();
    assert_ne!(first[0].id, second[0].id);
    assert_eq!(second[0].history[&31], 1);
}

#[test]
fn what_happened_before_is_in_the_record_and_what_did_not_is_said() {
    let mut j = joiner();
    let fact = |ms, family: &str, text: &str| Fact {
        at: at(ms),
        family: family.into(),
        device: Some("nvme1".into()),
        text: text.into(),
        source: "trace point".into(),
        ..Fact::default()
    };
    j.fact(fact(1000, "nvme", "long ago"));
    j.fact(fact(19_000, "nvme", "read p99 31 ms"));
    for _ in 0..300 {
        j.fact(fact(19_500, "aer", "corrected: replay timer timeout"));
    }
    j.report(&trace(20_000, PCI, 31, "a"), &nobody);
    let r = &j.end()[0];
    assert_eq!(r.before.len(), 2, "{:?}", r.before);
    assert_eq!(r.before[1].count, 300, "a burst is one line with a count");
    let text = show(r);
    assert!(text.contains("-1.0 s  nvme nvme1 read p99 31 ms"), "{text}");
    assert!(text.contains("IOMMU faults: none in the 10 s before"), "{text}");
    assert!(!text.contains("AER reports: none"), "{text}");
    assert!(text.contains("row remapping, ECC counts: not watched"), "{text}");
}

#[test]
fn a_family_that_is_not_watched_is_never_said_to_be_quiet() {
    let mut j = Joiner::new(host(), Vec::new());
    j.set_coverage([("aer".to_owned(), Err("tracefs is not mounted".to_owned()))].into(), 0);
    j.report(&trace(0, PCI, 79, "GPU has fallen off the bus."), &nobody);
    let text = show(&j.end()[0]);
    assert!(text.contains("PCIe AER reports: not watched (tracefs is not mounted)"), "{text}");
    assert!(!text.contains("none in the 10 s before"), "{text}");
}

#[test]
fn events_dropped_meanwhile_make_the_counts_a_lower_bound() {
    let mut j = joiner();
    j.report(&trace(0, PCI, 31, "a"), &nobody);
    j.set_coverage(Watched::new(), 3);
    let r = &j.end()[0];
    assert_eq!(r.dropped, 3);
    assert!(!r.exact());
}

/// Case E01.
#[test]
fn a_gpu_that_fell_off_without_a_code_is_as_severe_as_79_and_merges_with_it() {
    let three = [
        (100, "NVRM: The NVIDIA GPU 0000:b3:00.0"),
        (100, "NVRM: (PCI ID: 10de:26b5) installed in this system has"),
        (100, "NVRM: fallen off the bus and is not responding to commands."),
        (100, "nvidia: probe of 0000:b3:00.0 failed with error -1"),
        (100, "NVRM: The NVIDIA probe routine failed for 1 device(s)."),
    ];
    let out = records(&three);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].code, out[0].code_told), (79, false));
    assert_eq!(out[0].action, "restart_node");
    assert!(show(&out[0]).contains("no code (as Xid 79)"));
    let mut with_code = three.to_vec();
    with_code.push((103, "NVRM: Xid (PCI:0000:b3:00): 79, pid=5, name=a, GPU has fallen off the bus."));
    let out = records(&with_code);
    assert_eq!(out.len(), 1, "merged");
    assert!(out[0].code_told);
}

/// Case E03, one burst of it.
#[test]
fn a_burst_of_memory_codes_is_one_record_with_the_double_bit_error_as_root() {
    let out = records(&[
        (
            10,
            "NVRM: Xid (PCI:0000:9c:00): 171, pid=5, name=python, Uncorrectable DRAM error FBPA 9 subpartition 1",
        ),
        (10, "NVRM: Xid (PCI:0000:9c:00): 48, pid=5, name=python, DBE"),
        (11, "NVRM: Xid (PCI:0000:9c:00): 63, Row remapper: pending"),
        (11, "NVRM: Xid (PCI:0000:9c:00): 94, pid=5, name=python, Contained"),
        (
            12,
            "NVRM: Xid (PCI:0000:9c:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        ),
    ]);
    assert_eq!(out.len(), 1, "{out:#?}");
    assert_eq!(out[0].code, 48);
    assert_eq!(out[0].action, "reset_gpu");
    assert!(out[0].do_now.contains("The driver now asks: drain the GPU and reset it"), "{}", out[0].do_now);
}

/// Case E05.
#[test]
fn gsp_timeouts_sixteen_seconds_after_a_gsp_error_belong_to_it() {
    let mut lines =
        vec![(50, "NVRM: Xid (PCI:0000:19:00): 120, pid='<unknown>', name=<unknown>, GSP task error 0x5")];
    for s in [66, 72, 78] {
        lines.push((
            s,
            "NVRM: Xid (PCI:0000:19:00): 119, pid=9, name=x, Timeout waiting for RPC: function FREE",
        ));
    }
    let out = records(&lines);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].code, out[0].codes[&119].count()), (120, 3));
}

/// Case E11.
#[test]
fn a_halted_microcontroller_beside_a_memory_error_explains_why_the_reset_fails() {
    let out = records(&[
        (0, "NVRM: Xid (PCI:0000:19:00): 62, halted"),
        (5, "NVRM: Xid (PCI:0000:19:00): 48, DBE"),
        (20, "NVRM: Xid (PCI:0000:19:00): 64, row remap failed"),
        (40, "NVRM: Xid (PCI:0000:19:00): 171, DRAM"),
        (
            41,
            "NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        ),
    ]);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].code, 48);
    assert!(out[0].do_now.contains("power-cycle"), "{}", out[0].do_now);
    assert!(out[0].do_now.contains("restart the machine"), "{}", out[0].do_now);
}

/// Case E13.
#[test]
fn a_lost_gpu_with_quiet_aer_says_that_aer_was_quiet_and_guesses_nothing() {
    let out = records(&[
        (50, "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        (
            50,
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        ),
    ]);
    let text = show(&out[0]);
    assert_eq!((out.len(), out[0].code), (1, 79));
    assert!(text.contains("PCIe AER reports: none in the 10 s before"), "{text}");
    for wrong in ["heat", "thermal", "signal integrity"] {
        assert!(!text.contains(wrong), "{wrong}: {text}");
    }
}

/// Case E15: the recorded log.
#[test]
fn the_recorded_burst_is_one_application_event_and_the_oom_kills_are_not_part_of_it() {
    let text = include_str!("../../../../tests/data/kernel-logs/xid-13-burst.dmesg-iso.txt");
    let found = saved::read(text.lines(), &mut joiner());
    assert_eq!(found.reports, 17);
    assert_eq!(found.records.len(), 1);
    let r = &found.records[0];
    assert_eq!((r.code, r.codes[&13].count(), r.codes[&43].count()), (13, 16, 1));
    assert_eq!(r.action, "restart_app");
    assert_eq!(r.pci.as_deref(), Some("0000:38:00.0"));
    assert_eq!(r.at.realtime_ns, 1_737_434_504_283_302_000);
    let who = r.who.as_ref().expect("the 43 names it");
    assert_eq!((who.pid, who.name.as_deref()), (Some(2_924_364), Some("pt_main_thread")));
    assert!(!show(r).contains("oom"), "{}", show(r));
}

/// Case E19, first half: the burst on the root port.
#[test]
fn a_burst_of_corrected_link_errors_is_one_line_before_the_event() {
    let mut lines: Vec<(u64, String)> = (0..300)
        .map(|_| (100, "pcieport 0000:00:03.0: AER: Corrected error received: 0000:03:00.0".to_owned()))
        .collect();
    lines.push((102, "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.".to_owned()));
    let lines: Vec<(u64, &str)> = lines.iter().map(|(s, t)| (*s, t.as_str())).collect();
    let out = records(&lines);
    assert_eq!(out[0].before.len(), 1);
    assert_eq!((out[0].before[0].count, out[0].before[0].device.as_deref()), (300, Some("0000:00:03.0")));
}

#[test]
fn instances_of_one_gpu_are_different_machines_and_a_report_without_one_joins_what_is_open() {
    let out = records(&[
        (10, "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No"),
        (11, "NVRM: Xid (PCI:0000:01:00 GPU-I:03): 94, pid=8000, Contained: CE User Channel (0x9). RST: No"),
        (12, "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=7194, name=a, Ch 8"),
    ]);
    let of = |instance| out.iter().find(|r| r.gpu_instance == Some(instance)).expect("its own record");
    assert_eq!(out.len(), 2, "{out:#?}");
    assert_eq!(of(5).folded().collect::<Vec<_>>(), [(43, 1)]);
    assert_eq!(of(3).folded().count(), 0, "another tenant's consequence is not this one's");
    assert_ne!(of(5).id, of(3).id);
    assert_eq!(of(3).who.as_ref().and_then(|w| w.pid), Some(8000));
    let whole = records(&[
        (10, "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained"),
        (
            11,
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        ),
    ]);
    assert_eq!(whole.len(), 1, "what the whole GPU asks for belongs to it: {whole:#?}");
}

#[test]
fn after_a_reset_the_driver_takes_its_demand_back_and_nobody_is_sent_there_again() {
    let out = records(&[
        (10, "NVRM: Xid (PCI:0000:3b:00): 95, pid=5, name=a, Uncontained ECC error"),
        (
            11,
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        ),
        (300, "NVRM: GPU at PCI:0000:3b:00: GPU-5c1e"),
        (
            301,
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        ),
    ]);
    assert_eq!(out.iter().map(|r| r.code).collect::<Vec<_>>(), [95, 154]);
    assert!(out[0].do_now.contains("The driver now asks: reset the GPU"), "{}", out[0].do_now);
    assert_eq!(out[1].action, "ignore");
    assert!(out[1].do_now.contains("takes back"), "{}", out[1].do_now);
}

#[test]
fn ten_gpus_of_reports_at_once_lose_none() {
    let mut j = joiner();
    for i in 0..10_000u64 {
        let pci = format!("0000:{:02x}:00.0", i % 10);
        j.report(&trace(i / 100, &pci, 31, "a"), &nobody);
        j.report(&trace(i / 100, &pci, 43, "a"), &nobody);
    }
    let out = j.end();
    assert_eq!(out.len(), 10);
    assert_eq!(out.iter().map(|r| r.codes[&31].count()).sum::<u64>(), 10_000);
}

/// The pair of an H200 (driver 580.159.04): the trace point's text is cut in the middle of the fault's type.
#[test]
fn a_cut_text_of_the_trace_point_gives_way_to_the_whole_one_of_the_log() {
    let whole = "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_4 faulted @ \
                 0x809a_cc000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ";
    let cut = format!("{}{}", &whole[..127], parse::CUT);
    assert!(cut.contains("of type F"), "as it was: {cut}");
    let mut j = joiner();
    j.report(&trace(0, PCI, 31, &cut), &nobody);
    let alone = j.end().remove(0).mmu.expect("an MMU fault");
    assert_eq!(
        (alone.address, alone.fault, alone.access),
        (Some(0x809a_cc00_0000), None, None),
        "nothing is guessed"
    );
    let mut j = joiner();
    j.report(&trace(0, PCI, 31, &cut), &nobody);
    j.report(&log(1, PCI, 31, &format!("pid=712, name=uvm_touch, {whole}")), &nobody);
    let record = j.end().remove(0);
    let mmu = record.mmu.as_ref().expect("an MMU fault");
    assert_eq!((mmu.fault.as_deref(), mmu.access.as_deref()), (Some("FAULT_PDE"), Some("read")));
    assert_eq!((record.message.as_str(), record.message_source.as_str()), (whole, "kernel log"));
    assert!(show(&record).contains("READ at 0x809acc000000, FAULT_PDE"), "{}", show(&record));
}

#[test]
fn the_seconds_before_tell_what_the_gpu_paged_and_quiet_is_said_too() {
    let mut j = joiner();
    j.set_coverage(["uvm", "nvme"].iter().map(|f| ((*f).to_owned(), Ok(()))).collect(), 0);
    let paged = |value| Rate {
        family: "uvm",
        device: Some("GPU-5c1e".into()),
        workload: None,
        what: "page migration to the GPU",
        value,
        unit: super::super::activity::Unit::BytesPerSecond,
    };
    for s in 1..=90_u64 {
        j.reading(at(s * 1000), SECOND, vec![paged(if s == 85 { 1.1e9 } else { 0.0 })]);
    }
    j.report(&trace(90_100, PCI, 31, MMU), &nobody);
    j.reading(at(91_000), SECOND, vec![paged(0.0)]);
    let record = j.tick(at(91_200)).remove(0);
    let shown = show(&record);
    assert!(
        shown.contains("-5.1 s  uvm GPU-5c1e page migration to the GPU 1.10 GB/s (usually 0)"),
        "{shown}"
    );
    assert!(shown.contains("NVMe timeouts, resets and unusual latency: none in the 10 s before"), "{shown}");
    // Complete half a minute later: what was told stays, though the readings are gone.
    for s in 92..=130_u64 {
        j.reading(at(s * 1000), SECOND, vec![paged(0.0)]);
    }
    let closed = j.end().pop().unwrap_or(record);
    assert!(show(&closed).contains("1.10 GB/s"), "{}", show(&closed));

    let mut quiet = joiner();
    quiet.set_coverage([("uvm".to_owned(), Ok(()))].into(), 0);
    quiet.reading(at(1000), SECOND, vec![paged(0.0)]);
    quiet.report(&trace(1500, PCI, 31, MMU), &nobody);
    let shown = show(&quiet.tick(at(3000)).remove(0));
    assert!(shown.contains("UVM page faults and migrations on this GPU: none in the 10 s before"), "{shown}");
}
