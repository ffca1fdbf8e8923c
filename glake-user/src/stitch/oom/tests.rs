//! Messages of real reports (numbers as the reporters gave them), in the spelling of their torch.

use super::*;

fn new_style(asked: &str, total: &str, free: &str, own: &str, allocated: &str, idle: &str) -> String {
    format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total} \
         of which {free} is free. Including non-PyTorch memory, this process has {own} memory in use. Of the allocated \
         memory {allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated. If reserved but \
         unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
}

fn old_style(asked: &str, total: &str, allocated: &str, free: &str, reserved: &str) -> String {
    format!(
        "RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; {total} total capacity; {allocated} already \
         allocated; {free} free; {reserved} reserved in total by PyTorch) If reserved memory is >> allocated memory try \
         setting max_split_size_mb to avoid fragmentation."
    )
}

fn only(text: &str) -> Explanation {
    let messages = parse(text);
    assert_eq!(messages.len(), 1, "{messages:?}");
    explain(&messages[0])
}

fn gib(q: Option<Quantity>) -> f64 {
    (q.unwrap().bytes / f64::from(1 << 30) * 100.0).round() / 100.0
}

#[test]
fn real_reports_get_the_right_verdict() {
    use Verdict::{CannotTell, Impossible, NotFragmentation, ShortEvenStitched, Stitchable};
    let cases = [
        (new_style("35.60 GiB", "79.33 GiB", "26.16 GiB", "53.16 GiB", "11.97 GiB", "40.69 GiB"), Stitchable),
        (
            new_style("1.70 GiB", "6.00 GiB", "0 bytes", "5.23 GiB", "2.93 GiB", "2.30 GiB")
                .replace("capacity", "capacty"),
            Stitchable,
        ),
        (new_style("1.96 GiB", "79.18 GiB", "1.08 GiB", "78.09 GiB", "75.31 GiB", "1.83 GiB"), Stitchable),
        (old_style("64.00 MiB", "11.17 GiB", "2.60 GiB", "8.36 GiB", "2.62 GiB"), NotFragmentation),
        (
            new_style("20.00 MiB", "4.00 GiB", "2.35 GiB", "1.60 GiB", "825.00 MiB", "24.85 MiB"),
            NotFragmentation,
        ),
        (
            new_style("960.00 MiB", "23.99 GiB", "15.52 GiB", "8.40 GiB", "6.78 GiB", "76.00 MiB"),
            NotFragmentation,
        ),
        (old_style("1.69 GiB", "14.56 GiB", "649.97 MiB", "1.31 GiB", "1.01 GiB"), CannotTell),
        (new_style("124.68 GiB", "95.22 GiB", "51.23 GiB", "29.00 GiB", "25.50 GiB", "3.14 GiB"), Impossible),
        (
            new_style("9.00 GiB", "24.00 GiB", "1.00 GiB", "22.90 GiB", "20.00 GiB", "2.50 GiB"),
            ShortEvenStitched,
        ),
    ];
    for (text, verdict) in cases {
        assert_eq!(only(&text).verdict, verdict, "{text}");
    }
}

#[test]
fn spare_missing_and_foreign_memory_are_the_plain_sums() {
    let a02 = only(&new_style("35.60 GiB", "79.33 GiB", "26.16 GiB", "53.16 GiB", "11.97 GiB", "40.69 GiB"));
    assert_eq!((gib(a02.spare), gib(a02.other)), (31.25, 0.51));
    let a10 = only(&old_style("1.69 GiB", "14.56 GiB", "649.97 MiB", "1.31 GiB", "1.01 GiB"));
    assert_eq!((a10.spare, a10.missing, gib(a10.other)), (None, None, 12.24));
    assert!(a10.summary.contains("inside the rounding"), "{}", a10.summary);
    assert!(a10.remedies[0].contains("other processes"), "{:?}", a10.remedies);
    let short = only(&new_style("9.00 GiB", "24.00 GiB", "1.00 GiB", "22.90 GiB", "20.00 GiB", "2.50 GiB"));
    assert_eq!(gib(short.missing), 5.5);
    let a14 = only(&new_style("124.68 GiB", "95.22 GiB", "51.23 GiB", "29.00 GiB", "25.50 GiB", "3.14 GiB"));
    assert_eq!(gib(a14.missing), 29.46);
}

