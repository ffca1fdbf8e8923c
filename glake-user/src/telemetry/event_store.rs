//! A small append-only store of records on disk: bounded, checksummed, readable by older and newer versions.
//!
//! Two files in one folder: `events.log`, and `events.old`, which the first becomes when it is full. A frame is
//! `GLKE`, length, CRC32C of type and payload, type, payload (one JSON object). A damaged frame costs only itself: the
//! reader looks for the next frame whose checksum fits. Unknown types are skipped and counted.

use crate::error::{Error, Kind, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MARK: &[u8; 4] = b"GLKE";
const HEAD: usize = 13;
/// A record of a GPU event, as JSON.
pub const RECORD: u8 = 1;
/// Bytes of one payload: more is refused when writing and called damage when reading.
const LARGEST: usize = 1 << 20;
/// Bytes of both files together.
pub const DEFAULT_LIMIT: u64 = 16 << 20;
/// Where the agent keeps it.
pub const DEFAULT_FOLDER: &str = "/var/lib/glake/events";

/// The writer. One at a time: it holds a lock on the file.
#[derive(Debug)]
pub struct EventStore {
    folder: PathBuf,
    file: File,
    written: u64,
    limit: u64,
}

/// What reading found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Payloads of [`RECORD`] frames, oldest first.
    pub records: Vec<Vec<u8>>,
    /// Frames of types this version does not know.
    pub unknown: u64,
    /// Bytes that belong to no whole frame: a torn write or damage.
    pub damaged_bytes: u64,
}

impl EventStore {
    /// Opens the store in `folder`, made if it is missing. `limit` bounds both files together.
    ///
    /// # Errors
    /// `Denied` or `Io` when the folder cannot be written, `Misuse` when another process writes it.
    pub fn open(folder: &Path, limit: u64) -> Result<EventStore> {
        std::fs::create_dir_all(folder).map_err(|e| Error::os(format!("making {}", folder.display()), e))?;
        let file = open_log(folder)?;
        // A crash may have left half a frame: close it off, so that the next one starts at a boundary of its own.
        // Nothing needs to be cut away, because readers look for the mark.
        let written = file.metadata().map_err(|e| Error::os("reading the size of the event store", e))?.len();
        Ok(EventStore { folder: folder.to_owned(), file, written, limit: limit.max(64 << 10) })
    }

    /// Appends one payload and makes it durable.
    ///
    /// # Errors
    /// When the disk refuses; what was written before stays readable. `Misuse` for a payload over 1 MiB.
    pub fn append(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        if payload.len() > LARGEST {
            return Err(Error::new(
                Kind::Misuse,
                format!("an event of {} bytes: at most 1 MiB", payload.len()),
            ));
        }
        let frame = frame(kind, payload);
        if self.written + frame.len() as u64 > self.limit / 2 && self.written > 0 {
            self.rotate()?;
        }
        let doing = || format!("appending to {}", self.folder.join("events.log").display());
        self.file.write_all(&frame).map_err(|e| Error::os(doing(), e))?;
        self.file.sync_data().map_err(|e| Error::os(doing(), e))?;
        self.written += frame.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> Result<()> {
        let (from, to) = (self.folder.join("events.log"), self.folder.join("events.old"));
        std::fs::rename(&from, &to).map_err(|e| Error::os(format!("renaming {}", from.display()), e))?;
        self.file = open_log(&self.folder)?;
        self.written = 0;
        Ok(())
    }
}

fn open_log(folder: &Path) -> Result<File> {
    let path = folder.join("events.log");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        // Records name processes, workloads and addresses: not for everybody on the host.
        .mode(0o640)
        .open(&path)
        .map_err(|e| Error::os(format!("opening {}", path.display()), e))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Error::new(Kind::Misuse, format!("{} is being written by another glake", path.display()))
                .remedy("stop it, or give this one another folder"))
        }
        Err(e) => Err(Error::os(format!("locking {}", path.display()), e.into())),
    }
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + payload.len());
    out.extend_from_slice(MARK);
    // At most LARGEST, so it fits.
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&checksum(kind, payload).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(payload);
    out
}

/// Reads both files of `folder`. A missing folder is an empty store here.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn read(folder: &Path) -> Result<Found> {
    let mut found = Found::default();
    for name in ["events.old", "events.log"] {
        let path = folder.join(name);
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(mut file) => {
                file.read_to_end(&mut bytes)
                    .map_err(|e| Error::os(format!("reading {}", path.display()), e))?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(Error::os(format!("opening {}", path.display()), e)
                    .remedy("run as root, or as the user of the agent: events name processes"));
            }
            Err(e) => return Err(Error::os(format!("opening {}", path.display()), e)),
        }
        decode(&bytes, &mut found);
    }
    Ok(found)
}

/// Takes every whole frame out of `bytes`. Pure and total.
pub fn decode(bytes: &[u8], found: &mut Found) {
    let mut at = 0;
    while at < bytes.len() {
        match whole_frame(&bytes[at..]) {
            Some((kind, payload)) => {
                if kind == RECORD {
                    found.records.push(payload.to_vec());
                } else {
                    found.unknown += 1;
                }
                at += HEAD + payload.len();
            }
            None => {
                let skipped = next_mark(&bytes[at + 1..]).map_or(bytes.len() - at, |n| n + 1);
                found.damaged_bytes += skipped as u64;
                at += skipped;
            }
        }
    }
}

