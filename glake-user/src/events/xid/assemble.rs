//! Lines that belong together: "fallen off the bus" without a code is printed on three lines, the last of which does
//! not name the GPU, and lines of another GPU may stand between them.

use super::parse::{Line, Report, line};
use std::collections::{BTreeMap, VecDeque};

/// What the log said, one thing at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// An Xid or SXid.
    Report(Report),
    /// A GPU fell off the bus and the driver gave no code.
    FellOff {
        /// As sysfs spells it. `None`: the line that names it is missing.
        pci: Option<String>,
    },
}

/// The last line comes within milliseconds; this is how long a first line waits for it.
const WAIT_NS: u64 = 5_000_000_000;

/// Reads a log line by line.
#[derive(Debug, Default)]
pub struct Assembler {
    /// First lines whose last line has not come, oldest first.
    open: VecDeque<(u64, String)>,
    uuids: BTreeMap<String, String>,
}

impl Assembler {
    /// Takes the next line. `at` is its time in ns on any one clock; it only tells how old an open first line is.
    pub fn line(&mut self, at: u64, text: &str) -> Option<Said> {
        self.open.retain(|(since, _)| at.saturating_sub(*since) <= WAIT_NS);
        match line(text)? {
            Line::Report(report) => Some(Said::Report(report)),
            Line::Uuid { pci, uuid } => {
                self.uuids.insert(pci, uuid);
                None
            }
            Line::FellOff { pci } => Some(Said::FellOff { pci: Some(pci) }),
            Line::FellOffFirst { pci } => {
                // A bound for a log that never ends its sentences.
                if self.open.len() == 64 {
                    self.open.pop_front();
                }
                self.open.push_back((at, pci));
                None
            }
            Line::FellOffLast => Some(Said::FellOff { pci: self.open.pop_front().map(|(_, pci)| pci) }),
        }
    }

    /// The UUID the log gave for a GPU, if it did.
    pub fn uuid(&self, pci: &str) -> Option<&str> {
        self.uuids.get(pci).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: [&str; 3] = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ];

    fn all(lines: &[&str]) -> Vec<Said> {
        let mut a = Assembler::default();
        lines.iter().zip(0..).filter_map(|(text, i)| a.line(i * 1000, text)).collect()
    }

    fn off(pci: &str) -> Said {
        Said::FellOff { pci: Some(pci.into()) }
    }

    /// Case E01.
    #[test]
    fn three_lines_are_one_event() {
        let mut lines = THREE.to_vec();
        lines.push("nvidia: probe of 0000:b3:00.0 failed with error -1");
        lines.push("NVRM: The NVIDIA probe routine failed for 1 device(s).");
        assert_eq!(all(&lines), [off("0000:b3:00.0")]);
    }

    #[test]
    fn lines_of_another_gpu_between_them_do_not_break_it() {
        let found = all(&[
            THREE[0],
            "NVRM: The NVIDIA GPU 0000:c4:00.0",
            "NVRM: Xid (PCI:0000:19:00): 31, pid=5, name=a, x",
            THREE[1],
            THREE[2],
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            THREE[2],
        ]);
        assert_eq!(found.len(), 3);
        assert!(matches!(&found[0], Said::Report(r) if r.pci == "0000:19:00.0"));
        assert_eq!(found[1..], [off("0000:b3:00.0"), off("0000:c4:00.0")]);
    }

    #[test]
    fn a_last_line_without_its_first_names_no_gpu() {
        assert_eq!(all(&[THREE[2]]), [Said::FellOff { pci: None }]);
        let mut a = Assembler::default();
        assert_eq!(a.line(0, THREE[0]), None);
        assert_eq!(
            a.line(WAIT_NS + 1, THREE[2]),
            Some(Said::FellOff { pci: None }),
            "too old to belong to it"
        );
    }

    #[test]
    fn uuids_are_remembered() {
        let mut a = Assembler::default();
        assert_eq!(a.line(0, "NVRM: GPU at PCI:0000:3b:00: GPU-5c1e"), None);
        assert_eq!(a.uuid("0000:3b:00.0"), Some("GPU-5c1e"));
    }
}
