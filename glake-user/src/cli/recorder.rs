//! Recording into a file: made for its owner only, rotated at a size, names taken out where asked.

use crate::clock::{Clock, Stamp, SystemClock};
use crate::error::{Error, Kind, Result};
use crate::events::{
    event::Event,
    recording::{Clocks, Gap, Header, Redactor, Writer},
    sample::Sample,
};
use crate::host::inventory::Inventory;
use serde_json::Value;
use std::{
    fs::{File, OpenOptions},
    io::BufWriter,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// What the person asked for.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) path: PathBuf,
    /// Replace a file that is there.
    pub(super) overwrite: bool,
    /// Bytes on disk, in this file and the one before it together.
    pub(super) max_size: Option<u64>,
    pub(super) redact: bool,
    pub(super) interval: Duration,
}

/// A recording that is being made.
pub(super) struct Recorder {
    wish: Wish,
    writer: Writer<BufWriter<File>>,
    header: Header,
    redactor: Option<Redactor>,
    samples: u64,
    rotated: u64,
}

impl Recorder {
    /// Opens the file. The first sample's probes become the header's.
    ///
    /// # Errors
    /// When the file is there already or cannot be made.
    pub(super) fn create(wish: Wish, host: &Inventory, first: &Sample) -> Result<Recorder> {
        let mut redactor = wish.redact.then(Redactor::default);
        let header = Header {
            glake: env!("CARGO_PKG_VERSION").into(),
            redacted: wish.redact,
            interval_ns: u64::try_from(wish.interval.as_nanos()).unwrap_or(u64::MAX),
            clocks: clocks(),
            host: host_json(host, redactor.as_mut())?,
            probes: first.probes.clone(),
        };
        let file = open(&wish.path, wish.overwrite)?;
        let writer = named(&wish.path, Writer::new(BufWriter::new(file), &header))?;
        Ok(Recorder { wish, writer, header, redactor, samples: 0, rotated: 0 })
    }

    /// Adds a reading, the events before it, and the host's facts where they changed.
    ///
    /// # Errors
    /// When the file cannot be written; what was written before stays readable.
    pub(super) fn take(&mut self, sample: &Sample, events: &[Event], host: &Inventory) -> Result<()> {
        self.rotate_if_full()?;
        let host = host_json(host, self.redactor.as_mut())?;
        let written = self.write(sample, events, host);
        named(&self.wish.path, written)?;
        self.samples += 1;
        Ok(())
    }

    fn write(&mut self, sample: &Sample, events: &[Event], host: Value) -> Result<()> {
        if host != self.header.host {
            self.writer.host(sample.at, &host)?;
            self.header.host = host;
        }
        for event in events {
            match &mut self.redactor {
                Some(redactor) => {
                    let mut event = event.clone();
                    redactor.event(&mut event);
                    self.writer.event(&event)?;
                }
                None => self.writer.event(event)?,
            }
        }
        match &mut self.redactor {
            Some(redactor) => {
                let mut sample = sample.clone();
                redactor.sample(&mut sample);
                self.writer.sample(&sample)
            }
            None => self.writer.sample(sample),
        }
    }

    /// Notes that samples were missed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn gap(&mut self, at: Stamp, samples: u64, reason: &str) -> Result<()> {
        let written = self.writer.gap(&Gap { at, samples, reason: reason.into() });
        named(&self.wish.path, written)
    }

    /// Two files share the limit: the full one becomes FILE.1 in place of an older one.
    fn rotate_if_full(&mut self) -> Result<()> {
        let Some(max) = self.wish.max_size.filter(|max| self.writer.written() >= max / 2) else {
            return Ok(());
        };
        // A limit below the header's size would rotate at every sample.
        if max / 2 < 64 << 10 && self.samples == 0 {
            return Ok(());
        }
        named(&self.wish.path, self.writer.flush())?;
        let older = older(&self.wish.path);
        std::fs::rename(&self.wish.path, &older).map_err(|e| {
            Error::os(format!("renaming {} to {}", self.wish.path.display(), older.display()), e)
        })?;
        self.header.clocks = clocks();
        let file = open(&self.wish.path, false)?;
        self.writer = named(&self.wish.path, Writer::new(BufWriter::new(file), &self.header))?;
        self.rotated += 1;
        Ok(())
    }

    /// Closes the file and says what is in it.
    ///
    /// # Errors
    /// When the last block cannot be written.
    pub(super) fn finish(self) -> Result<String> {
        let path = self.wish.path;
        let file = named(&path, self.writer.finish())?;
        // Only now is "recorded" true after a power cut.
        let file = file
            .into_inner()
            .map_err(|e| Error::os(format!("writing {}", path.display()), e.into_error()))?;
        file.sync_all().map_err(|e| Error::os(format!("writing {}", path.display()), e))?;
        let size = file.metadata().map_or(0, |m| m.len());
        let older = match self.rotated {
            0 => String::new(),
            _ => format!(" (the newest; {} holds those before)", older(&path).display()),
        };
        Ok(format!("{} samples in {}, {}{older}", self.samples, path.display(), crate::units::bytes(size)))
    }
}

/// Where a full recording goes.
pub(super) fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

fn host_json(host: &Inventory, redactor: Option<&mut Redactor>) -> Result<Value> {
    let mut json = serde_json::to_value(host)
        .map_err(|e| Error::new(Kind::Misuse, "turning the host's facts into JSON").because(e))?;
    if let Some(redactor) = redactor {
        redactor.host(&mut json);
    }
    Ok(json)
}

