//! Records from a saved kernel log: `dmesg`, `journalctl -k`, /dev/kmsg.

use super::join::{Incoming, Joiner};
use super::record::{Fact, Record};
use crate::clock::Stamp;
use crate::events::kmsg::trouble::{Trouble, Troubles};
use crate::events::xid::assemble::{Assembler, Said};
use crate::events::xid::log;

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
    /// What the kernel said of the managed-memory module.
    pub troubles: Vec<(Stamp, Trouble)>,
}

/// Reads a log through a fresh `joiner`.
pub fn read<'a>(lines: impl Iterator<Item = &'a str>, joiner: &mut Joiner) -> Read {
    let mut found = Read::default();
    let (mut assembler, mut troubles) = (Assembler::default(), Troubles::default());
    let mut now = Stamp::default();
    for text in lines {
        found.lines += 1;
        let time = log::time(text);
        if let Some(time) = time {
            let ns = time.ns();
            let realtime_ns = if matches!(time, log::Time::Unix(_)) { ns } else { 0 };
            now = Stamp { monotonic_ns: ns, realtime_ns };
            found.records.extend(joiner.tick(now).into_iter().filter(|r| r.closed));
        }
        found.troubles.extend(troubles.line(now.monotonic_ns, text).map(|trouble| (now, trouble)));
        if let Some(fact) = other(text, now) {
            joiner.fact(fact);
        }
        let Some(said) = assembler.line(now.monotonic_ns, text) else { continue };
        found.reports += 1;
        found.without_time += u64::from(time.is_none());
        joiner.report(&incoming(said, now), &|_| None);
    }
    found.troubles.extend(troubles.end().map(|trouble| (now, trouble)));
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

/// Lines of other parts of the kernel that belong next to a GPU event.
fn other(text: &str, at: Stamp) -> Option<Fact> {
    let fact = |family: &str, device: Option<&str>, text: String| Fact {
        at,
        family: family.into(),
        device: device.map(str::to_owned),
        text,
        source: "kernel log".into(),
        count: 1,
        ..Fact::default()
    };
    if let Some((head, rest)) = text.split_once("AER: ") {
        let device =
            head.split_whitespace().rev().find_map(|w| crate::host::pci::sysfs(w.trim_end_matches(':')));
        let short: String = rest.chars().take(100).collect();
        return Some(fact("aer", device.as_deref(), short));
    }
    if text.contains("AMD-Vi: Event logged [IO_PAGE_FAULT") || text.contains("DMAR: [DMA") {
        let at = text.find("DMAR").or_else(|| text.find("AMD-Vi")).unwrap_or(0);
        return Some(fact("iommu", None, text[at..].chars().take(120).collect()));
    }
    None
}
