//! Lines of the live kernel log (`/dev/kmsg`). Needs CAP_SYSLOG to open where `kernel.dmesg_restrict` is 1; reading goes
//! on without it.
//!
//! Lines that the buffer lost before they were read are counted from the gap in the sequence numbers.

use crate::clock::Stamp;
use crate::error::{Error, Kind, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A reader that starts at the end of the log.
#[derive(Debug)]
pub struct Reader {
    file: File,
    sequence: Sequence,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at: Stamp,
    /// How far off `at` may be. The log's clock is the scheduler's: on some machines it follows CLOCK_MONOTONIC, on
    /// others CLOCK_MONOTONIC_RAW, so the distance of those two is the bound.
    pub clock_error_ns: u64,
    /// The text without level, time and the driver's keys.
    pub text: String,
}

/// More lines than this are left for the next visit.
const AT_ONCE: usize = 4096;

impl Reader {
    /// Opens `/dev/kmsg` below `root` and goes to its end: older lines are history.
    ///
    /// # Errors
    /// `Denied` without CAP_SYSLOG, `Missing` in a container without the device.
    pub fn open(root: &Path) -> Result<Reader> {
        let path = root.join("dev/kmsg");
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&path).map_err(|e| {
            let error = Error::os(format!("opening {}", path.display()), e);
            match error.kind() {
                Kind::Denied => error.remedy("run with CAP_SYSLOG, or set kernel.dmesg_restrict=0"),
                Kind::Missing => error.remedy("in a container, mount /dev/kmsg"),
                _ => error,
            }
        })?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
            .map_err(|e| Error::os(format!("going to the end of {}", path.display()), e.into()))?;
        Ok(Reader { file, sequence: Sequence::default() })
    }

    /// The lines since the last call. `now`: both clocks, just read; `raw_ns`: CLOCK_MONOTONIC_RAW, just read.
    ///
    /// # Errors
    /// When the log cannot be read any more.
    pub fn read(&mut self, now: Stamp, raw_ns: u64) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        // The largest record the kernel gives is 8 KiB; a smaller buffer would answer EINVAL.
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..AT_ONCE {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => lines.extend(self.sequence.record(&buffer[..n], now, raw_ns)),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // Overwritten before it was read: the next read goes on after the gap, which the sequence tells.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(e) => return Err(Error::os("reading /dev/kmsg", e)),
            }
        }
        Ok(lines)
    }

    /// Lines that the log's buffer lost before they were read.
    pub fn lost(&self) -> u64 {
        self.sequence.lost
    }
}

/// Records in their order, and how many are missing between them.
#[derive(Debug, Default)]
pub struct Sequence {
    next: Option<u64>,
    lost: u64,
}

impl Sequence {
    /// Takes the next record as `/dev/kmsg` gives it, `6,3964,206764307,-;text\n KEY=value\n`: level, sequence,
    /// microseconds, flags. `None`: this is no record.
    pub fn record(&mut self, bytes: &[u8], now: Stamp, raw_ns: u64) -> Option<Line> {
        let text = String::from_utf8_lossy(bytes);
        let (head, rest) = text.split_once(';')?;
        let mut fields = head.split(',').skip(1).map(|f| f.parse::<u64>().ok());
        let (sequence, micros) = (fields.next()??, fields.next()??);
        if let Some(expected) = self.next.filter(|n| sequence > *n) {
            self.lost = self.lost.saturating_add(sequence - expected);
        }
        self.next = Some(sequence.saturating_add(1));
        let then = micros.saturating_mul(1000).min(now.monotonic_ns);
        let ago = now.monotonic_ns - then;
        let at = Stamp { monotonic_ns: then, realtime_ns: now.realtime_ns.saturating_sub(ago) };
        let clock_error_ns = now.monotonic_ns.abs_diff(raw_ns).saturating_add(1_000_000);
        Some(Line { at, clock_error_ns, text: rest.lines().next().unwrap_or("").to_owned() })
    }

    /// Records that were missing so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// CLOCK_MONOTONIC_RAW in ns.
pub fn raw_clock() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Stamp = Stamp { monotonic_ns: 300_000_000_000, realtime_ns: 1_000_000_000_000_000_000 };

    #[test]
    fn a_record_gives_its_time_and_its_text_without_the_keys() {
        let line = b"4,10,299000000,-;nvme nvme0: x\n SUBSYSTEM=nvme\n DEVICE=c240:0\n";
        let line = Sequence::default().record(line, NOW, NOW.monotonic_ns - 200).expect("a record");
        assert_eq!(line.at.monotonic_ns, 299_000_000_000);
        assert_eq!(line.at.realtime_ns, NOW.realtime_ns - 1_000_000_000);
        assert_eq!(line.clock_error_ns, 1_000_200);
        assert_eq!(line.text, "nvme nvme0: x");
    }

    #[test]
    fn lost_lines_are_counted_from_the_sequence() {
        let mut s = Sequence::default();
        for (record, lost) in [("6,10,1,-;a", 0), ("6,11,2,-;a", 0), ("6,15,3,-;a", 3), ("6,16,3,-;a", 3)] {
            assert!(s.record(record.as_bytes(), NOW, 0).is_some());
            assert_eq!(s.lost(), lost, "{record}");
        }
    }

    #[test]
    fn a_time_after_now_is_now_and_damaged_records_are_skipped() {
        let mut s = Sequence::default();
        let line = s.record(b"4,1,999999999999,-;x", NOW, NOW.monotonic_ns).expect("a record");
        assert_eq!(line.at, NOW);
        for bytes in
            [&b""[..], b";", b"6,1;x", b"6,x,1,-;x", b"\xff\xfe;\xff", b"6,99999999999999999999,1,-;x"]
        {
            assert_eq!(s.record(bytes, NOW, 0), None);
        }
    }

    #[test]
    fn without_the_device_the_remedy_is_said() {
        let dir = tempfile::tempdir().expect("a folder");
        let e = Reader::open(dir.path()).expect_err("nothing there");
        assert_eq!(e.kind(), Kind::Missing);
        assert!(e.remedy_text().is_some_and(|r| r.contains("mount /dev/kmsg")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..80), seq: u64, us: u64) {
            let mut s = Sequence::default();
            let _ = s.record(&bytes, NOW, 0);
            let mut framed = format!("6,{seq},{us},-;").into_bytes();
            framed.extend(&bytes);
            prop_assert!(s.record(&framed, NOW, u64::MAX).is_some_and(|l| l.at.monotonic_ns <= NOW.monotonic_ns));
        }
    }
}
