//! Files reach the device byte for byte, by every lane, whatever the offsets; and what goes wrong is said.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use glake::copy::lanes::{IoUring, Lane, Pread};
use glake::copy::room::Room;
use glake::copy::{Ring, Settings, Source, Span, read};
use glake::error::{Error, Kind};
use glake::gpu::{Call, Device, Stream};
use glake::standin::gpu::{Fault, HostGpu};
use glake_tests::copying::{host, on_disk, source};
use proptest::prelude::*;

const SETTINGS: Settings =
    Settings { lanes: 3, parts_per_lane: 2, limit: Duration::from_secs(30), after: None, relays: Vec::new() };

fn lanes(source: &Arc<Source>) -> Vec<Arc<dyn Lane>> {
    let source = || Arc::clone(source);
    vec![
        Arc::new(Pread { source: source(), direct: false }),
        Arc::new(Pread { source: source(), direct: true }),
        Arc::new(IoUring { source: source(), polled: false }),
    ]
}

fn bytes_at(device: &dyn Device, address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    device.read(Stream(0), address, &mut bytes).unwrap();
    bytes
}

fn copy(
    source: &Arc<Source>,
    spans: &[Span],
    device: &Arc<dyn Device>,
    ring: &Ring,
    lane: &Arc<dyn Lane>,
) -> Result<u64, Error> {
    read(source, spans, device, ring, lane, &SETTINGS, &mut |_| {}).map(|moved| moved.bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn every_lane_gives_the_bytes_that_pread_gives(
        size in 1_usize..3_000_000,
        raw in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0, 0_u64..700), 1..8),
        part in 0_u32..4, lag in prop::bool::ANY,
    ) {
        let folder = on_disk();
        let (source, bytes) = source(folder.path(), size);
        let device: Arc<dyn Device> = host(if lag { 3_000_000 } else { 0 });
        let ring = Ring::new(&*device, 6, 65_536 << part, None).unwrap();
        let room = Room::new(&device, 32 << 20).unwrap();
        let mut address = room.address();
        let spans: Vec<Span> = raw.iter().map(|(from, share, gap)| {
            let offset = (from * size as f64) as u64;
            let span = Span { offset, size: (share * (size as u64 - offset) as f64) as u64, address };
            address += span.size + gap;
            span
        }).collect();
        for lane in lanes(&source) {
            device.fill(Stream(0), room.address(), 32 << 20, 0xA5).unwrap();
            device.synchronize(Stream(0)).unwrap();
            let moved = copy(&source, &spans, &device, &ring, &lane).unwrap();
            prop_assert_eq!(moved, spans.iter().map(|s| s.size).sum::<u64>());
            for s in &spans {
                let wanted = &bytes[s.offset as usize..(s.offset + s.size) as usize];
                let seen = bytes_at(&*device, s.address, s.size as usize + 1);
                prop_assert!(&seen[..wanted.len()] == wanted, "{} gave other bytes for {:?}", lane.name(), s);
            }
            prop_assert_eq!(ring.lend(100).map(|parts| { let n = parts.len(); ring.give(parts, 0); n }).unwrap(), 6);
        }
    }
}

fn whole(source: &Source, address: u64) -> [Span; 1] {
    [Span { offset: 0, size: source.size(), address }]
}

/// One copy of a whole file of `size` bytes, with something done to the file or the device before.
fn broken(size: usize, lane: usize, breaks: impl FnOnce(&Path, &HostGpu)) -> (Error, usize) {
    let folder = on_disk();
    let (source, _) = source(folder.path(), size);
    let gpu = host(0);
    let device: Arc<dyn Device> = gpu.clone();
    let ring = Ring::new(&*device, 6, 1 << 20, None).unwrap();
    let room = Room::new(&device, size as u64).unwrap();
    breaks(source.path(), &gpu);
    let lane = &lanes(&source)[lane];
    let error = copy(&source, &whole(&source, room.address()), &device, &ring, lane).unwrap_err();
    (error, ring.lend(100).map_or(0, |parts| parts.len()))
}

#[test]
fn a_file_cut_under_us_is_an_error_that_says_where_it_ended() {
    for lane in 0..3 {
        let cut = |path: &Path, _: &HostGpu| {
            File::options().write(true).open(path).unwrap().set_len(5_000_001).unwrap()
        };
        let (e, parts) = broken(9_000_000, lane, cut);
        assert_eq!(e.kind(), Kind::BadInput, "lane {lane}: {}", e.chain());
        assert!(e.chain().contains("ended at byte") && e.chain().contains("copy it again"), "{}", e.chain());
        assert_eq!(parts, 6, "lane {lane}");
    }
}

#[test]
fn a_file_written_to_under_us_is_an_error_though_every_read_went_well() {
    for lane in 0..3 {
        let write = |path: &Path, _: &HostGpu| {
            std::thread::sleep(Duration::from_millis(20));
            std::os::unix::fs::FileExt::write_at(&File::options().write(true).open(path).unwrap(), b"x", 7)
                .unwrap();
        };
        let (e, _) = broken(100_000, lane, write);
        assert!(e.chain().contains("written to while it was read"), "{}", e.chain());
    }
}

