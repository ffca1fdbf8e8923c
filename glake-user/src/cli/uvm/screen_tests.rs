use super::*;
use crate::cli::uvm::json::summary_json;
use crate::events::uvm::entry::{Access, Entry, FatalReason};
use serde_json::{Value, json};

/// The pass measured on the H200: 12,699 faults in 51 batches, 33.5 MB on demand, 503 MB by prefetch.
fn measured() -> Report {
    let mut tally = Tally::default();
    for i in 0..12_699u32 {
        tally.add(&Entry::GpuFault {
            gpu: Processor(1),
            fault_type: 2,
            access: Access::Write,
            address: 0x7f12_4000_0000 + (u64::from(i) % 64) * (4 << 20),
            at: 0,
            gpu_at: 0,
            batch: i / 249,
            replayable: true,
            unit: 0,
            client: 0,
        });
    }
    for i in 0..49 {
        tally.add(&Entry::Replay { gpu: Processor(1), batch: i, at: 0, gpu_at: 0 });
    }
    for (source, target, cause, bytes) in [
        (0, 1, Cause::OnDemand, 33_566_720),
        (0, 1, Cause::Prefetch, 234_868_736),
        (1, 0, Cause::Prefetch, 268_435_456),
    ] {
        tally.add(&Entry::Migration {
            cause,
            source: Processor(source),
            target: Processor(target),
            source_node: None,
            target_node: None,
            address: 0,
            bytes,
            begin: 0,
            end: 0,
            gpu_begin: 0,
            gpu_end: 0,
        });
    }
    Report {
        pid: 41873,
        comm: "touch_managed".into(),
        driver: "580.159.04".into(),
        mask: super::super::mask::ALL,
        blind: Blind {
            before: Duration::from_millis(212),
            late_by: Some(Duration::from_micros(1400)),
            from_start: true,
        },
        watched: Duration::from_millis(1500),
        ended: true,
        tally,
        gpus: vec![Named {
            processor: Processor(1),
            uuid: "GPU-5c1e".into(),
            index: Some(0),
            pci: Some("0000:19:00.0".into()),
            model: Some("NVIDIA H200".into()),
        }],
        ..Report::default()
    }
}

