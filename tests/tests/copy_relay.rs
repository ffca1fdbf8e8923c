//! Copies over a second GPU's link: the same bytes, no memory lost, and a relay that fails costs no wrong byte.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use glake::copy::lanes::{IoUring, Lane, Pread};
use glake::copy::room::Room;
use glake::copy::{Image, Moved, Relay, Ring, Settings, Source, Span, read, write};
use glake::error::{Error, Kind};
use glake::gpu::{Call, Device, Stream};
use glake::standin::gpu::{self, Fault, HostGpu};
use glake_tests::copying::{on_disk, pattern, source};
use proptest::prelude::*;

const PART: usize = 65_536;
const SLOTS: usize = 2;

/// GPUs that reach each other; the first is copied to.
fn host(count: usize, lag_ns: u64) -> Vec<Arc<HostGpu>> {
    let one = gpu::Settings { capacity: 64 << 20, lag_ns, ..gpu::Settings::default() };
    HostGpu::peers(&vec![one; count]).unwrap().into_iter().map(Arc::new).collect()
}

fn relays(gpus: &[Arc<HostGpu>]) -> Vec<Arc<Relay>> {
    let relay = |gpu: &Arc<HostGpu>| Relay::new(gpu.clone(), &*gpus[0], SLOTS, PART).unwrap();
    gpus[1..].iter().map(|gpu| Arc::new(relay(gpu))).collect()
}

fn settings(relays: &[Arc<Relay>]) -> Settings {
    let relays = relays.to_vec();
    Settings { lanes: 3, parts_per_lane: 4, limit: Duration::from_secs(30), after: None, relays }
}

/// Copies a whole file to a room of its own; what the room holds then.
fn copied(
    source: &Arc<Source>,
    gpus: &[Arc<HostGpu>],
    relays: &[Arc<Relay>],
) -> Result<(Moved, Vec<u8>), Error> {
    let device: Arc<dyn Device> = gpus[0].clone();
    let ring = Ring::new(&*device, 12, PART, None).unwrap();
    let room = Room::new(&device, source.size()).unwrap();
    let span = Span { offset: 0, size: source.size(), address: room.address() };
    let lane: Arc<dyn Lane> = Arc::new(Pread { source: source.clone(), direct: false });
    let moved = read(source, &[span], &device, &ring, &lane, &settings(relays), &mut |_| {})?;
    let mut bytes = vec![0; source.size() as usize];
    device.read(Stream(0), room.address(), &mut bytes).unwrap();
    Ok((moved, bytes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn every_lane_gives_the_same_bytes_over_other_gpus_too(
        size in 1_usize..3_000_000, peers in 1_usize..3, lag in prop::bool::ANY,
        raw in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0, 0_u64..700), 1..8),
    ) {
        let folder = on_disk();
        let (source, bytes) = source(folder.path(), size);
        let gpus = host(1 + peers, if lag { 3_000_000 } else { 0 });
        let relays = relays(&gpus);
        let device: Arc<dyn Device> = gpus[0].clone();
        let ring = Ring::new(&*device, 12, PART, None).unwrap();
        let room = Room::new(&device, 32 << 20).unwrap();
        let mut address = room.address();
        let spans: Vec<Span> = raw.iter().map(|(from, share, gap)| {
            let offset = (from * size as f64) as u64;
            let span = Span { offset, size: (share * (size as u64 - offset) as f64) as u64, address };
            address += span.size + gap;
            span
        }).collect();
        let lanes: [Arc<dyn Lane>; 2] = [
            Arc::new(Pread { source: source.clone(), direct: false }),
            Arc::new(IoUring { source: source.clone(), polled: false }),
        ];
        for lane in lanes {
            device.fill(Stream(0), room.address(), 32 << 20, 0xA5).unwrap();
            device.synchronize(Stream(0)).unwrap();
            let moved = read(&source, &spans, &device, &ring, &lane, &settings(&relays), &mut |_| {}).unwrap();
            prop_assert_eq!(moved.bytes, spans.iter().map(|s| s.size).sum::<u64>());
            for s in &spans {
                let wanted = &bytes[s.offset as usize..(s.offset + s.size) as usize];
                let mut seen = vec![0; wanted.len()];
                device.read(Stream(0), s.address, &mut seen).unwrap();
                prop_assert!(seen == wanted, "{} gave other bytes for {:?}", lane.name(), s);
            }
        }
        for gpu in &gpus {
            prop_assert_eq!(gpu.lost(), None);
        }
        drop(relays);
        prop_assert!(gpus[1..].iter().all(|gpu| gpu.held() == 0), "a relay keeps nothing");
    }
}

