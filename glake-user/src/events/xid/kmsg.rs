//! Lines about GPUs from the live kernel log (`/dev/kmsg`). Needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.
//!
//! The log is rate-limited and its buffer wraps: what is read here is a lower bound. Lines that the buffer lost before
//! they were read are counted from the gap in the sequence numbers.

use super::assemble::{Assembler, Said};
use crate::clock::Stamp;
use crate::error::{Error, Kind, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A reader that starts at the end of the log.
#[derive(Debug)]
pub struct Kmsg {
    file: File,
    assembler: Assembler,
    next: Option<u64>,
    lost: u64,
}

/// One thing the log said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// When.
    pub at: Stamp,
    /// How far off `at` may be. The log's clock is the scheduler's: on some machines it follows CLOCK_MONOTONIC, on
    /// others CLOCK_MONOTONIC_RAW, so the distance of those two is the bound.
    pub clock_error_ns: u64,
    /// What.
    pub said: Said,
}

/// More lines than this are left for the next visit.
const AT_ONCE: usize = 4096;

impl Kmsg {
    /// Opens `/dev/kmsg` below `root` and goes to its end: older lines are history.
    ///
    /// # Errors
    /// `Denied` without CAP_SYSLOG, `Missing` in a container without the device.
    pub fn open(root: &Path) -> Result<Kmsg> {
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
        Ok(Kmsg { file, assembler: Assembler::default(), next: None, lost: 0 })
    }

    /// What was said since the last call. `now`: both clocks, just read; `raw_ns`: CLOCK_MONOTONIC_RAW, just read.
    ///
    /// # Errors
    /// When the log cannot be read any more.
    pub fn read(&mut self, now: Stamp, raw_ns: u64) -> Result<Vec<Heard>> {
        let mut heard = Vec::new();
        // The largest record the kernel gives is 8 KiB; a smaller buffer would answer EINVAL.
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..AT_ONCE {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => heard.extend(self.record(&buffer[..n], now, raw_ns)),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // Overwritten before it was read: the next read goes on after the gap, which the sequence tells.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(e) => return Err(Error::os("reading /dev/kmsg", e)),
            }
        }
        Ok(heard)
    }

    /// Lines that the log's buffer lost before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// "6,3964,206764307,-;text\n KEY=value\n": level, sequence, microseconds, flags.
    fn record(&mut self, bytes: &[u8], now: Stamp, raw_ns: u64) -> Option<Heard> {
        let text = String::from_utf8_lossy(bytes);
        let (head, rest) = text.split_once(';')?;
        let mut fields = head.split(',').skip(1).map(|f| f.parse::<u64>().ok());
        let (sequence, micros) = (fields.next()??, fields.next()??);
        if let Some(expected) = self.next.filter(|n| sequence > *n) {
            self.lost += sequence - expected;
        }
        self.next = Some(sequence + 1);
        let then = micros.saturating_mul(1000).min(now.monotonic_ns);
        let said = self.assembler.line(then, rest.lines().next().unwrap_or(""))?;
        let ago = now.monotonic_ns - then;
        let at = Stamp { monotonic_ns: then, realtime_ns: now.realtime_ns.saturating_sub(ago) };
        let clock_error_ns = now.monotonic_ns.abs_diff(raw_ns) + 1_000_000;
        Some(Heard { at, clock_error_ns, said })
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

    fn reader() -> Kmsg {
        let file = File::open("/dev/null").expect("/dev/null");
        Kmsg { file, assembler: Assembler::default(), next: None, lost: 0 }
    }

    const NOW: Stamp = Stamp { monotonic_ns: 300_000_000_000, realtime_ns: 1_000_000_000_000_000_000 };

    #[test]
    fn a_record_gives_its_time_and_what_it_said() {
        let mut k = reader();
        let line = b"4,10,299000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x\n SUBSYSTEM=pci\n";
        let heard = k.record(line, NOW, NOW.monotonic_ns - 200).expect("an Xid");
        assert_eq!(heard.at.monotonic_ns, 299_000_000_000);
        assert_eq!(heard.at.realtime_ns, NOW.realtime_ns - 1_000_000_000);
        assert_eq!(heard.clock_error_ns, 1_000_200);
        assert!(matches!(heard.said, Said::Report(r) if r.pid == Some(5)));
    }

    #[test]
    fn lost_lines_are_counted_from_the_sequence() {
        let mut k = reader();
        assert_eq!(k.record(b"6,10,1,-;a", NOW, 0), None);
        assert_eq!(k.record(b"6,11,2,-;a", NOW, 0), None);
        assert_eq!(k.lost(), 0);
        assert_eq!(k.record(b"6,15,3,-;a", NOW, 0), None);
        assert_eq!(k.lost(), 3);
    }

    #[test]
    fn a_time_after_now_is_now_and_damaged_records_are_skipped() {
        let mut k = reader();
        let heard = k.record(b"4,1,999999999999,-;NVRM: Xid (PCI:0000:3b:00): 79, x", NOW, NOW.monotonic_ns);
        assert_eq!(heard.map(|h| h.at.monotonic_ns), Some(NOW.monotonic_ns));
        for bytes in
            [&b""[..], b";", b"6,1;x", b"6,x,1,-;x", b"\xff\xfe;\xff", b"6,99999999999999999999,1,-;x"]
        {
            assert_eq!(k.record(bytes, NOW, 0), None);
        }
    }
}
