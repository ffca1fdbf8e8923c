//! What the live kernel log says about GPUs: the lines of [`crate::events::kmsg::reader`], put together.

use super::assemble::{Assembler, Said};
use crate::clock::Stamp;
use crate::error::Result;
pub use crate::events::kmsg::reader::raw_clock;
use crate::events::kmsg::reader::{Line, Reader};
use crate::events::kmsg::trouble::{Trouble, Troubles};
use std::path::Path;

/// A reader that starts at the end of the log.
#[derive(Debug)]
pub struct Kmsg {
    reader: Reader,
    assembler: Assembler,
    troubles: Troubles,
    found: Vec<(Stamp, Trouble)>,
}

/// One thing the log said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// When.
    pub at: Stamp,
    /// How far off `at` may be.
    pub clock_error_ns: u64,
    /// What.
    pub said: Said,
}

impl Kmsg {
    /// Opens `/dev/kmsg` below `root` and goes to its end: older lines are history.
    ///
    /// # Errors
    /// `Denied` without CAP_SYSLOG, `Missing` in a container without the device.
    pub fn open(root: &Path) -> Result<Kmsg> {
        let reader = Reader::open(root)?;
        Ok(Kmsg { reader, assembler: Assembler::default(), troubles: Troubles::default(), found: Vec::new() })
    }

    /// What was said since the last call. `now`: both clocks, just read; `raw_ns`: CLOCK_MONOTONIC_RAW, just read.
    ///
    /// # Errors
    /// When the log cannot be read any more.
    pub fn read(&mut self, now: Stamp, raw_ns: u64) -> Result<Vec<Heard>> {
        let lines = self.reader.read(now, raw_ns)?;
        for line in &lines {
            self.found
                .extend(self.troubles.line(line.at.monotonic_ns, &line.text).map(|found| (line.at, found)));
        }
        self.found.extend(self.troubles.flush(now.monotonic_ns).map(|found| (now, found)));
        Ok(lines.iter().filter_map(|line| hear(&mut self.assembler, line)).collect())
    }

    /// What the kernel said of the managed-memory module in the lines read since the last call.
    pub fn troubles(&mut self) -> Vec<(Stamp, Trouble)> {
        std::mem::take(&mut self.found)
    }

    /// Lines that the log's buffer lost before they were read.
    pub fn lost(&self) -> u64 {
        self.reader.lost()
    }
}

fn hear(assembler: &mut Assembler, line: &Line) -> Option<Heard> {
    let said = assembler.line(line.at.monotonic_ns, &line.text)?;
    Some(Heard { at: line.at, clock_error_ns: line.clock_error_ns, said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_gpu_keeps_its_time() {
        let at = Stamp { monotonic_ns: 299_000_000_000, realtime_ns: 999_000_000_000_000_000 };
        let line = |text: &str| Line { at, clock_error_ns: 1_000_200, text: text.to_owned() };
        let mut assembler = Assembler::default();
        assert_eq!(hear(&mut assembler, &line("nvme nvme0: resetting controller")), None);
        let heard = hear(&mut assembler, &line("NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x"));
        let heard = heard.expect("an Xid");
        assert_eq!((heard.at, heard.clock_error_ns), (at, 1_000_200));
        assert!(matches!(heard.said, Said::Report(r) if r.pid == Some(5)));
    }
}
