//! `glake events explain`: saved kernel logs of many GPUs, of MIG, of resets, of a kernel that was hurt, and of garbage.

use glake_tests::binary::{self, Ran};
use serde_json::Value;

fn explain(log: &str) -> (Ran, Vec<Value>) {
    let ran = binary::run(&["events", "explain", "--json", "-"], log);
    let records = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    (ran, records)
}

/// Case G09.
#[test]
fn a_bad_page_from_the_managed_memory_module_is_told_from_a_saved_log() {
    let log = "[ 9000.000001] BUG: Bad page state in process python3  pfn:8c3f2a\n\
        [ 9000.000003] page:00000000a0 refcount:-1 mapcount:0 mapping:0000000000000000 index:0x0 pfn:0x8c3f2a\n\
        [ 9000.000005] Modules linked in: nvidia_uvm(OE) nvidia(OE) overlay\n\
        [ 9000.000007] CPU: 17 PID: 41873 Comm: python3 Tainted: P           OE      6.14.0\n\
        [ 9000.000009] Call Trace:\n[ 9000.000010]  <TASK>\n[ 9000.000011]  bad_page+0x76/0x120\n\
        [ 9000.000013]  uvm_hmm_devmem_free+0x5c/0x90 [nvidia_uvm]\n[ 9000.000015]  </TASK>\n";
    let (ran, _) = explain(log);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for part in [
        "memory corrupted",
        "python3 (pid 41873)",
        "uvm_hmm_devmem_free",
        "uvm_disable_hmm=1",
        "cause is not known",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let (ran, _) = explain(&log.replace(" [nvidia_uvm]", " [xfs]"));
    assert!(!ran.stderr.contains("corrupted"), "another module's page is not ours: {}", ran.stderr);
}

#[test]
fn ten_gpus_that_fail_at_once_are_ten_records_and_every_report_is_counted() {
    let mut log = String::new();
    for i in 0..5_000_u32 {
        let (gpu, micros) = (i % 10, i * 100);
        let head = format!(
            "[{:>5}.{:06}] NVRM: Xid (PCI:0000:{:02x}:00)",
            100 + micros / 1_000_000,
            micros % 1_000_000,
            0x10 + gpu
        );
        log.push_str(&format!("{head}: 31, pid={}, name=train, MMU Fault: ENGINE GRAPHICS\n", 100 + gpu));
        log.push_str(&format!("{head}: 43, pid={}, name=train, Ch 8\n", 100 + gpu));
    }
    let (ran, records) = explain(&log);
    assert_eq!((ran.code, records.len()), (0, 10), "{}", ran.stderr);
    assert!(ran.stderr.contains("10000 lines, 10000 reports"), "{}", ran.stderr);
    for record in &records {
        assert_eq!(record["codes"]["31"]["log"], 500, "{record}");
        assert_eq!(record["codes"]["43"]["log"], 500, "{record}");
        let pid = record["who"]["pid"].as_u64().expect("named");
        assert!(
            record["pci"].as_str().expect("told").contains(&format!(":{:02x}:", 0x10 + pid - 100)),
            "{record}"
        );
    }
}

#[test]
fn mig_instances_and_a_reset_are_told_apart_in_a_saved_log() {
    let log = "[  100.000000] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No\n\
        [  100.500000] NVRM: Xid (PCI:0000:01:00 GPU-I:03 GPU-CI:00): 31, pid=8000, name=b, MMU Fault: ENGINE GRAPHICS\n\
        [  101.000000] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n\
        [  400.000000] NVRM: GPU at PCI:0000:01:00: GPU-5c1e0000-0000-4000-8000-000000000001\n\
        [  401.000000] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n";
    let (ran, records) = explain(log);
    let seen: Vec<(u64, Value)> =
        records.iter().map(|r| (r["code"].as_u64().expect("a code"), r["gpu_instance"].clone())).collect();
    assert_eq!(seen, [(94, 5.into()), (31, 3.into()), (154, Value::Null)], "{}", ran.stderr);
    assert_eq!(records[2]["action"], "ignore", "{}", records[2]);
    assert_eq!(records[2]["UUID"], "GPU-5c1e0000-0000-4000-8000-000000000001", "as the log said");
}

#[test]
fn garbage_is_no_event_and_no_failure_and_what_stands_between_is_read() {
    let garbage = "\u{fffd}\u{0}NVRM: Xid (PCI:\nNVRM: Xid (PCI:zzzz:00:00): x, \nNVRM: Xid (PCI:0000:3b:00): 99999999999999, y\n\
        [99999999999999999999.000000] NVRM: Xid\nBUG: Bad page state in process \n[nvidia_uvm]\n";
    let log = format!("{garbage}[   10.000000] NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x\n{garbage}");
    let (ran, records) = explain(&log);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(records.iter().map(|r| r["code"].as_u64()).collect::<Vec<_>>(), [Some(31)], "{}", ran.stdout);
}