#[test]
fn numbers_equal_to_their_printed_digits_decide_nothing() {
    let equal = new_style("2.00 GiB", "24.00 GiB", "2.00 GiB", "22.00 GiB", "20.00 GiB", "1.00 GiB");
    assert_eq!(only(&equal).verdict, Verdict::CannotTell);
    // One more digit decides: 2,048.00 MiB is known to 5 KiB, the free memory is 10 MiB above.
    let clear = new_style("2048.00 MiB", "24.00 GiB", "2058.00 MiB", "22.00 GiB", "20.00 GiB", "1.00 GiB");
    assert_eq!(only(&clear).verdict, Verdict::NotFragmentation);
}

#[test]
fn other_processes_and_limits_are_read() {
    let text = "CUDA out of memory. Tried to allocate 124.68 GiB. GPU 3 has a total capacity of 95.22 GiB of which \
                51.23 GiB is free. Process 41 has 14.91 GiB memory in use. Process 42 has 29.07 GiB memory in use. Of \
                the allocated memory 25.50 GiB is allocated by PyTorch, with 1.50 GiB allocated in private pools (e.g., \
                CUDA Graphs), and 3.14 GiB is reserved by PyTorch but unallocated.";
    let e = only(text);
    assert_eq!(e.message.gpu, Some(3));
    assert_eq!(e.message.others.iter().map(|o| o.0).collect::<Vec<_>>(), [41, 42]);
    assert_eq!(gib(e.message.private), 1.5);
    assert!(e.remedies[0].contains("process 42 29.07 GiB"), "{:?}", e.remedies);
    let limited = "CUDA out of memory. Tried to allocate 5.00 GiB. GPU 0 has a total capacity of 79.33 GiB of which \
                   60.00 GiB is free. 10.00 GiB allowed; Of the allocated memory 6.00 GiB is allocated by PyTorch, and \
                   2.00 GiB is reserved by PyTorch but unallocated.";
    let e = only(limited);
    // 2 GiB below the limit and 2 GiB idle: the 60 GiB on the card are out of reach.
    assert_eq!((e.verdict, gib(e.missing)), (Verdict::ShortEvenStitched, 1.0));
    assert!(e.remedies[0].contains("limit of 10.00 GiB"), "{:?}", e.remedies);
}

#[test]
fn every_spelling_is_understood() {
    let hip = new_style("2.00 GiB", "64.00 GiB", "1.00 GiB", "60.0 GiB", "50.00 GiB", "9.00 GiB")
        .replace("CUDA out", "HIP out")
        .replace("PYTORCH_CUDA", "PYTORCH_HIP");
    let e = only(&hip);
    assert_eq!((e.message.vendor, e.verdict), (Vendor::Hip, Verdict::Stitchable));
    assert!(e.remedies[0].starts_with("PYTORCH_HIP_ALLOC_CONF="), "{:?}", e.remedies);
    assert!(!e.remedies.iter().any(|r| r.contains("glake exec")), "GLake does not run on ROCm");
    let newest = new_style("2.00 GiB", "64.00 GiB", "1.00 GiB", "60.0 GiB", "50.00 GiB", "9.00 GiB")
        .replace("PYTORCH_CUDA", "PYTORCH");
    assert!(only(&newest).remedies[0].starts_with("PYTORCH_ALLOC_CONF="));
    let ancient = "CUDA out of memory. Tried to allocate 196.00 MiB (GPU 0; 11.17 GiB total capacity; 10.69 GiB already \
                   allocated; 33.44 MiB free; 28.21 MiB cached)";
    assert_eq!(only(ancient).verdict, Verdict::ShortEvenStitched);
    let bytes = "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 8.00 GiB of which 0 \
                 bytes is free. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 3.00 KiB is reserved by \
                 PyTorch but unallocated.";
    assert_eq!(only(bytes).verdict, Verdict::Stitchable);
    let quoted = "`Tried to allocate 35.60 GiB … capacity 79.33 GiB of which 26.16 GiB is free … process has 53.16 GiB \
                  in use. Of the allocated memory 11.97 GiB is allocated by PyTorch, and 40.69 GiB is reserved but \
                  unallocated.`";
    assert_eq!(only(quoted).verdict, Verdict::Stitchable);
}

