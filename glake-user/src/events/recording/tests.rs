use super::*;
use crate::events::event::{Event, What};
use crate::events::heaps::{HeapProcess, Heaps};
use crate::events::sample::*;
use crate::events::source::Source;
use proptest::prelude::*;
use std::io::Cursor;

fn sample(second: u64, bytes: u64) -> Sample {
    let at = Stamp { monotonic_ns: second * 1_000_000_000, realtime_ns: 1_700_000_000_000_000_000 + second };
    let write = BlockOperation {
        operation: Operation::Write,
        completed: bytes / 4096,
        bytes,
        errors: 0,
        queue: None,
        device: Some(Histogram { slots: vec![0, 3, bytes], sum_ns: u64::MAX - bytes }),
    };
    let owner = Owner::Task { tgid: 7, comm: "secret-trainer".into(), cgroup: 3 };
    let io =
        OwnerDeviceIo { device: "vda".into(), operation: Operation::Write, completed: 1, bytes, wait_ns: 5 };
    Sample {
        at,
        block: Some(vec![BlockDevice {
            device: "vda".into(),
            operations: vec![write],
            ..Default::default()
        }]),
        owners: Some(vec![OwnerIo { owner, cgroup_path: Some("/kube/secret".into()), io: vec![io] }]),
        ..Default::default()
    }
}

fn xid(second: u64) -> Event {
    Event {
        at: sample(second, 0).at,
        clock_error_ns: 5,
        source: "kernel log".into(),
        what: What::Xid {
            pci: "0000:19:00.0".into(),
            nvswitch: false,
            code: 31,
            message: "pid=12, name=secret-trainer, MMU Fault".into(),
        },
    }
}

fn record(samples: &[Sample]) -> Vec<u8> {
    let mut w = Writer::new(Vec::new(), &Header::default()).unwrap();
    samples.iter().for_each(|s| w.sample(s).unwrap());
    w.finish().unwrap()
}

/// All entries and warnings.
fn play(bytes: &[u8]) -> (Vec<Entry>, Vec<String>) {
    let mut r = Reader::new(Cursor::new(bytes)).unwrap();
    let mut entries = Vec::new();
    while let Some(e) = r.next_entry().unwrap() {
        entries.push(e);
    }
    (entries, r.take_warnings())
}

fn samples_of(entries: &[Entry]) -> Vec<Sample> {
    entries.iter().filter_map(|e| if let Entry::Sample(s) = e { Some((**s).clone()) } else { None }).collect()
}

/// Samples over three keyframes and many blocks.
fn long() -> Vec<Sample> {
    (0..150).map(|s| sample(s, s * s * 4096)).collect()
}

/// Where each block of a file begins.
fn blocks(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() - 4).filter(|i| bytes[*i..*i + 4] == BLOCK_MAGIC).collect()
}

