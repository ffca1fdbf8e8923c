//! Records from a saved kernel log: `dmesg`, `journalctl -k`, /dev/kmsg.

use super::join::{Incoming, Joiner};
use super::record::{Fact, Record};
use crate::clock::Stamp;
use crate::diagnose::aer;
use crate::diagnose::finding::{self, Finding};
use crate::diagnose::link::Link;
use crate::events::kmsg::aer::{Report, Reports};
use crate::events::kmsg::trouble::Troubles;
use crate::events::xid::assemble::{Assembler, Said};
use crate::events::xid::log;
use std::collections::BTreeMap;

/// What reading a log found.
#[derive(Debug, Default)]
pub struct Read {
    /// Oldest first.
    pub records: Vec<Record>,
    /// Lines.
    pub lines: u64,
    /// Lines about a GPU or NVSwitch error.
    pub reports: u64,
    /// Lines about such an error whose time could not be read: they count as of the line before.
    pub without_time: u64,
    /// What is wrong beyond single events: what the kernel said of the managed-memory module, links that get worse.
    pub findings: Vec<Finding>,
}

/// A log without years that goes back by so much has come into the next year.
const HALF_A_YEAR_NS: u64 = YEAR_NS / 2;
/// Of the year that days without one are counted in, a leap year.
const YEAR_NS: u64 = 366 * 86_400 * 1_000_000_000;

/// The PCIe links that the log speaks of.
#[derive(Default)]
struct Links {
    reports: Reports,
    /// When the newest line about one came.
    at: Stamp,
    /// By device: its link, corrected and uncorrected reports so far, and the worst that they amounted to.
    seen: BTreeMap<String, (Link, u64, u64, Option<Finding>)>,
}

impl Links {
    /// Takes the next line; gives the report that it completes or makes room for.
    fn line(&mut self, now: Stamp, text: &str) -> Option<Fact> {
        let report = self.reports.line(text);
        let fact = report.map(|report| self.report(&report));
        if text.contains("AER: ") || text.contains("PCIe Bus Error: ") {
            self.at = now;
        }
        fact
    }

    /// What is open: another kind of line came, or the log has ended.
    fn flush(&mut self) -> Option<Fact> {
        let report = self.reports.end()?;
        Some(self.report(&report))
    }

    fn report(&mut self, report: &Report) -> Fact {
        let at = self.at;
        let words =
            report.status.map_or_else(String::new, |bits| format!(": {}", aer::words(report.severity, bits)));
        let text = format!("{}{words}", report.severity);
        let (link, corrected, uncorrected, worst) = self.seen.entry(report.pci.clone()).or_default();
        // A log begins somewhere: before its first report there were none that it tells.
        link.push(at.monotonic_ns, *corrected, *uncorrected);
        if report.severity == "corrected" {
            *corrected += 1
        } else {
            *uncorrected += 1
        }
        if let Some(mut found) = link.push(at.monotonic_ns, *corrected, *uncorrected)
            && worst.as_ref().is_none_or(|worst| worst.severity <= found.severity)
        {
            found.pci = Some(report.pci.clone());
            found.evidence.push(format!("the newest {text}"));
            *worst = Some(found);
        }
        Fact {
            at,
            family: "aer".into(),
            device: Some(report.pci.clone()),
            text,
            source: "kernel log".into(),
            count: 1,
            ..Fact::default()
        }
    }
}

/// Reads a log through a fresh `joiner`.
pub fn read<'a>(lines: impl Iterator<Item = &'a str>, joiner: &mut Joiner) -> Read {
    let mut found = Read::default();
    let (mut assembler, mut troubles, mut links) =
        (Assembler::default(), Troubles::default(), Links::default());
    let (mut now, mut spelt, mut years) = (Stamp::default(), None, 0);
    for text in lines {
        found.lines += 1;
        let time = log::time(text);
        if let Some(time) = time {
            if matches!(time, log::Time::Yearless(_)) && time.ns() + years + HALF_A_YEAR_NS < now.monotonic_ns
            {
                years += YEAR_NS;
            }
            let ns = time.ns().saturating_add(years);
            let realtime_ns = if matches!(time, log::Time::Unix(_)) { ns } else { 0 };
            now = Stamp { monotonic_ns: ns, realtime_ns };
            spelt = log::spelling(text).map(str::to_owned);
            found.records.extend(joiner.tick(now).into_iter().filter(|r| r.closed));
        }
        let trouble = troubles.line(now.monotonic_ns, text);
        found.findings.extend(trouble.map(|trouble| finding::of_kernel(&trouble, None)));
        for fact in links.line(now, text).into_iter().chain(iommu(text, now)) {
            joiner.fact(fact);
        }
        let Some(said) = assembler.line(now.monotonic_ns, text) else { continue };
        found.reports += 1;
        found.without_time += u64::from(time.is_none());
        links.flush().into_iter().for_each(|fact| joiner.fact(fact));
        joiner.report(&Incoming { log_time: spelt.clone(), ..incoming(said, now) }, &|_| None);
    }
    found.findings.extend(troubles.end().map(|trouble| finding::of_kernel(&trouble, None)));
    links.flush();
    found.findings.extend(links.seen.into_values().filter_map(|(.., worst)| worst));
    found.records.extend(joiner.end());
    found.records.sort_by_key(|r| r.at.monotonic_ns);
    for record in &mut found.records {
        if record.uuid.is_none() {
            record.uuid = record.pci.as_deref().and_then(|p| assembler.uuid(p)).map(str::to_owned);
        }
    }
    found
}

/// A report of the kernel log as the joiner takes it.
pub fn incoming(said: Said, at: Stamp) -> Incoming {
    let base = Incoming { at, source: "kernel log".into(), ..Incoming::default() };
    match said {
        Said::Report(r) => {
            let mut text = String::new();
            if r.pid.is_some() || r.name.is_some() {
                let pid = r.pid.map_or_else(|| "'<unknown>'".to_owned(), |p| p.to_string());
                text = format!("pid={pid}, name={}, ", r.name.as_deref().unwrap_or("<unknown>"));
            }
            text.push_str(&r.message);
            Incoming {
                pci: Some(r.pci),
                code: Some(r.code),
                nvswitch: r.nvswitch,
                gpu_instance: r.gpu_instance,
                text,
                ..base
            }
        }
        Said::FellOff { pci } => {
            Incoming { pci, text: "fell off the bus and does not respond to commands".into(), ..base }
        }
    }
}

/// A fault of the IOMMU, which belongs next to a GPU event.
fn iommu(text: &str, at: Stamp) -> Option<Fact> {
    if !text.contains("AMD-Vi: Event logged [IO_PAGE_FAULT") && !text.contains("DMAR: [DMA") {
        return None;
    }
    let from = text.find("DMAR").or_else(|| text.find("AMD-Vi")).unwrap_or(0);
    let text = text[from..].chars().take(120).collect();
    Some(Fact { at, family: "iommu".into(), text, source: "kernel log".into(), count: 1, ..Fact::default() })
}