#[test]
fn a_log_gives_each_different_message_once() {
    let a = new_style("35.60 GiB", "79.33 GiB", "26.16 GiB", "53.16 GiB", "11.97 GiB", "40.69 GiB");
    let b = old_style("64.00 MiB", "11.17 GiB", "2.60 GiB", "8.36 GiB", "2.62 GiB");
    let wrapped =
        a.replace("GPU 0 has a", "GPU 0\n    has a").replace("capacity", "\u{1b}[31mcapacity\u{1b}[0m");
    let log = format!("step 12 loss 3.1\nTraceback:\n{a}\n[rank1]: {wrapped}\nretrying\n{b}\n");
    let found = parse(&log);
    assert_eq!(found.iter().map(|m| m.times).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(parse("loss 3.1, 12 MiB of data"), []);
}

#[test]
fn a_cache_of_nothing_allocated_is_emptied_first() {
    let e = only(&new_style("16.00 GiB", "24.00 GiB", "3.00 GiB", "20.60 GiB", "0 bytes", "20.00 GiB"));
    assert_eq!(e.verdict, Verdict::Stitchable);
    assert!(e.remedies[0].starts_with("torch.cuda.empty_cache()"), "{:?}", e.remedies);
}

#[test]
fn what_the_message_does_not_say_is_named() {
    let e = only("CUDA out of memory. Tried to allocate 2.00 GiB.");
    assert_eq!(e.verdict, Verdict::CannotTell);
    assert!(e.summary.contains("driver had free") && e.summary.contains("idle"), "{}", e.summary);
}

#[test]
fn two_peaks_give_their_ratio() {
    let p = peaks("max_memory_allocated: 1092 MiB, max_memory_reserved: 11302 MiB").unwrap();
    assert!((p.reserved.bytes / p.allocated.bytes - 10.35).abs() < 0.01);
    assert_eq!(peaks("reserved 3 GiB"), None);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(\\PC|[0-9., ]|Tried to allocate |GiB|MiB| free| allowed|\u{1b}|é){0,80}") {
        for m in parse(&text) {
            let e = explain(&m);
            proptest::prop_assert!(!e.summary.is_empty() && !e.remedies.is_empty());
        }
        peaks(&text);
    }

    /// Whatever true values the digits stand for, the verdict is theirs.
    #[test]
    fn a_verdict_holds_for_every_value_the_digits_allow(
        asked in 1u64..4000, free in 0u64..4000, idle in 0u64..4000,
        da in -0.49f64..0.49, df in -0.49f64..0.49, di in -0.49f64..0.49,
    ) {
        let cents = |n: u64| format!("{}.{:02} GiB", n / 100, n % 100);
        let text = new_style(&cents(asked), "96.00 GiB", &cents(free), "50.00 GiB", "10.00 GiB", &cents(idle));
        let e = only(&text);
        let (r, f, c) = (asked as f64 + da, (free as f64 + df).max(0.0), (idle as f64 + di).max(0.0));
        match e.verdict {
            Verdict::NotFragmentation => proptest::prop_assert!(r <= f),
            Verdict::Stitchable => proptest::prop_assert!(r > f && r <= f + c),
            Verdict::ShortEvenStitched => proptest::prop_assert!(r > f + c),
            Verdict::CannotTell => proptest::prop_assert!(
                asked.abs_diff(free) <= 1 || asked.abs_diff(free + idle) <= 2
            ),
            Verdict::Impossible => proptest::prop_assert!(false, "nothing here is above 96 GiB"),
        }
    }
}
