//! Counts and events from the lines of the kernel log.

use super::{
    parse::{self, Fault, Said},
    reader::Line,
};
use crate::events::{
    event::{Event, What},
    sample::{IommuFaults, NvmeController, XidCount},
    xid::assemble::{self, Assembler},
};
use std::collections::BTreeMap;

/// How the events name their source.
pub const SOURCE: &str = "kernel log";

/// What the log said since the source started.
#[derive(Debug, Default)]
pub struct Tally {
    /// Timeouts and resets by controller.
    nvme: BTreeMap<String, (u64, u64)>,
    /// Faults by device.
    faults: BTreeMap<Option<String>, u64>,
    xids: Vec<XidCount>,
    assembler: Assembler,
    /// Something exact counts the reports of GPUs, of NVSwitches: then they are not counted here, or they were counted twice.
    exact: [bool; 2],
}

/// Devices and codes of Xids that are told apart: more than any host has.
const MOST_XIDS: usize = 1024;

impl Tally {
    /// Takes the next line; gives its events. `devices`: the PCI addresses of this host, for lines without a domain.
    pub fn line(&mut self, line: &Line, devices: &dyn Fn() -> Vec<String>) -> Vec<Event> {
        let event = |what| Event {
            at: line.at,
            clock_error_ns: line.clock_error_ns,
            source: SOURCE.to_owned(),
            what,
        };
        match parse::line(&line.text) {
            None => {
                self.xid(line);
                Vec::new()
            }
            Some(Said::Nvme { controller, timeout, reset, detail }) => {
                let counts = self.nvme.entry(controller.clone()).or_default();
                counts.0 += u64::from(timeout);
                counts.1 += u64::from(reset);
                let timed_out =
                    timeout.then(|| event(What::NvmeTimeout { controller: controller.clone(), detail }));
                let was_reset = reset.then(|| event(What::NvmeReset { controller }));
                timed_out.into_iter().chain(was_reset).collect()
            }
            Some(Said::Dmar(fault)) => {
                let pci = whole(&fault, devices);
                *self.faults.entry(pci.clone()).or_default() += 1;
                let detail = match &pci {
                    Some(_) => fault.detail,
                    None => format!("{} (device {}, PCI domain not told)", fault.detail, fault.device),
                };
                vec![event(What::IommuFault { pci, iova: Some(fault.iova), detail })]
            }
        }
    }

    /// Xids become events where their process is looked up, from a reader of the log of its own; here they are only counted.
    fn xid(&mut self, line: &Line) {
        let said = self.assembler.line(line.at.monotonic_ns, &line.text);
        let Some(assemble::Said::Report(report)) = said else { return };
        let (pci, nvswitch, code) = (report.pci, report.nvswitch, report.code);
        if self.exact[usize::from(nvswitch)] {
            return;
        }
        let same = |x: &&mut XidCount| (&x.pci, x.nvswitch, x.code) == (&pci, nvswitch, code);
        if let Some(known) = self.xids.iter_mut().find(same) {
            (known.count, known.last) = (known.count + 1, line.at);
        } else if self.xids.len() < MOST_XIDS {
            self.xids.push(XidCount { pci, nvswitch, code, source: "kmsg".into(), count: 1, last: line.at });
        }
    }

    /// Whether something exact counts the reports of GPUs, of NVSwitches, from now on.
    pub fn set_exact(&mut self, exact: [bool; 2]) {
        self.exact = exact;
    }

    /// Xid and SXid reports that nothing exact has counted.
    pub fn xids(&self) -> &[XidCount] {
        &self.xids
    }

    /// Fills in what the log knows of controllers. Those that only the log named are added.
    pub fn fill(&self, controllers: &mut Vec<NvmeController>) {
        for name in self.nvme.keys() {
            if !controllers.iter().any(|c| &c.controller == name) {
                controllers.push(NvmeController { controller: name.clone(), ..NvmeController::default() });
            }
        }
        for controller in controllers {
            let (timeouts, resets) = self.nvme.get(&controller.controller).copied().unwrap_or_default();
            (controller.timeouts, controller.resets) = (Some(timeouts), Some(resets));
        }
    }

