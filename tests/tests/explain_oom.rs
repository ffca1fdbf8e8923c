//! `glake explain-oom` on messages of real reports.

use glake_tests::binary::run;

/// Asked, capacity, free, allocated, idle; then the verdict and the spare (+) or missing (-) GiB.
const REPORTS: [(&str, [&str; 5], &str, f64); 6] = [
    (
        "video diffusion",
        ["35.60 GiB", "79.33 GiB", "26.16 GiB", "11.97 GiB", "40.69 GiB"],
        "stitchable",
        31.25,
    ),
    ("6 GB card", ["1.70 GiB", "6.00 GiB", "0 bytes", "2.93 GiB", "2.30 GiB"], "stitchable", 0.60),
    ("70B quantised", ["1.96 GiB", "79.18 GiB", "1.08 GiB", "75.31 GiB", "1.83 GiB"], "stitchable", 0.95),
    (
        "plenty free",
        ["20.00 MiB", "4.00 GiB", "2.35 GiB", "825.00 MiB", "24.85 MiB"],
        "not-fragmentation",
        2.33,
    ),
    (
        "one huge buffer",
        ["124.68 GiB", "95.22 GiB", "51.23 GiB", "25.50 GiB", "3.14 GiB"],
        "impossible",
        -29.46,
    ),
    (
        "full card",
        ["9.00 GiB", "24.00 GiB", "1.00 GiB", "20.00 GiB", "2.50 GiB"],
        "short-even-stitched",
        -5.5,
    ),
];

fn message([asked, total, free, allocated, idle]: [&str; 5]) -> String {
    format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacty of {total} of \
         which {free} is free. Including non-PyTorch memory, this process has 1.00 GiB memory in use. Of the allocated \
         memory {allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated."
    )
}

#[test]
fn each_report_gets_its_verdict_with_the_bytes() {
    for (name, numbers, verdict, gib) in REPORTS {
        let ran = run(&["explain-oom", "--json"], &message(numbers));
        let json = ran.json();
        assert_eq!((ran.code, &json["verdict"]), (0, &serde_json::json!(verdict)), "{name}");
        let key = if gib > 0.0 { "spare_bytes" } else { "missing_bytes" };
        let bytes = json[key].as_f64().unwrap_or(f64::NAN);
        assert!((bytes / f64::from(1 << 30) - gib.abs()).abs() < 0.006, "{name}: {bytes}");
        assert!(json["remedies"].as_array().is_some_and(|r| !r.is_empty()), "{name}");
    }
}

#[test]
fn the_screen_shows_sums_that_a_reader_can_check() {
    let ran = run(&["explain-oom", &message(REPORTS[0].1)], "");
    for part in
        ["STITCHABLE", "26.16 GiB", "40.69 GiB = 66.85 GiB", "31.25 GiB to spare", "expandable_segments:True"]
    {
        assert!(ran.stdout.contains(part), "{part} is missing in:\n{}", ran.stdout);
    }
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
fn a_log_without_a_message_is_an_error_with_a_remedy() {
    let ran = run(&["explain-oom", "-"], "step 1 loss 3.2\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("no out-of-memory message") && ran.stderr.contains("->"), "{}", ran.stderr);
}

#[test]
fn several_messages_are_each_answered() {
    let log = format!("{}\nretry\n{}\n", message(REPORTS[0].1), message(REPORTS[4].1));
    let json = run(&["explain-oom", "--json", "-"], &log).json();
    assert_eq!(json["messages"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["verdict"], "stitchable", "the first message is the cause");
}
