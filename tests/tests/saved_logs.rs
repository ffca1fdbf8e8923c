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

/// What `/var/log/kern.log`, `journalctl` and `dmesg -T` write: no year or no zone.
#[test]
fn a_log_without_a_year_or_a_zone_keeps_its_order_and_shows_its_own_times() {
    let xid = "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x";
    let log = format!(
        "Dec 31 23:59:50 node17 kernel: [ 9000.000001] {xid}\nDec 31 23:59:55 node17 kernel: {xid}\n\
         Jan  1 00:00:05 node17 kernel: {xid}\nJan  1 08:14:09 node17 kernel: {xid}\n"
    );
    let (ran, records) = explain(&log);
    let seen: Vec<(&str, u64)> = records
        .iter()
        .map(|r| (r["log_time"].as_str().expect("spelt"), r["codes"]["31"]["log"].as_u64().expect("counted")))
        .collect();
    assert_eq!(seen, [("Dec 31 23:59:50", 3), ("Jan  1 08:14:09", 1)], "{}", ran.stderr);
    assert_ne!(records[0]["id"], records[1]["id"]);
    let log = format!("[Mon Mar  2 08:14:09 2026] {xid}\n[Mon Mar  2 09:14:09 2026] {xid}\n");
    let text = binary::run(&["events", "explain", "-"], &log);
    for part in ["Mon Mar  2 08:14:09 2026  (saved log)", "Mon Mar  2 09:14:09 2026  (saved log)"] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let boot = binary::run(&["events", "explain", "-"], &format!("[   10.000000] {xid}\n"));
    assert!(boot.stdout.starts_with("[   10.000000]  (saved log)"), "1970 is no time: {}", boot.stdout);
}

#[test]
fn a_code_is_looked_up_and_an_unknown_one_is_not_made_up() {
    let ran = binary::run(&["events", "code", "79"], "");
    assert!(ran.code == 0 && ran.stdout.contains("restart the machine"), "{}{}", ran.stdout, ran.stderr);
    let ran = binary::run(&["events", "code", "43"], "");
    assert!(ran.stdout.contains("any other code"), "{}", ran.stdout);
    let ran = binary::run(&["events", "code", "--json"], "");
    let codes: Vec<Value> = ran.stdout.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert!(
        codes.len() > 50 && codes.iter().any(|c| c["xid"] == 64 && c["action"] == "reset_gpu"),
        "{}",
        ran.stdout
    );
    let ran = binary::run(&["events", "code", "9999"], "");
    assert!(ran.code == 1 && ran.stderr.contains("not in the catalogue"), "{}", ran.stderr);
}

#[test]
fn a_store_that_is_not_there_is_not_called_empty() {
    for words in
        [&["events", "list"][..], &["events", "list", "--since", "24h", "--json"], &["events", "show"]]
    {
        let ran = binary::run(&[words, &["--store", "/nonexistent/events"]].concat(), "");
        assert!(ran.code == 1 && ran.stdout.is_empty(), "{words:?}");
        assert!(
            ran.stderr.contains("no agent has kept events in it -> start one"),
            "{words:?}: {}",
            ran.stderr
        );
    }
    let empty = tempfile::tempdir().expect("a folder");
    let ran = binary::run(&["events", "list", "--store", &empty.path().display().to_string()], "");
    assert!(ran.code == 0 && ran.stderr.contains("no events in"), "{}", ran.stderr);
}

#[test]
fn a_packed_log_is_refused_and_not_called_quiet() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes, tool) in [
        ("kern.log.2.gz", &b"\x1f\x8b\x08\0\0\0"[..], "zcat"),
        ("kern.log.xz", b"\xfd7zXZ\0\0", "xzcat"),
        ("kern.log.zst", b"\x28\xb5\x2f\xfd\x04", "zstdcat"),
        ("system.journal", b"LPKSHHRH\0\0", "journalctl -k -o short-iso --file"),
    ] {
        let path = folder.path().join(name).display().to_string();
        std::fs::write(&path, bytes).expect("written");
        let ran = binary::run(&["events", "explain", &path], "");
        assert!(ran.code == 1 && ran.stdout.is_empty(), "{name}: {}", ran.stdout);
        assert!(ran.stderr.contains(&format!("{tool} {path} | glake events explain -")), "{}", ran.stderr);
    }
}