    /// Faults by device; the count of faults without a known device is always there.
    pub fn faults(&self) -> Vec<IommuFaults> {
        let row = |pci: Option<String>, count| IommuFaults { pci, source: "kmsg".to_owned(), count };
        let unnamed = row(None, self.faults.get(&None).copied().unwrap_or(0));
        let named = self.faults.iter().filter(|(pci, _)| pci.is_some());
        std::iter::once(unnamed).chain(named.map(|(pci, count)| row(pci.clone(), *count))).collect()
    }
}

/// The whole address of a device whose domain may not be told: then only if exactly one domain has such a device.
fn whole(fault: &Fault, devices: &dyn Fn() -> Vec<String>) -> Option<String> {
    if let Some(domain) = fault.domain {
        return Some(format!("{domain:04x}:{}", fault.device));
    }
    let end = format!(":{}", fault.device);
    let mut found = devices().into_iter().filter(|d| d.ends_with(&end));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;

    fn say(tally: &mut Tally, devices: &[&str], text: &str) -> Vec<Event> {
        let line = Line { at: Stamp::default(), clock_error_ns: 7, text: text.to_owned() };
        tally.line(&line, &|| devices.iter().map(|d| (*d).to_owned()).collect())
    }

    fn dmar(device: &str) -> String {
        format!("DMAR: [DMA Read] Request device [{device}] fault addr 0x1000 [fault reason 0x06] x")
    }

    #[test]
    fn a_timeout_that_resets_counts_as_both_and_gives_both_events() {
        let mut tally = Tally::default();
        let events = say(&mut tally, &[], "nvme nvme3: I/O 12 QID 1 timeout, reset controller");
        assert!(matches!(events[0].what, What::NvmeTimeout { .. }));
        assert!(matches!(events[1].what, What::NvmeReset { .. }));
        assert_eq!((events[0].source.as_str(), events[0].clock_error_ns), (SOURCE, 7));
        say(&mut tally, &[], "nvme nvme3: I/O 12 QID 1 timeout, aborting");
        let mut controllers = vec![NvmeController { controller: "nvme0".into(), ..Default::default() }];
        tally.fill(&mut controllers);
        let found: Vec<_> =
            controllers.iter().map(|c| (c.controller.as_str(), c.timeouts, c.resets)).collect();
        assert_eq!(found, [("nvme0", Some(0), Some(0)), ("nvme3", Some(2), Some(1))]);
    }

    #[test]
    fn a_domain_is_found_only_where_there_is_one_answer() {
        let mut tally = Tally::default();
        let two = ["0000:01:00.0", "0001:01:00.0", "0000:02:00.0"];
        let event = &say(&mut tally, &two, &dmar("01:00.0"))[0];
        assert!(
            matches!(&event.what, What::IommuFault { pci: None, iova: Some(0x1000), detail } if detail.contains("01:00.0"))
        );
        say(&mut tally, &two, &dmar("02:00.0"));
        say(&mut tally, &two, &dmar("0001:01:00.0"));
        say(&mut tally, &[], &dmar("05:00.0"));
        let found: Vec<_> = tally.faults().into_iter().map(|f| (f.pci, f.count)).collect();
        assert_eq!(found, [(None, 2), (Some("0000:02:00.0".into()), 1), (Some("0001:01:00.0".into()), 1)]);
    }

    #[test]
    fn an_xid_is_counted_unless_something_exact_counts_it() {
        let mut tally = Tally::default();
        for text in
            ["NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x", "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, y"]
        {
            assert!(say(&mut tally, &[], text).is_empty());
        }
        tally.set_exact([true, false]);
        say(&mut tally, &[], "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, z");
        say(&mut tally, &[], "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress");
        let found: Vec<_> =
            tally.xids().iter().map(|x| (x.pci.as_str(), x.code, x.count, x.source.as_str())).collect();
        assert_eq!(found, [("0000:3b:00.0", 31, 2, "kmsg"), ("0000:c1:00.0", 12028, 1, "kmsg")]);
    }

    #[test]
    fn a_log_that_was_silent_has_counts_of_zero() {
        assert_eq!(Tally::default().faults(), [IommuFaults { pci: None, source: "kmsg".into(), count: 0 }]);
        assert!(say(&mut Tally::default(), &[], "usb 1-1: reset").is_empty());
    }
}
