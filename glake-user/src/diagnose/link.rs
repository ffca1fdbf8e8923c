//! A PCIe link that gets worse: corrected errors by the hundred, then one that cannot be corrected (case E19).

use super::finding::{Finding, Severity};
use std::collections::VecDeque;

const SECOND: u64 = 1_000_000_000;
const WINDOW_NS: u64 = 600 * SECOND;
/// A healthy link corrects a few in a day; so many in ten minutes cost retries and come before worse.
const MANY: u64 = 100;
/// At one entry per reading of at least 200 ms.
const MOST: usize = 3_000;

/// One device's reports, as totals since the start.
#[derive(Debug, Default)]
pub struct Link {
    totals: VecDeque<(u64, u64)>,
}

impl Link {
    /// Takes the totals at a time, and gives what they amount to.
    pub fn push(&mut self, at_ns: u64, corrected: u64, uncorrected: u64) -> Option<Finding> {
        while self.totals.pop_front_if(|(at, _)| *at < at_ns.saturating_sub(WINDOW_NS)).is_some() {}
        if self.totals.len() == MOST {
            self.totals.pop_front();
        }
        // What was there at the first look is no news of the last ten minutes.
        self.totals.push_back((at_ns, corrected));
        let recent = corrected.saturating_sub(self.totals.front().map_or(corrected, |(_, n)| *n));
        if uncorrected > 0 && corrected >= MANY {
            return Some(failing(corrected, uncorrected));
        }
        (recent >= MANY).then(|| retrying(recent))
    }
}

fn failing(corrected: u64, uncorrected: u64) -> Finding {
    Finding {
        rule: "pcie_link_failing",
        severity: Severity::Page,
        uuid: None,
        pci: None,
        what: "a PCIe link went from errors that were corrected to errors that were not".into(),
        evidence: vec![format!("{corrected} corrected and {uncorrected} uncorrected AER reports so far")],
        do_now: "take the device out of use and look at the hardware of this link: slot, riser, cable, board. Software does not \
                 cause this"
            .into(),
    }
}

fn retrying(recent: u64) -> Finding {
    Finding {
        rule: "pcie_link_retrying",
        severity: Severity::Ticket,
        uuid: None,
        pci: None,
        what: "a PCIe link corrects errors by the hundred".into(),
        evidence: vec![format!("{recent} corrected AER reports in ten minutes")],
        do_now:
            "nothing is lost yet. Reseat the card and its cables at the next occasion, before the link fails"
                .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case E19, the trend.
    #[test]
    fn hundreds_of_corrected_errors_are_a_ticket_and_a_fatal_one_after_them_is_the_hardware_s() {
        let mut link = Link::default();
        assert_eq!(link.push(SECOND, 0, 0), None);
        let found = link.push(2 * SECOND, 300, 0).expect("a burst of a second");
        assert_eq!((found.rule, found.severity), ("pcie_link_retrying", Severity::Ticket));
        assert!(found.evidence[0].contains("300 corrected"), "{:?}", found.evidence);
        assert_eq!(link.push(800 * SECOND, 300, 0), None, "long ago");
        let fatal = link.push(900 * SECOND, 300, 1).expect("now it fails");
        assert_eq!((fatal.rule, fatal.severity), ("pcie_link_failing", Severity::Page));
        assert!(fatal.do_now.contains("slot, riser"), "{}", fatal.do_now);
    }

    #[test]
    fn a_few_corrected_errors_and_what_was_there_before_are_nothing() {
        let mut link = Link::default();
        assert_eq!(link.push(SECOND, 5_000, 0), None, "before the agent looked");
        assert_eq!(link.push(2 * SECOND, 5_099, 0), None);
        assert!(link.push(3 * SECOND, 5_100, 0).is_some());
    }
}
