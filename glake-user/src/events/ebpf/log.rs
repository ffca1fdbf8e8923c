//! The kernel log beside the eBPF probes: probes of its own, for what no trace point tells.

use super::Settings;
use crate::{
    clock::Stamp,
    error::Error,
    events::{
        event::Event,
        kmsg::{
            reader::{Reader, raw_clock},
            tally::Tally,
        },
        sample::{IommuFaults, NvmeController, Probe, ProbeState, XidCount},
    },
};
use std::path::{Path, PathBuf};

/// Timeouts and resets of NVMe controllers.
pub(crate) const NVME: &str = "nvme_log";
/// Device, address and reason of faults of Intel's IOMMU.
pub(crate) const DMAR: &str = "dmar_log";

/// Xids where neither a trace point nor the reporting function can be watched.
pub(crate) const XID: &str = "xid_log";

/// The probes: name, family, where sysfs shows that there is something to watch, and what is missing without it.
pub const PROBES: [(&str, &str, Where, &str); 3] = [
    (NVME, "nvme", Where::Exists("sys/class/nvme"), "module nvme_core is not loaded"),
    (DMAR, "iommu", Where::Begins("sys/class/iommu", "dmar"), "no Intel IOMMU is in use"),
    (XID, "xid", Where::Exists("sys/module/nvidia"), "module nvidia is not loaded"),
];

/// Where sysfs shows a thing.
#[derive(Debug, Clone, Copy)]
pub enum Where {
    /// This folder is there.
    Exists(&'static str),
    /// This folder has an entry that begins so.
    Begins(&'static str, &'static str),
}

impl Where {
    fn holds(self, root: &Path) -> bool {
        match self {
            Where::Exists(path) => root.join(path).exists(),
            Where::Begins(path, with) => names(&root.join(path)).iter().any(|n| n.starts_with(with)),
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

/// The log, or why there is none.
#[derive(Debug)]
pub(crate) struct Log {
    root: PathBuf,
    disabled: Vec<String>,
    reader: std::result::Result<Reader, Error>,
    lost: u64,
    tally: Tally,
}

impl Log {
    /// Opens the log of the host below `root`.
    pub(crate) fn open(root: &Path, settings: &Settings) -> Log {
        Log {
            root: root.to_owned(),
            disabled: settings.disabled.clone(),
            reader: Reader::open(root),
            lost: 0,
            tally: Tally::default(),
        }
    }

    /// Reads what was said since the last call.
    pub(crate) fn listen(&mut self, now: Stamp) -> Vec<Event> {
        let Ok(reader) = &mut self.reader else { return Vec::new() };
        let said = reader.read(now, raw_clock());
        self.lost = reader.lost();
        match said {
            Ok(lines) => {
                let devices = || names(&self.root.join("sys/bus/pci/devices"));
                lines.iter().flat_map(|line| self.tally.line(line, &devices)).collect()
            }
            Err(e) => {
                self.reader = Err(e);
                Vec::new()
            }
        }
    }

    /// Fills in timeouts and resets, where the log can be read.
    pub(crate) fn fill(&self, controllers: &mut Vec<NvmeController>) {
        if self.is_on(NVME) {
            self.tally.fill(controllers);
        }
    }

    /// Faults by device. `None`: the log cannot be read, or there is no Intel IOMMU.
    pub(crate) fn faults(&self) -> Option<Vec<IommuFaults>> {
        self.is_on(DMAR).then(|| self.tally.faults())
    }

    /// Lines that were lost before they were read. `None`: there is no log.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.reader.as_ref().ok().map(|_| self.lost)
    }

    fn is_on(&self, name: &str) -> bool {
        self.probes().iter().any(|p| p.name == name && p.state == ProbeState::On)
    }

    /// Adds the Xids that nothing exact counts. Those counted stay when the driver is gone: a count that comes back would be taken for
    /// a new one.
    pub(crate) fn fill_xids(&self, xids: &mut Option<Vec<XidCount>>) {
        if self.is_on(XID) || !self.tally.xids().is_empty() {
            xids.get_or_insert_default().extend_from_slice(self.tally.xids());
        }
    }

    /// Which of Xids and SXids something exact counts.
    pub(crate) fn set_exact(&mut self, exact: [bool; 2]) {
        self.tally.set_exact(exact);
    }

    /// All probes as they are now.
    pub(crate) fn probes(&self) -> Vec<Probe> {
        PROBES
            .iter()
            .map(|(name, family, place, missing)| {
                let off = |reason: &str| (ProbeState::Off, Some(reason.to_owned()), None);
                let (state, reason, remedy) = if self.disabled.iter().any(|d| d == name) {
                    off("disabled by the settings")
                } else if !place.holds(&self.root) {
                    off(missing)
                } else {
                    match &self.reader {
                        Ok(_) => (ProbeState::On, None, None),
                        Err(e) => {
                            let remedy = e.remedy_text().map(str::to_owned);
                            (ProbeState::Failed, Some(e.to_string()), remedy)
                        }
                    }
                };
                let how = "kernel log (lower bound)".to_owned();
                let (name, family) = ((*name).to_owned(), (*family).to_owned());
                Probe { name, family, how, state, reason, remedy, ..Probe::default() }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_log_its_numbers_are_unknown_and_the_probes_say_why() {
        let dir = tempfile::tempdir().expect("a folder");
        for folder in ["sys/class/nvme", "sys/class/iommu/dmar0", "sys/module/nvidia"] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("a folder");
        }
        let log = Log::open(dir.path(), &Settings::default());
        for probe in log.probes() {
            assert_eq!(probe.state, ProbeState::Failed, "{}", probe.name);
            assert!(probe.reason.is_some_and(|r| r.contains("dev/kmsg")) && probe.remedy.is_some());
            assert_eq!(probe.how, "kernel log (lower bound)");
        }
        let mut controllers = vec![NvmeController { controller: "nvme0".into(), ..Default::default() }];
        log.fill(&mut controllers);
        assert_eq!((controllers[0].timeouts, controllers[0].resets), (None, None));
        assert_eq!((log.faults(), log.lost()), (None, None));
    }

    #[test]
    fn with_nothing_to_watch_the_probes_are_off() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(dir.path().join("sys/class/nvme")).expect("a folder");
        let settings = Settings { disabled: vec![NVME.to_owned()], ..Settings::default() };
        let states: Vec<_> = Log::open(dir.path(), &settings).probes();
        assert!(states.iter().all(|p| p.state == ProbeState::Off && p.reason.is_some()), "{states:?}");
    }
}
