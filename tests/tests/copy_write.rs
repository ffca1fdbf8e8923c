//! Device memory reaches files whole or not at all.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use glake::copy::room::Room;
use glake::copy::{Image, Ring, Settings, Span, write};
use glake::error::{Error, Kind};
use glake::gpu::{Call, Device, Stream};
use glake::standin::gpu::{Fault, HostGpu};
use glake_tests::copying::{host, on_disk, pattern};
use proptest::prelude::*;

const SETTINGS: Settings =
    Settings { lanes: 3, parts_per_lane: 2, limit: Duration::from_secs(30), after: None, relays: Vec::new() };

/// Device memory of `size` bytes that hold the pattern.
fn filled(device: &Arc<dyn Device>, size: usize) -> Room {
    let room = Room::new(device, size as u64).unwrap();
    device.write(Stream(0), room.address(), &pattern(size)).unwrap();
    room
}

/// The only name in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn save(device: &Arc<dyn Device>, path: &Path, image: Image, settings: &Settings) -> Result<u64, Error> {
    let ring = Ring::new(&**device, 6, 1 << 20, None).unwrap();
    let saved = write(path, image, device, &ring, settings, &mut |_| {}).map(|m| m.bytes);
    assert_eq!(ring.lend(100).unwrap().len() + ring.lost(), 6, "parts are given back or counted");
    saved
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_file_holds_the_header_and_every_range_in_order(
        header in 0_usize..9000, sizes in prop::collection::vec(0_u64..2_000_000, 0..6),
        lag in prop::bool::ANY, memory in prop::bool::ANY,
    ) {
        let folder = if memory { tempfile::tempdir_in("/dev/shm").unwrap() } else { on_disk() };
        let device: Arc<dyn Device> = host(if lag { 3_000_000 } else { 0 });
        let total: u64 = sizes.iter().sum();
        let room = filled(&device, 12_000_000);
        // Ranges in another order on the device than in the file.
        let mut offset = header as u64;
        let mut wanted = vec![0xEE; header];
        let mut at = room.address() + total;
        let spans: Vec<Span> = sizes.iter().map(|size| {
            at -= size;
            let span = Span { offset, size: *size, address: at };
            let from = (at - room.address()) as usize;
            wanted.extend_from_slice(&pattern(12_000_000)[from..from + *size as usize]);
            offset += size;
            span
        }).collect();
        let path = folder.path().join("saved");
        let image = Image { header: vec![0xEE; header], spans, size: wanted.len() as u64 };
        prop_assert_eq!(save(&device, &path, image, &SETTINGS).unwrap(), total);
        prop_assert!(std::fs::read(&path).unwrap() == wanted);
        prop_assert_eq!(names(folder.path()), ["saved"]);
    }
}

/// Saves over an older file with something broken; the older file must be as it was, and nothing else there.
fn broken(settings: &Settings, image: impl FnOnce(u64) -> Image, breaks: impl FnOnce(&HostGpu)) -> Error {
    let folder = on_disk();
    let path = folder.path().join("model");
    std::fs::write(&path, "the old one").unwrap();
    let gpu = host(0);
    let device: Arc<dyn Device> = gpu.clone();
    let room = filled(&device, 9_000_000);
    breaks(&gpu);
    let error = save(&device, &path, image(room.address()), settings).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"the old one", "{}", error.chain());
    assert_eq!(names(folder.path()), ["model"], "{}", error.chain());
    error
}

fn whole(address: u64) -> Image {
    Image { header: vec![1; 8], spans: vec![Span { offset: 8, size: 9_000_000, address }], size: 9_000_008 }
}

#[test]
fn a_device_lost_in_the_middle_leaves_the_old_file() {
    let lose =
        |gpu: &HostGpu| gpu.inject(Fault { call: Call::Record, after: 6, times: 1, kind: Kind::Device });
    assert_eq!(broken(&SETTINGS, whole, lose).kind(), Kind::Device);
}

#[test]
fn a_save_that_takes_too_long_leaves_the_old_file() {
    let settings = Settings { limit: Duration::ZERO, ..SETTINGS };
    assert_eq!(broken(&settings, whole, |_| {}).kind(), Kind::TimedOut);
}

#[test]
fn a_disk_without_room_is_said_before_anything_is_written_and_leaves_the_old_file() {
    // 8 TiB: no disk of a test machine has as many free.
    let huge = |address| Image {
        spans: vec![Span { offset: 8, size: (1 << 43) - 8, address }],
        size: 1 << 43,
        ..whole(address)
    };
    let e = broken(&SETTINGS, huge, |_| {});
    assert!(matches!(e.kind(), Kind::Exhausted | Kind::Io), "{}", e.chain());
    assert!(e.to_string().contains("making room"), "{e}");
}

#[test]
fn a_gap_between_ranges_is_refused_before_a_file_is_made() {
    let gap = |address| Image { size: 9_000_009, ..whole(address) };
    assert_eq!(broken(&SETTINGS, gap, |_| {}).kind(), Kind::Misuse);
}

#[test]
fn a_folder_that_is_not_there_or_may_not_be_written_is_named() {
    let device: Arc<dyn Device> = host(0);
    let room = filled(&device, 9_000_000);
    let e = save(&device, Path::new("/nonexistent/model"), whole(room.address()), &SETTINGS).unwrap_err();
    assert!(e.kind() == Kind::Missing && e.to_string().contains("/nonexistent/"), "{}", e.chain());
    let e = save(&device, Path::new("/"), whole(room.address()), &SETTINGS).unwrap_err();
    assert!(e.to_string().contains("names no file"), "{}", e.chain());
}

#[test]
fn the_devices_earlier_work_is_in_the_file() {
    let folder = on_disk();
    let device: Arc<dyn Device> = host(50_000_000);
    let room = filled(&device, 9_000_000);
    let stream = device.create_stream().unwrap();
    device.fill(stream, room.address(), 9_000_000, 7).unwrap();
    let settings = Settings { after: Some(stream), ..SETTINGS };
    let path = folder.path().join("model");
    save(&device, &path, whole(room.address()), &settings).unwrap();
    let mut byte = [0];
    File::open(&path).unwrap().read_at(&mut byte, 9_000_007).unwrap();
    assert_eq!(byte, [7]);
}