fn next_mark(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MARK.len()).position(|w| w == MARK)
}

fn whole_frame(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let head = bytes.get(..HEAD)?;
    if &head[..4] != MARK {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (len, sum, kind) = (word(4) as usize, word(8), head[12]);
    if len > LARGEST {
        return None;
    }
    let payload = bytes.get(HEAD..HEAD + len)?;
    (checksum(kind, payload) == sum).then_some((kind, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(found: &Found) -> Vec<String> {
        found.records.iter().map(|r| String::from_utf8_lossy(r).into_owned()).collect()
    }

    #[test]
    fn what_was_appended_is_read_back_after_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("made/by/it");
        for round in 0..2 {
            let mut store = EventStore::open(&folder, DEFAULT_LIMIT).expect("opens");
            store.append(RECORD, format!("{{\"n\":{round}}}").as_bytes()).expect("written");
        }
        let found = read(&folder).expect("readable");
        assert_eq!(text(&found), [r#"{"n":0}"#, r#"{"n":1}"#]);
        assert_eq!((found.unknown, found.damaged_bytes), (0, 0));
        assert_eq!(read(&dir.path().join("nowhere")).expect("no error"), Found::default());
    }

    #[test]
    fn records_are_not_for_everybody_on_the_host_before_and_after_rotation() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a folder");
        let mut store = EventStore::open(dir.path(), 64 << 10).expect("opened");
        (0..3).for_each(|_| store.append(RECORD, &[b'x'; 20 << 10]).expect("appended"));
        for name in ["events.log", "events.old"] {
            let mode = std::fs::metadata(dir.path().join(name)).expect("there").permissions().mode();
            assert_eq!(mode & 0o007, 0, "{name}: {mode:o}");
        }
    }

    #[test]
    fn a_second_writer_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = EventStore::open(dir.path(), DEFAULT_LIMIT).expect("opens");
        let error = EventStore::open(dir.path(), DEFAULT_LIMIT).expect_err("held");
        assert_eq!(error.kind(), Kind::Misuse);
        drop(first);
        EventStore::open(dir.path(), DEFAULT_LIMIT).expect("free again");
    }

    #[test]
    fn a_torn_last_write_costs_only_itself_and_the_next_one_is_readable() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut store = EventStore::open(dir.path(), DEFAULT_LIMIT).expect("opens");
        store.append(RECORD, b"one").expect("written");
        store.append(RECORD, b"two").expect("written");
        drop(store);
        let path = dir.path().join("events.log");
        let bytes = std::fs::read(&path).expect("read");
        std::fs::write(&path, &bytes[..bytes.len() - 2]).expect("torn");
        let mut store = EventStore::open(dir.path(), DEFAULT_LIMIT).expect("opens");
        store.append(RECORD, b"three").expect("written");
        let found = read(dir.path()).expect("readable");
        assert_eq!(text(&found), ["one", "three"]);
        assert_eq!(found.damaged_bytes as usize, HEAD + 1);
    }

    #[test]
    fn both_files_stay_within_the_limit_and_the_newest_survive() {
        let dir = tempfile::tempdir().expect("a folder");
        let limit = 64 << 10;
        let mut store = EventStore::open(dir.path(), limit).expect("opens");
        let pad = "x".repeat(990);
        for i in 0..200 {
            store.append(RECORD, format!("{i:04}{pad}").as_bytes()).expect("written");
        }
        let size: u64 = ["events.log", "events.old"]
            .iter()
            .map(|n| std::fs::metadata(dir.path().join(n)).map_or(0, |m| m.len()))
            .sum();
        assert!(size <= limit, "{size}");
        let kept = text(&read(dir.path()).expect("readable"));
        assert_eq!(&kept.last().expect("some")[..4], "0199");
        assert!(kept.len() > 30, "{}", kept.len());
        assert!(kept.windows(2).all(|w| w[0][..4] < w[1][..4]), "in order");
    }

    #[test]
    fn frames_of_a_newer_version_are_skipped_and_counted() {
        let mut bytes = frame(RECORD, b"old");
        bytes.extend(frame(77, b"from the future"));
        bytes.extend(frame(RECORD, b"new"));
        let mut found = Found::default();
        decode(&bytes, &mut found);
        assert_eq!((text(&found), found.unknown), (vec!["old".to_owned(), "new".to_owned()], 1));
    }

    proptest! {
        #[test]
        fn one_damaged_byte_costs_at_most_one_frame(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8),
            at in any::<proptest::sample::Index>(),
            flip in 1u8..,
        ) {
            let mut bytes: Vec<u8> = payloads.iter().flat_map(|p| frame(RECORD, p)).collect();
            let i = at.index(bytes.len());
            bytes[i] ^= flip;
            let mut found = Found::default();
            decode(&bytes, &mut found);
            let kept = found.records.iter().filter(|r| payloads.contains(r)).count();
            prop_assert!(kept + 1 >= payloads.len(), "{} of {}", kept, payloads.len());
        }

        #[test]
        fn any_bytes_are_read_to_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut found = Found::default();
            decode(&bytes, &mut found);
            let whole: u64 = found.records.iter().map(|r| (r.len() + HEAD) as u64).sum();
            prop_assert!(whole + found.damaged_bytes <= bytes.len() as u64);
        }
    }
}
