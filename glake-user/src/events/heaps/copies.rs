//! What processes copied to and from GPUs by GLake's ways.

use serde::{Deserialize, Serialize};

use crate::events::sample::Histogram;

/// More than any process has: GPUs, directions and ways multiplied.
pub(super) const MOST: usize = 256;

/// Where to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To GPU memory.
    #[default]
    ToGpu,
    /// From GPU memory.
    FromGpu,
}

impl Direction {
    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Direction::ToGpu => "to_gpu",
            Direction::FromGpu => "from_gpu",
        }
    }
}

/// The way, as `glake copy --route` names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Out of the page cache, or into it.
    PageCache,
    /// From the disk or to it, past the page cache.
    Disk,
    /// Over other GPUs' links too, whatever the source.
    MultiPath,
    /// The driver's own copy of plain memory.
    Plain,
    /// One that this version does not know: a newer GLake's.
    #[default]
    #[serde(other)]
    Other,
}

impl Route {
    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Route::PageCache => "page_cache",
            Route::Disk => "disk",
            Route::MultiPath => "multi_path",
            Route::Plain => "plain",
            Route::Other => "other",
        }
    }
}

/// The finished copies of one GPU, direction and way. Never falls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Copies {
    /// The GPU as sysfs spells it. `None`: no PCI device, or not told.
    pub pci: Option<String>,
    /// Where to.
    pub direction: Direction,
    /// Which way.
    pub route: Route,
    /// Bytes.
    pub bytes: u64,
    /// How long each took, from the first read to the last byte in place.
    pub duration: Histogram,
}

impl Copies {
    /// Whether both count the same thing.
    pub fn is_like(&self, other: &Copies) -> bool {
        (&self.pci, self.direction, self.route) == (&other.pci, other.direction, other.route)
    }

    /// Whether no honest process would say it.
    pub(super) fn odd(&self) -> bool {
        let pci = self.pci.as_deref();
        pci.is_some_and(|pci| crate::pci::sysfs(pci).as_deref() != Some(pci))
            || self.duration.slots.len() > glake_common::hist::SLOTS
    }

    /// What came since `before`; `None` where it fell, as it does when the file is another's now.
    fn since(&self, before: Option<&Copies>) -> Option<Copies> {
        let Some(before) = before else { return Some(self.clone()) };
        Some(Copies {
            bytes: self.bytes.checked_sub(before.bytes)?,
            duration: self.duration.since(&before.duration)?,
            ..self.clone()
        })
    }
}

/// Adds what `new` counted beyond `before` to `sums`. Every sum exists from the first sight on, at 0. Beyond what a host can have,
/// GPUs are not told apart: anybody may name some.
pub(super) fn add_growth(sums: &mut Vec<Copies>, before: &[Copies], new: &[Copies]) {
    for copies in new {
        let mut copies = copies.clone();
        let growth = copies.since(before.iter().find(|b| b.is_like(&copies)));
        if sums.len() >= MOST && !sums.iter().any(|s| s.is_like(&copies)) {
            copies.pci = None;
        }
        let index = sums.iter().position(|s| s.is_like(&copies)).unwrap_or_else(|| {
            sums.push(Copies { bytes: 0, duration: Histogram::default(), ..copies });
            sums.len() - 1
        });
        let Some(growth) = growth else { continue };
        sums[index].bytes = sums[index].bytes.saturating_add(growth.bytes);
        sums[index].duration.add(&growth.duration);
    }
}
