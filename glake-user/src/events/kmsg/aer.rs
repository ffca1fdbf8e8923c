//! PCIe AER reports in a saved kernel log, where no trace point tells them. A report is an announcement of the root port, then
//! a line with the severity, then one with the status bits; a rate-limited kernel leaves lines out.
//!
//! Spellings: `aer_print_rp_info` and `aer_print_error` of drivers/pci/pcie/aer.c, Linux 4.14 to 6.18.

use crate::pci;

/// One report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The device that reported, as sysfs spells it; of a lone announcement the root port.
    pub pci: String,
    /// `corrected`, `nonfatal` or `fatal`.
    pub severity: &'static str,
    /// The status bits. `None`: not told.
    pub status: Option<u32>,
}

#[derive(Debug)]
enum Open {
    /// The root port heard of an error.
    Announced(Report),
    /// The severity is known, the bits not yet.
    Severity(Report),
}

/// Reads a log line by line.
#[derive(Debug, Default)]
pub struct Reports {
    open: Option<Open>,
}

impl Reports {
    /// Takes the next line; gives the report that it completes or makes room for.
    pub fn line(&mut self, text: &str) -> Option<Report> {
        if let Some((head, words)) = text.split_once("PCIe Bus Error: severity=") {
            let report = Report { pci: device(head)?, severity: severity(words), status: None };
            return match self.open.replace(Open::Severity(report)) {
                // The root port announced this very report.
                None | Some(Open::Announced(_)) => None,
                Some(Open::Severity(before)) => Some(before),
            };
        }
        if let Some((head, words)) = text.split_once("error status/mask=") {
            let status = words.split('/').next().and_then(|bits| u32::from_str_radix(bits, 16).ok());
            let of = device(head)?;
            return match self.open.take() {
                Some(Open::Severity(report)) if report.pci == of => Some(Report { status, ..report }),
                other => {
                    self.open = other;
                    None
                }
            };
        }
        let (head, words) = text.split_once("AER: ").filter(|(_, words)| is_announcement(words))?;
        let before = self.end();
        self.open =
            Some(Open::Announced(Report { pci: device(head)?, severity: severity(words), status: None }));
        before
    }

    /// What is open at the end of the log.
    pub fn end(&mut self) -> Option<Report> {
        match self.open.take()? {
            Open::Announced(report) | Open::Severity(report) => Some(report),
        }
    }
}

/// `Multiple Corrected error received: 0000:03:00.0`, newer `Correctable error message received from 0000:03:00.0`.
fn is_announcement(words: &str) -> bool {
    ["error received", "error message received"].iter().any(|mark| words.contains(mark))
}

fn severity(words: &str) -> &'static str {
    let words = words.to_ascii_lowercase();
    let head = words.split([',', ':']).next().unwrap_or_default();
    match (head.contains("uncorrect"), head.contains("non-fatal")) {
        (true, true) => "nonfatal",
        (true, false) => "fatal",
        (false, _) => "corrected",
    }
}

/// The last address before the words: `pcieport 0000:00:03.0: `.
fn device(head: &str) -> Option<String> {
    head.split_whitespace().rev().find_map(|word| pci::sysfs(word.trim_end_matches(':')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(lines: &[&str]) -> Vec<(String, &'static str, Option<u32>)> {
        let mut reports = Reports::default();
        let mut found: Vec<Report> = lines.iter().filter_map(|l| reports.line(l)).collect();
        found.extend(reports.end());
        found.into_iter().map(|r| (r.pci, r.severity, r.status)).collect()
    }

    #[test]
    fn three_lines_in_old_and_new_spelling_are_one_report() {
        for mark in ["", "AER: "] {
            let lines = [
                "pcieport 0000:00:03.0: AER: Multiple Corrected error received: 0000:03:00.0".to_owned(),
                format!(
                    "[1.000000] pcieport 0000:00:03.0: {mark}PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"
                ),
                format!(
                    "pcieport 0000:00:03.0: {mark}  device [8086:6f08] error status/mask=00001000/00002000"
                ),
                format!("pcieport 0000:00:03.0: {mark}   [12] Timeout"),
            ];
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert_eq!(all(&lines), [("0000:00:03.0".to_owned(), "corrected", Some(0x1000))], "{mark:?}");
        }
    }

    #[test]
    fn what_a_rate_limit_left_out_is_still_counted() {
        let announced = "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:00:03.0";
        let severity = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)";
        let root = "0000:00:03.0".to_owned();
        assert_eq!(
            all(&[announced, announced, severity, severity]),
            [(root.clone(), "fatal", None), (root.clone(), "nonfatal", None), (root, "nonfatal", None)]
        );
        let newer = "pcieport 0000:00:03.0: AER: Correctable error message received from 0000:03:00.0";
        assert_eq!(all(&[newer]).len(), 1);
    }

    #[test]
    fn the_bits_of_another_device_are_not_this_one_s() {
        let severity = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer";
        let other = "nvme 0000:41:00.0:   device [144d:a80a] error status/mask=00000001/0000e000";
        assert_eq!(all(&[severity, other]), [("0000:00:03.0".to_owned(), "corrected", None)]);
        assert_eq!(all(&["pcieport 0000:00:03.0: AER: enabled with IRQ 27", "AER: error received"]), []);
    }

    proptest! {
        #[test]
        fn any_text_is_read(lines in proptest::collection::vec("\\PC{0,40}", 0..20)) {
            let mut reports = Reports::default();
            let heads = ["pcieport 0000:00:03.0: AER: Corrected error received: ", "0000:00:03.0: PCIe Bus Error: severity=", "0000:00:03.0: error status/mask="];
            for (text, i) in lines.iter().zip(0_usize..) {
                let _ = reports.line(&format!("{}{text}", heads[i % heads.len()]));
                let _ = reports.line(text);
            }
        }
    }
}