#[test]
fn what_was_recorded_comes_back_in_order() {
    let header =
        Header { glake: "0.1.0".into(), host: serde_json::json!({"kernel": "6.18"}), ..Default::default() };
    let gap = Gap { at: sample(2, 0).at, samples: 3, reason: "late".into() };
    let mut w = Writer::new(Vec::new(), &header).unwrap();
    w.sample(&sample(1, 5)).unwrap();
    w.event(&xid(2)).unwrap();
    w.gap(&gap).unwrap();
    w.sample(&sample(3, 4)).unwrap();
    let bytes = w.finish().unwrap();

    assert_eq!(Reader::new(Cursor::new(&bytes)).unwrap().header(), &header);
    let (entries, warnings) = play(&bytes);
    let (one, three) = (Entry::Sample(Box::new(sample(1, 5))), Entry::Sample(Box::new(sample(3, 4))));
    assert_eq!(entries, [one, Entry::Event(xid(2)), Entry::Gap(gap), three]);
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn the_same_readings_make_the_same_bytes() {
    assert_eq!(record(&long()), record(&long()));
}

#[test]
fn a_truncated_tail_costs_only_itself() {
    let all = long();
    let bytes = record(&all);
    let last_block = *blocks(&bytes).last().unwrap();
    for cut in [last_block + 1, last_block + 11, last_block + 13, bytes.len() - 1] {
        let (entries, warnings) = play(&bytes[..cut]);
        let got = samples_of(&entries);
        assert!(got.len() >= all.len() - 5, "{} of {}", got.len(), all.len());
        assert_eq!(got, all[..got.len()]);
        assert!(warnings[0].contains("ends within a block"), "{warnings:?}");
    }
    let (entries, warnings) = play(&bytes[..last_block]);
    assert!(samples_of(&entries).len() < all.len() && warnings.is_empty());
}

#[test]
fn a_damaged_block_costs_itself_and_the_samples_that_stand_on_it() {
    let all = long();
    let mut bytes = record(&all);
    let second = blocks(&bytes)[1];
    bytes[second + 20] ^= 0xff;
    let (entries, warnings) = play(&bytes);
    let got = samples_of(&entries);
    // Keyframes are at 0, 60 and 120 s: the second block begins within the first minute.
    assert!(got.iter().any(|s| s == &all[0]) && got.ends_with(&all[60..]), "{} samples", got.len());
    assert!(got.len() < all.len());
    assert!(warnings.iter().any(|w| w.contains("lost to damage")), "{warnings:?}");
}

#[test]
fn after_bytes_that_are_no_block_the_next_one_is_found() {
    let all = long();
    let bytes = record(&all);
    let places = blocks(&bytes);
    let (before, after) = bytes.split_at(places[3]);
    for junk in [&b"x"[..], b"GLk", &[0; 1000]] {
        let (entries, warnings) = play(&[before, junk, after].concat());
        assert!(samples_of(&entries).ends_with(&all[60..]));
        assert!(warnings[0].contains("no block"), "{warnings:?}");
    }
}

#[test]
fn a_block_cut_out_is_noticed_and_no_difference_is_put_on_the_wrong_sample() {
    let all = long();
    let bytes = record(&all);
    let places = blocks(&bytes);
    let (entries, _) = play(&[&bytes[..places[2]], &bytes[places[3]..]].concat());
    let got = samples_of(&entries);
    assert!(got.iter().all(|s| all.contains(s)) && got.len() < all.len());
}

#[test]
fn frames_of_a_later_version_are_skipped() {
    let mut w = Writer::new(Vec::new(), &Header::default()).unwrap();
    w.sample(&sample(1, 1)).unwrap();
    w.frame(999, 2, b"what will be").unwrap();
    w.sample(&sample(2, 2)).unwrap();
    let (entries, warnings) = play(&w.finish().unwrap());
    assert_eq!(samples_of(&entries), [sample(1, 1), sample(2, 2)]);
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn a_newer_layout_is_refused_with_words() {
    let mut bytes = record(&[]);
    bytes[8] = 9;
    let error = Reader::new(Cursor::new(&bytes)).err().unwrap();
    assert_eq!(error.kind(), crate::error::Kind::Unsupported);
    assert!(error.chain().contains("schema 9"), "{}", error.chain());
}

#[test]
fn a_file_that_is_no_recording_is_refused() {
    for bytes in [&b""[..], b"GLAKE", b"{\"json\": true}", &[0; 100]] {
        assert_eq!(Reader::new(Cursor::new(bytes)).err().unwrap().kind(), crate::error::Kind::BadInput);
    }
}

#[test]
fn a_block_that_claims_more_than_it_holds_takes_no_memory_for_it() {
    let bytes = record(&[sample(1, 1)]);
    let block = blocks(&bytes)[0];
    for (at, value) in [(4, u32::MAX), (8, u32::MAX), (8, MAX_BLOCK), (4, MAX_BLOCK)] {
        let mut bytes = bytes.clone();
        bytes[block + at..block + at + 4].copy_from_slice(&value.to_le_bytes());
        let (entries, warnings) = play(&bytes);
        assert!(entries.is_empty() && !warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn a_zstd_bomb_ends_at_the_size_its_block_admits() {
    let bomb = zstd::bulk::compress(&vec![0u8; 256 << 20], 1).unwrap();
    let mut bytes = record(&[]);
    bytes.extend(BLOCK_MAGIC);
    bytes.extend((bomb.len() as u32).to_le_bytes());
    bytes.extend(1000u32.to_le_bytes());
    bytes.extend(bomb);
    let (entries, warnings) = play(&bytes);
    assert!(entries.is_empty() && warnings[0].contains("cannot be decompressed"), "{warnings:?}");
}

#[test]
fn small_text_cannot_become_much_memory() {
    // 16 MiB of `{"":0},` would be 1.5 GB of B-tree nodes.
    let mut w = Writer::new(Vec::new(), &Header::default()).unwrap();
    let objects = format!("[{}0]", r#"{"":0},"#.repeat(300_000));
    let before = w.plain.len();
    assert!(w.frame(frame::KEYFRAME, 1, objects.as_bytes()).is_err());
    assert_eq!(w.plain.len(), before);
    assert!(delta::text_weight(objects.as_bytes()) > MAX_WEIGHT);
}

#[test]
fn a_reading_too_large_for_a_frame_is_a_gap_and_recording_goes_on() {
    let mut big = sample(1, 1);
    big.block = Some(vec![big.block.as_ref().unwrap()[0].clone(); 120_000]);
    let (entries, _) = play(&record(&[big, sample(2, 2)]));
    assert!(
        matches!(&entries[0], Entry::Gap(g) if g.samples == 1 && g.reason == "too_large"),
        "{:?}",
        entries[0]
    );
    assert_eq!(samples_of(&entries), [sample(2, 2)]);
}

#[test]
fn differences_are_smaller_than_readings() {
    let mut whole = Writer::new(Vec::new(), &Header::default()).unwrap();
    for s in long() {
        whole.last = None;
        whole.sample(&s).unwrap();
    }
    assert!(record(&long()).len() < whole.finish().unwrap().len());
}

#[test]
fn redaction_hides_names_and_keeps_who_is_who() {
    let mut redactor = Redactor::default();
    let mut a = sample(1, 1);
    let mut other = a.owners.as_ref().unwrap()[0].clone();
    other.owner = Owner::Task { tgid: 8, comm: "another".into(), cgroup: 3 };
    a.owners.as_mut().unwrap().push(other);
    let space = UvmSpace {
        comm: "secret".into(),
        cgroup_path: Some("/secret".into()),
        uuid: Some("GPU-secret".into()),
        ..UvmSpace::default()
    };
    let gpu = UvmGpu { uuid: Some("GPU-secret".into()), ..UvmGpu::default() };
    a.uvm = Some(Uvm { gpus: vec![gpu], spaces: vec![space] });
    let (comm, cgroup_path) = ("secret".to_owned(), Some("/secret".to_owned()));
    let process = HeapProcess { comm, cgroup_path, ..HeapProcess::default() };
    a.heaps = Some(Heaps { processes: vec![process], ..Heaps::default() });
    let (mut b, mut event) = (a.clone(), xid(2));
    redactor.sample(&mut a);
    redactor.sample(&mut b);
    redactor.event(&mut event);
    assert_eq!(a, b);
    let text = serde_json::to_string(&(a, event)).unwrap();
    assert!(!text.contains("secret") && !text.contains("another"), "{text}");
    assert!(
        text.contains("comm-1") && text.contains("comm-2") && text.contains("/cgroup-1/cgroup-2"),
        "{text}"
    );
}

#[test]
fn events_without_samples_do_not_pile_up_without_end() {
    let mut w = Writer::new(Vec::new(), &Header::default()).unwrap();
    for _ in 0..MAX_EVENTS + 10 {
        w.event(&xid(2)).unwrap();
    }
    let mut p = Playback::new(Reader::new(Cursor::new(w.finish().unwrap())).unwrap());
    assert!(p.next_sample().unwrap().is_none());
    assert_eq!(p.events().unwrap().len(), MAX_EVENTS);
    assert!(p.reader().take_warnings()[0].contains("10 events"));
}

#[test]
fn playback_is_a_source_with_the_events_before_each_sample() {
    let mut w = Writer::new(Vec::new(), &Header::default()).unwrap();
    w.sample(&sample(1, 1)).unwrap();
    w.event(&xid(2)).unwrap();
    w.sample(&sample(2, 2)).unwrap();
    let mut p = Playback::new(Reader::new(Cursor::new(w.finish().unwrap())).unwrap());
    assert_eq!((p.sample().unwrap(), p.events().unwrap()), (sample(1, 1), vec![]));
    assert_eq!((p.sample().unwrap(), p.events().unwrap()), (sample(2, 2), vec![xid(2)]));
    assert_eq!(p.sample().unwrap_err().kind(), crate::error::Kind::Missing);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_damage_gives_only_readings_that_were_recorded(
        place in 0usize..100_000, bits in 1u8.., cut in 0usize..2000, insert in proptest::collection::vec(any::<u8>(), 0..20)
    ) {
        let all = long();
        let mut bytes = record(&all);
        let place = place % bytes.len();
        bytes[place] ^= bits;
        bytes.splice(place..place, insert);
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        if let Ok(mut r) = Reader::new(Cursor::new(&bytes)) {
            while let Some(e) = r.next_entry().unwrap() {
                if let Entry::Sample(s) = e { prop_assert!(all.contains(&s)); }
            }
        }
    }

    #[test]
    fn random_bytes_after_a_good_header_are_an_answer(tail in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let mut bytes = record(&[]);
        bytes.extend(tail);
        let mut r = Reader::new(Cursor::new(&bytes)).unwrap();
        while r.next_entry().unwrap().is_some() {}
    }

    #[test]
    fn random_frames_are_an_answer(frames in proptest::collection::vec((0u16..6, any::<u64>(), "[\\[\\]{}\",:=o0-9]{0,40}"), 0..20)) {
        let mut w = Writer::new(Vec::new(), &Header::default()).unwrap();
        for (kind, t, payload) in frames { w.frame(kind, t, payload.as_bytes()).unwrap(); }
        let bytes = w.finish().unwrap();
        let mut r = Reader::new(Cursor::new(&bytes)).unwrap();
        while r.next_entry().unwrap().is_some() {}
    }
}