#[test]
fn a_file_larger_than_what_one_link_carries_at_a_time_goes_over_both() {
    let folder = on_disk();
    let (source, bytes) = source(folder.path(), 60 * PART + 17);
    let gpus = host(2, 0);
    let (moved, there) = copied(&source, &gpus, &relays(&gpus)).unwrap();
    assert!(there == bytes);
    assert!(moved.relayed > 0 && moved.relayed < moved.bytes, "{moved:?}");
}

#[test]
fn a_save_with_a_relay_at_hand_writes_the_same_file() {
    let folder = on_disk();
    let gpus = host(2, 1_000_000);
    let relays = relays(&gpus);
    let device: Arc<dyn Device> = gpus[0].clone();
    let bytes = pattern(40 * PART + 5);
    let room = Room::new(&device, bytes.len() as u64).unwrap();
    device.write(Stream(0), room.address(), &bytes).unwrap();
    let header = b"header".to_vec();
    let spans = vec![Span { offset: 6, size: bytes.len() as u64, address: room.address() }];
    let image = Image { size: 6 + bytes.len() as u64, header, spans };
    let ring = Ring::new(&*device, 12, PART, None).unwrap();
    let path = folder.path().join("saved");
    write(&path, image, &device, &ring, &settings(&relays), &mut |_| {}).unwrap();
    let saved = std::fs::read(&path).unwrap();
    assert!(saved[..6] == *b"header" && saved[6..] == bytes);
}

#[test]
fn a_relay_that_is_lost_from_the_start_leaves_the_own_link() {
    let folder = on_disk();
    let (source, bytes) = source(folder.path(), 30 * PART);
    let gpus = host(2, 0);
    let relays = relays(&gpus);
    gpus[1].inject(Fault { call: Call::Record, after: 0, times: u64::MAX, kind: Kind::Device });
    let (moved, there) = copied(&source, &gpus, &relays).unwrap();
    assert!(there == bytes && moved.relayed == 0, "{moved:?}");
}

#[test]
fn a_relay_lost_on_the_way_gives_an_error_that_names_it_or_the_right_bytes() {
    let mut seen = HashSet::new();
    for after in 0..24 {
        let folder = on_disk();
        let (source, bytes) = source(folder.path(), 60 * PART);
        let gpus = host(2, 0);
        let relays = relays(&gpus);
        gpus[1].inject(Fault { call: Call::Record, after, times: u64::MAX, kind: Kind::Device });
        match copied(&source, &gpus, &relays) {
            Ok((_, there)) => assert!(there == bytes, "after {after}"),
            Err(e) => {
                assert_eq!(e.kind(), Kind::Device, "{}", e.chain());
                seen.insert(e.chain().contains("GPU 1, which relays") || e.chain().contains("lost host GPU"));
            }
        }
        assert_eq!(gpus[0].lost(), None, "the target does not suffer");
    }
    assert!(!seen.contains(&false), "every error names its cause");
}

#[test]
fn a_gpu_that_is_no_peer_does_not_relay() {
    let (here, elsewhere) = (host(1, 0), host(2, 0));
    let error = Relay::new(elsewhere[1].clone(), &*here[0], SLOTS, PART).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{}", error.chain());
}

#[test]
fn memory_that_was_not_opened_to_the_relay_is_no_silent_loss() {
    let folder = on_disk();
    let (source, _) = source(folder.path(), 60 * PART);
    let gpus = host(2, 0);
    let device: Arc<dyn Device> = gpus[0].clone();
    // Access is given before the peer asked for it.
    let room = Room::new(&device, source.size()).unwrap();
    let relays = relays(&gpus);
    let ring = Ring::new(&*device, 12, PART, None).unwrap();
    let span = Span { offset: 0, size: source.size(), address: room.address() };
    let lane: Arc<dyn Lane> = Arc::new(Pread { source: source.clone(), direct: false });
    let error = read(&source, &[span], &device, &ring, &lane, &settings(&relays), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Device, "{}", error.chain());
    assert!(gpus[1].lost().unwrap().contains("has no access"), "as on a real GPU");
}
