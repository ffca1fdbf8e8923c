//! Snapshots as users have them, and files that are none.

use std::path::PathBuf;

use super::*;
use crate::error::Kind;
use crate::stitch::trace::What;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

fn fixture(name: &str) -> Recording {
    read(&path(name), Limits::default()).unwrap()
}

/// A pickle of protocol 2 with two devices, private pools, two streams and an out-of-memory event.
fn small(protocol: u8) -> Vec<u8> {
    std::fs::read(path(&format!("snapshots/small-p{protocol}.pickle"))).unwrap()
}

#[test]
fn every_protocol_gives_the_same_recording() {
    let first = read_bytes(&small(0), Limits::default()).unwrap();
    assert_eq!(first.devices.len(), 2);
    for protocol in 1..=5 {
        assert_eq!(read_bytes(&small(protocol), Limits::default()).unwrap(), first, "protocol {protocol}");
    }
}

#[test]
fn packed_files_are_read_as_plain_ones() {
    let plain = small(4);
    let expected = read_bytes(&plain, Limits::default()).unwrap();
    let zst = zstd::encode_all(&plain[..], 3).unwrap();
    assert_eq!(read_bytes(&zst, Limits::default()).unwrap(), expected);
    let mut xz = Vec::new();
    std::io::Read::read_to_end(&mut liblzma::read::XzEncoder::new(&plain[..], 6), &mut xz).unwrap();
    assert_eq!(read_bytes(&xz, Limits::default()).unwrap(), expected);
    let gzip = [0x1f, 0x8b, 8, 0];
    let e = read_bytes(&gzip, Limits::default()).unwrap_err();
    assert!(e.chain().contains("gunzip"), "{}", e.chain());
}

#[test]
fn the_parts_of_a_snapshot_are_read() {
    let r = read_bytes(&small(4), Limits::default()).unwrap();
    let [a, b] = &r.devices[..] else { panic!("two devices") };
    assert_eq!((a.device, a.entries.len(), a.segments.len()), (0, 8, 2));
    assert_eq!((b.device, b.entries.len()), (1, 1));
    assert!(a.segments[1].private && !a.segments[0].private);
    assert_eq!(a.segments[0].blocks[1].state, BlockState::Pending);
    assert_eq!(r.settings.max_split_size, Some(128 << 20));
    assert_eq!(r.settings.expandable_segments, Some(false));
    assert_eq!(r.settings.roundup_power2_divisions, [(256, 4), (512, 8)]);
    assert_eq!(r.steps, [(0, 1_000_400)]);
    // torch's own lines say nothing; the program's line does.
    assert_eq!(r.site(a.entries[1].site).as_deref(), Some("forward (model.py:31) < main (train.py:7)"));
    let oom = a.entries.iter().find(|e| e.action == Action::Oom).unwrap();
    assert_eq!((oom.addr, oom.size), (777, 1 << 30));
    assert_eq!(r.notes, ["1 events of the unknown kind \"segment_dance\" were passed over"]);
}

#[test]
fn old_formats_are_read() {
    // 2023: no addresses of blocks, `history` with the size asked for, no trace.
    let r =
        read_bytes(&std::fs::read(path("snapshots/legacy-2023.pickle")).unwrap(), Limits::default()).unwrap();
    let blocks = &r.devices[0].segments[0].blocks;
    assert_eq!(blocks.iter().map(|b| b.address).collect::<Vec<_>>(), [0x7000, 0x7000 + (1 << 20)]);
    assert_eq!((blocks[0].requested, blocks[0].state), (1_000_000, BlockState::Allocated));
    // Older still: only the list of segments.
    let r =
        read_bytes(&std::fs::read(path("snapshots/legacy-list.pickle")).unwrap(), Limits::default()).unwrap();
    assert_eq!(r.devices[0].segments.len(), 1);
}

#[test]
fn a_pickle_that_imports_code_is_refused_by_name_and_place() {
    // What `pickle.dumps(os.system)` and friends write.
    let cases: [(&[u8], &str, u64); 6] = [
        (b"\x80\x02cos\nsystem\n.", "GLOBAL", 2),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL", 14),
        (b"\x80\x02N)R.", "REDUCE", 4),
        (b"\x80\x02Nb.", "BUILD", 3),
        (b"\x80\x02N)\x81.", "NEWOBJ", 4),
        (b"\x80\x02NQ.", "BINPERSID", 3),
    ];
    for (bytes, name, at) in cases {
        let e = read_bytes(bytes, Limits::default()).unwrap_err();
        assert_eq!(e.kind(), Kind::Denied, "{}", e.chain());
        assert!(e.chain().contains(&format!("byte {at} of the pickle: opcode {name} ")), "{}", e.chain());
    }
}

#[test]
fn lengths_that_lie_cost_no_memory() {
    for bytes in [
        &b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
        b"\x80\x04X\xff\xff\xff\xff",
        b"\x80\x04\x8b\xff\xff\xff\x7f",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        assert_eq!(read_bytes(bytes, Limits::default()).unwrap_err().kind(), Kind::BadInput);
    }
    // The memo takes any number, at the cost of one entry.
    let r = read_bytes(b"\x80\x04}r\xff\xff\xff\xff.", Limits::default());
    assert!(r.unwrap_err().chain().contains("segments"));
}

#[test]
fn deep_nesting_and_cycles_are_only_data() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(std::iter::repeat_n(b"](".as_slice(), 200_000).flatten());
    assert!(read_bytes(&deep, Limits::default()).is_ok_and(|r| r.devices.is_empty()));
    let cycle = b"\x80\x02]q\x00h\x00a.";
    assert!(read_bytes(cycle, Limits::default()).is_ok_and(|r| r.devices.is_empty()));
}