#[test]
fn the_measured_pass_reads_as_it_was() {
    let text = summary(&measured());
    for part in [
        "Normal, not a hardware error.",
        "pid 41873  touch_managed   source: driver event queue V2 (driver 580.159.04)   dropped 0 of 12,751",
        "not watched: its first 212 ms, of which at most 1.40 ms with UVM open",
        " gpu 0  NVIDIA H200  0000:19:00.0  GPU-5c1e",
        "GPU page faults       12,699   in 51 batches (249 per batch), those the driver merged counted too",
        "replays                   49   fatal 0",
        "moved                512 MiB = 256 MiB to the GPU + 256 MiB back   3 migrations",
        "on demand         32.0 MiB    6 %  ##",
        "driver prefetch    480 MiB   94 %  ################################",
        "UVM eviction           0 B         GPU memory was never short",
        "cannot tell from this source",
        "HINT  94 % came by the driver's own prefetch and 6 % still faulted",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(!text.contains("DROPPED") && !text.contains("FATAL"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 170, "{line}");
    }
}

#[test]
fn numbers_that_were_not_watched_are_never_zero() {
    let mut r = measured();
    r.mask = super::super::mask::LIGHT;
    let text = summary(&r);
    assert!(text.contains("GPU page faults   not watched one by one"), "{text}");
    assert!(text.contains("moved             not watched"), "{text}");
    let json = summary_json(&r);
    assert_eq!(json["gpu_faults"], Value::Null);
    assert_eq!(json["moved_bytes"], Value::Null);
    assert_eq!(json["evictions"], Value::Null);
    assert_eq!(summary_json(&measured())["gpu_faults"], 12_699);
}

#[test]
fn dropped_events_are_told_by_type() {
    let mut r = measured();
    r.dropped = vec![("gpu-fault", 1234)];
    r.undecoded = 2;
    let text = summary(&r);
    assert!(text.contains("dropped 1,236 of"), "{text}");
    assert!(text.contains("DROPPED  1,234 gpu-fault events"), "{text}");
    assert_eq!(summary_json(&r)["dropped_by_event"]["gpu-fault"], 1234);
}

#[test]
fn a_fatal_fault_names_reason_address_and_where_to_look() {
    let mut r = measured();
    r.tally.add(&Entry::FatalFault {
        processor: Processor(1),
        fault_type: 1,
        access: Access::Read,
        reason: FatalReason::InvalidAddress,
        address: 0x7f3a_1c20_0000,
        at: 0,
    });
    let text = summary(&r);
    assert!(text.contains("on gpu 0: invalid_address"), "{text}");
    assert!(text.contains("read at 0x7f3a1c200000 by gpu 0"), "{text}");
}

#[test]
fn memory_that_goes_back_and_forth_is_called_so_and_oversubscription_is_not_mixed_with_it() {
    let hints_of = |moves: &[(u16, u16, Cause, u64)]| {
        let mut r = Report { mask: super::super::mask::ALL, ..Report::default() };
        for &(source, target, cause, bytes) in moves {
            r.tally.moved.insert((Processor(source), Processor(target), cause), Moved { count: 1, bytes });
        }
        hints(&r).join("\n")
    };
    let ping_pong = hints_of(&[(0, 1, Cause::OnDemand, 100), (1, 0, Cause::OnDemand, 90)]);
    assert!(ping_pong.contains("take turns"), "{ping_pong}");
    let short = hints_of(&[(0, 1, Cause::OnDemand, 100), (1, 0, Cause::Eviction, 90)]);
    assert!(short.contains("does not fit") && !short.contains("take turns"), "{short}");
    assert_eq!(hints_of(&[]), "");
}

#[test]
fn big_numbers_are_grouped() {
    assert_eq!(count(0), "0");
    assert_eq!(count(999), "999");
    assert_eq!(count(1000), "1,000");
    assert_eq!(count(12_699), "12,699");
    assert_eq!(count(1_234_567), "1,234,567");
}

#[test]
fn a_sample_says_of_how_much_and_how_to_estimate_the_whole() {
    let on = Some(Duration::from_millis(60));
    let report = Report { on, ..measured() };
    let text = summary(&report);
    assert!(text.contains("SAMPLED  events were on for 0.06 s of it (4.0 %)"), "{text}");
    assert!(text.contains("x 25 is a low estimate") && text.contains("--exact"), "{text}");
    assert_eq!(summary_json(&report)["events_on_share"], json!(0.04));
    assert!(text.contains("none while events were on") && !text.contains("never short"), "{text}");
    assert!(!summary(&measured()).contains("SAMPLED"), "everything was counted");
    assert_eq!(summary_json(&measured())["events_on_share"], Value::Null);
    let told = line(1, Duration::from_secs(1), &Line::default(), 0, on);
    assert!(told.contains("in 60 ms: pid 1"), "{told}");
}

#[test]
fn the_live_view_fits_the_terminal_and_shows_the_interval_and_all_so_far() {
    let now = Line { gpu_faults: 1234, batches: 5, eviction_bytes: 3 << 20, ..Line::default() };
    let frame = frame(&measured(), &now, (80, 24));
    let visible = frame.replace("\x1b[H", "").replace("\x1b[K", "").replace("\x1b[J", "");
    let lines: Vec<&str> = visible.lines().collect();
    assert!(lines.len() <= 23 && lines.iter().all(|l| l.chars().count() <= 80), "{visible}");
    assert!(!visible.contains('\x1b'), "{frame:?}");
    for part in
        ["GPU faults 1,234 in 5 batches", "evicted 3.00 MiB", "12,699", "driver prefetch", "address heat"]
    {
        assert!(visible.contains(part), "no {part:?} in:\n{visible}");
    }
    assert_eq!(super::frame(&measured(), &now, (0, 0)).matches("\r\n").count(), 1, "no room, no panic");
}