#[test]
fn a_growing_file_gives_no_mixture_either() {
    let grow = |path: &Path, _: &HostGpu| {
        File::options().append(true).open(path).unwrap().write_all(b"more").unwrap();
    };
    let (e, _) = broken(100_000, 0, grow);
    assert!(e.chain().contains("changed from 100000 to 100004 bytes"), "{}", e.chain());
}

#[test]
fn a_device_lost_in_the_middle_ends_the_copy_with_the_devices_word() {
    for lane in 0..3 {
        let lose = |_: &Path, gpu: &HostGpu| {
            gpu.inject(Fault { call: Call::Record, after: 9, times: 1, kind: Kind::Device });
        };
        let (e, _) = broken(60_000_000, lane, lose);
        assert_eq!(e.kind(), Kind::Device, "lane {lane}: {}", e.chain());
    }
}

#[test]
fn a_copy_that_takes_too_long_ends_in_time() {
    let folder = on_disk();
    let (source, _) = source(folder.path(), 8_000_000);
    let device: Arc<dyn Device> = host(0);
    let ring = Ring::new(&*device, 2, 1 << 20, None).unwrap();
    let room = Room::new(&device, source.size()).unwrap();
    let settings = Settings { limit: Duration::ZERO, ..SETTINGS };
    for lane in lanes(&source) {
        let begun = std::time::Instant::now();
        let copied =
            read(&source, &whole(&source, room.address()), &device, &ring, &lane, &settings, &mut |_| {});
        assert_eq!(copied.unwrap_err().kind(), Kind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_ring_in_use_is_an_error_that_says_so_and_the_next_copy_works() {
    let folder = on_disk();
    let (source, bytes) = source(folder.path(), 3_000_000);
    let device: Arc<dyn Device> = host(0);
    let ring = Ring::new(&*device, 2, 1 << 20, None).unwrap();
    let room = Room::new(&device, source.size()).unwrap();
    let lane = &lanes(&source)[0];
    let taken = ring.lend(2).unwrap();
    let e = copy(&source, &whole(&source, room.address()), &device, &ring, lane).unwrap_err();
    assert_eq!(e.kind(), Kind::Exhausted);
    assert!(e.to_string().contains("all 2 parts"), "{e}");
    ring.give(taken, 0);
    copy(&source, &whole(&source, room.address()), &device, &ring, lane).unwrap();
    assert!(bytes_at(&*device, room.address(), bytes.len()) == bytes);
}

#[test]
fn holes_of_a_sparse_file_arrive_as_zeros() {
    let folder = on_disk();
    let path = folder.path().join("sparse");
    let sparse = File::create(&path).unwrap();
    sparse.set_len(5_000_000).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"glake", 3_000_000).unwrap();
    let source = Arc::new(Source::open(&path).unwrap());
    let device: Arc<dyn Device> = host(0);
    let ring = Ring::new(&*device, 6, 1 << 20, None).unwrap();
    let room = Room::new(&device, source.size()).unwrap();
    for lane in lanes(&source) {
        device.fill(Stream(0), room.address(), 5_000_000, 1).unwrap();
        copy(&source, &whole(&source, room.address()), &device, &ring, &lane).unwrap();
        let seen = bytes_at(&*device, room.address(), 5_000_000);
        assert_eq!(&seen[3_000_000..3_000_005], b"glake");
        assert!(seen[..3_000_000].iter().all(|b| *b == 0), "{}", lane.name());
    }
}

#[test]
fn the_devices_earlier_work_on_the_memory_is_over_before_the_copy_writes_it() {
    let folder = on_disk();
    let (source, bytes) = source(folder.path(), 300_000);
    let device: Arc<dyn Device> = host(50_000_000);
    let ring = Ring::new(&*device, 2, 1 << 20, None).unwrap();
    let room = Room::new(&device, source.size()).unwrap();
    let stream = device.create_stream().unwrap();
    device.fill(stream, room.address(), 300_000, 9).unwrap();
    let settings = Settings { after: Some(stream), ..SETTINGS };
    let spans = whole(&source, room.address());
    read(&source, &spans, &device, &ring, &lanes(&source)[0], &settings, &mut |_| {}).unwrap();
    device.synchronize(stream).unwrap();
    assert!(bytes_at(&*device, room.address(), bytes.len()) == bytes, "the fill came after the copy");
}

#[test]
fn a_file_system_without_direct_reads_is_named_and_the_page_cache_serves() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return println!("skipped: no /dev/shm") };
    let (source, bytes) = source(folder.path(), 300_000);
    let device: Arc<dyn Device> = host(0);
    let ring = Ring::new(&*device, 6, 1 << 20, None).unwrap();
    let room = Room::new(&device, source.size()).unwrap();
    if let Err(e) = (IoUring { source: Arc::clone(&source), polled: false }).probe() {
        assert!(e.to_string().contains("O_DIRECT") || e.kind() == Kind::Io, "{}", e.chain());
    }
    for lane in lanes(&source) {
        copy(&source, &whole(&source, room.address()), &device, &ring, &lane).unwrap();
        assert!(bytes_at(&*device, room.address(), bytes.len()) == bytes, "{}", lane.name());
    }
}