/// A recording holds names of processes and pods: only its owner may read it.
fn open(path: &Path, overwrite: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    if overwrite {
        // Never through a link, and never truncating what is no file of ours.
        options.create(true).truncate(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    } else {
        options.create_new(true);
    }
    let file = options.open(path).map_err(|e| {
        let there = e.kind() == std::io::ErrorKind::AlreadyExists;
        let error = Error::os(format!("creating {}", path.display()), e);
        if there { error.remedy("choose another name, or replace it with --overwrite") } else { error }
    })?;
    give_to_caller(&file);
    Ok(file)
}

/// Under sudo the file belongs to the person, who will want to play it without sudo.
fn give_to_caller(file: &File) {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if let (Some(uid), Some(gid)) = (id("SUDO_UID"), id("SUDO_GID")) {
        // A file system without owners keeps it root's: still a good recording.
        let _ = rustix::fs::fchown(
            file,
            Some(rustix::fs::Uid::from_raw(uid)),
            Some(rustix::fs::Gid::from_raw(gid)),
        );
    }
}

fn clocks() -> Clocks {
    let ns = |id| {
        let t = rustix::time::clock_gettime(id);
        u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
    };
    Clocks {
        at: SystemClock.now(),
        monotonic_raw_ns: ns(rustix::time::ClockId::MonotonicRaw),
        boottime_ns: ns(rustix::time::ClockId::Boottime),
    }
}

/// The recording's own errors do not know which file it is.
fn named<T>(path: &Path, answer: Result<T>) -> Result<T> {
    answer.map_err(|e| Error::new(e.kind(), format!("recording to {}", path.display())).because(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::view::tests::sample;
    use crate::events::recording::{Playback, Reader};
    use std::os::unix::fs::PermissionsExt;

    fn wish(path: PathBuf) -> Wish {
        Wish { path, overwrite: false, max_size: None, redact: false, interval: Duration::from_secs(1) }
    }

    fn record(wish: Wish, seconds: std::ops::Range<u64>) -> String {
        let mut r = Recorder::create(wish, &Inventory::default(), &sample(seconds.start)).unwrap();
        for second in seconds {
            r.take(&sample(second), &[], &Inventory::default()).unwrap();
        }
        r.finish().unwrap()
    }

    fn samples(path: &Path) -> Vec<Sample> {
        let mut p = Playback::new(Reader::new(File::open(path).unwrap()).unwrap());
        std::iter::from_fn(|| p.next_sample().unwrap()).collect()
    }

    #[test]
    fn a_recording_is_for_its_owner_only_and_never_replaces_a_file_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let said = record(wish(path.clone()), 1..4);
        assert!(said.starts_with("3 samples in"), "{said}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = Recorder::create(wish(path.clone()), &Inventory::default(), &sample(1)).err().unwrap();
        assert!(refused.chain().contains("--overwrite"), "{}", refused.chain());
        record(Wish { overwrite: true, ..wish(path.clone()) }, 5..6);
        assert_eq!(samples(&path), [sample(5)]);
    }

    #[test]
    fn two_files_share_the_limit_and_the_newest_samples_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let max = 8 << 10;
        let said = record(Wish { max_size: Some(max), ..wish(path.clone()) }, 1..2000);
        assert!(said.contains("r.1 holds those before"), "{said}");
        let size: u64 = [&path, &older(&path)].map(|p| std::fs::metadata(p).unwrap().len()).iter().sum();
        // A file is closed at the first block past its half: one block of 5 s more.
        assert!(size <= max + 2048, "{size}");
        let mut kept = samples(&older(&path));
        kept.extend(samples(&path));
        let expected: Vec<Sample> = (2000 - kept.len() as u64..2000).map(sample).collect();
        assert!(kept.len() > 20 && kept == expected, "{} kept", kept.len());
    }

    #[test]
    fn a_redacted_recording_holds_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let host = Inventory { hostname: "secret-host".into(), ..Default::default() };
        let mut r = Recorder::create(Wish { redact: true, ..wish(path.clone()) }, &host, &sample(1)).unwrap();
        r.take(&sample(1), &[], &host).unwrap();
        r.finish().unwrap();
        let mut p = Playback::new(Reader::new(File::open(&path).unwrap()).unwrap());
        let played = p.next_sample().unwrap().unwrap();
        let text = format!("{}{}", serde_json::to_string(&played).unwrap(), p.host());
        assert!(p.reader().header().redacted);
        assert!(!["secret", "fio", "backup"].iter().any(|name| text.contains(name)), "{text}");
    }

    #[test]
    fn a_changed_host_is_recorded_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let named = |name: &str| Inventory { hostname: name.into(), ..Default::default() };
        let mut r = Recorder::create(wish(path.clone()), &named("a"), &sample(1)).unwrap();
        r.take(&sample(1), &[], &named("a")).unwrap();
        r.take(&sample(2), &[], &named("b")).unwrap();
        r.finish().unwrap();
        let mut p = Playback::new(Reader::new(File::open(&path).unwrap()).unwrap());
        p.next_sample().unwrap();
        assert_eq!(p.host()["hostname"], "a");
        p.next_sample().unwrap();
        assert_eq!(p.host()["hostname"], "b");
    }
}