#[test]
fn a_truncated_file_gives_what_it_has() {
    let bytes = std::fs::read(path("snapshots/memory_forward_fp32_128.pickle")).unwrap();
    let whole = read_bytes(&bytes, Limits::default()).unwrap();
    assert_eq!(whole.coverage, Coverage::Whole);
    let cut = read_bytes(&bytes[..bytes.len() * 3 / 4], Limits::default()).unwrap();
    assert_eq!(cut.coverage, Coverage::Truncated(bytes.len() as u64 * 3 / 4));
    let (all, some) = (&whole.devices[0].entries, &cut.devices[0].entries);
    assert!(some.len() > all.len() / 4 && some.len() < all.len(), "{} of {}", some.len(), all.len());
    // The last entry may be half read; all before it are exact.
    assert_eq!(some[..some.len() - 1], all[..some.len() - 1]);
}

#[test]
fn memory_stays_within_the_limit_and_the_rest_is_named() {
    let bytes = std::fs::read(path("snapshots/memory_forward_fp32_128.pickle")).unwrap();
    let r = read_bytes(&bytes, Limits { memory: 500_000 }).unwrap();
    assert!(matches!(r.coverage, Coverage::OverBudget(at) if at < bytes.len() as u64), "{:?}", r.coverage);
    let used = r.devices.first().map_or(0, |d| d.entries.len());
    assert!(used > 100 && used < 2043, "{used}");
}

#[test]
fn the_state_before_the_first_event_is_found() {
    let r = fixture("snapshots/medium_256_training.pickle.xz");
    let run = Run::of(&r, &r.devices[0]);
    assert!(!run.complete && run.prelude > 0);
    assert_eq!(run.recorded.start, 9_265_217_536);
    let r = fixture("snapshots/train_varlen.pickle.xz");
    let run = Run::of(&r, &r.devices[0]);
    assert!(run.complete);
    assert_eq!((run.prelude, run.used, run.steps), (0, 121_209, 20));
}

#[test]
fn streams_private_pools_and_delayed_frees_become_events() {
    let r = read_bytes(&small(4), Limits::default()).unwrap();
    let run = Run::of(&r, &r.devices[0]);
    assert_eq!(run.streams.len(), 2);
    assert_eq!(run.private_peak, 4096);
    assert_eq!(run.recorded.ooms, 1);
    let delayed = run.events.iter().filter(|e| matches!(e.what, What::FreeRequested { .. })).count();
    assert_eq!(delayed, 1);
}

#[test]
fn rmm_stalloc_and_minimalloc_traces_are_read() {
    let rmm = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,10:00:00:000001,allocate,0x7f00,1000,0x0\n1,10:00:00:000002,allocate failure,0x0,99,0x0\n\
               1,10:00:00:500001,free,0x7f00,1000,0x0\n";
    let r = read_bytes(rmm.as_bytes(), Limits::default()).unwrap();
    let run = Run::of(&r, &r.devices[0]);
    assert_eq!((r.format, run.events.len(), run.span_ns()), (Format::Rmm, 2, 500_000_000));
    assert!(r.notes[0].contains("failed"), "{:?}", r.notes);
    let stalloc = "1 0x7f00 1000 0\n1 0x8f00 5 0x55aa\n0 0x7f00 1000 0\n";
    let r = read_bytes(stalloc.as_bytes(), Limits::default()).unwrap();
    let run = Run::of(&r, &r.devices[0]);
    assert_eq!((r.format, run.events.len(), run.streams.len(), run.timed), (Format::Stalloc, 3, 2, false));
    let r = fixture("alloc-traces/minimalloc-A.1048576.csv");
    let run = Run::of(&r, &r.devices[0]);
    assert_eq!(r.format, Format::Minimalloc);
    assert!(run.events.len() > 200 && run.complete);
}

#[test]
fn a_file_of_another_kind_is_named_with_its_place() {
    let e = read_bytes(b"hello\nworld\n", Limits::default()).unwrap_err();
    assert!(e.chain().contains("line 1 at byte 0") && e.chain().contains("hello"), "{}", e.chain());
    let e = read_bytes(b"Thread,Time,Action,Pointer,Size,Stream\n1,2\n", Limits::default()).unwrap_err();
    assert!(e.chain().contains("line 2 at byte 39"), "{}", e.chain());
    let e = read_bytes(b"\x80\x04}\x94\x8c\x01aK\x01s.", Limits::default()).unwrap_err();
    assert!(e.chain().contains("keys [\"a\"]"), "{}", e.chain());
    assert!(read_bytes(b"", Limits::default()).unwrap_err().chain().contains("empty"));
}

proptest::proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600)) {
        let _ = read_bytes(&bytes, Limits { memory: 1 << 20 });
        let mut pickle = vec![0x80, 4];
        pickle.extend(&bytes);
        let _ = read_bytes(&pickle, Limits { memory: 1 << 20 });
    }

    /// Flipped, cut and repeated bytes: whatever is read is played without a panic.
    #[test]
    fn mutated_snapshots_never_panic(
        protocol in 0u8..6,
        at in proptest::prelude::any::<proptest::sample::Index>(),
        to in proptest::prelude::any::<u8>(),
        cut in proptest::prelude::any::<proptest::sample::Index>(),
        keep in proptest::bool::weighted(0.7),
    ) {
        let mut bytes = small(protocol);
        let at = at.index(bytes.len());
        bytes[at] = to;
        if !keep {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(r) = read_bytes(&bytes, Limits { memory: 1 << 20 }) {
            for device in &r.devices {
                let run = Run::of(&r, device);
                let mut model = crate::stitch::model::Caching::at_start_of(&run, &r.settings, 1 << 40);
                let _ = crate::stitch::trace::play(&run.events, &mut model, &mut |_, _| {});
            }
        }
    }
}
