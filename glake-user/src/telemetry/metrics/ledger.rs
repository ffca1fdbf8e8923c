//! What was booked since the agent started. Nothing of it ever falls; what others count stands beside it, as they tell it.

use super::{
    booking::Booking,
    families,
    table::{FINDING_ACTIVE, Family, HISTOGRAM_SERIES, SIZE_SERIES, Type},
};
use crate::{
    events::sample::Histogram,
    host::inventory::Inventory,
    telemetry::{difference::Difference, finding::Finding},
};
use std::collections::BTreeMap;

/// The labels of a series, in the order of its family.
pub type Labels = Vec<(&'static str, String)>;

/// Counters and histograms since the agent started.
#[derive(Debug, Default)]
pub struct Ledger {
    counters: BTreeMap<&'static str, BTreeMap<Labels, u64>>,
    histograms: BTreeMap<&'static str, BTreeMap<Labels, Histogram>>,
    sizes: BTreeMap<&'static str, BTreeMap<Labels, Sizes>>,
    /// What belongs to workloads.
    pub(super) workloads: Booking,
    gauges: BTreeMap<&'static str, BTreeMap<Labels, f64>>,
    /// Counters that something else keeps, as it told them last.
    told: BTreeMap<&'static str, BTreeMap<Labels, u64>>,
    refused: u64,
    xid_lasts: BTreeMap<(String, u32), u64>,
    /// UVM evictions of each GPU (by UUID) less those that a workload has lost.
    pub(super) evictions_owed: BTreeMap<Option<String>, i64>,
}

/// A histogram of sizes: counts by power of two, and the sum of the sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Slot `i` counts sizes of at most `1 << i`.
    pub slots: Vec<u64>,
    /// Of all sizes.
    pub sum: u64,
}

/// Never around the end: some counts are other programs' words.
fn grow(counter: &mut u64, growth: u64) {
    *counter = counter.saturating_add(growth);
}

/// Label sets kept free for `other`: as many as any family has operations.
const SPARE: usize = 6;

impl Ledger {
    /// Books what happened between two readings.
    pub fn book(&mut self, difference: &Difference, host: &Inventory) {
        self.gauges.clear();
        self.told.clear();
        families::book(self, &difference.grown, host);
    }

    /// When each Xid was last seen on each device (as sysfs spells it), Unix ns, earlier runs of the agent included.
    pub fn set_xid_lasts(&mut self, lasts: BTreeMap<(String, u32), u64>) {
        self.xid_lasts = lasts;
    }

    pub(super) fn xid_lasts(&self) -> &BTreeMap<(String, u32), u64> {
        &self.xid_lasts
    }

    pub(super) fn xid_last(&self, pci: &str, code: u32) -> Option<u64> {
        self.xid_lasts.get(&(pci.to_owned(), code)).copied()
    }

    /// Books a counter. A growth of 0 makes the series exist, which alerts on `increase()` need.
    pub fn count(&mut self, family: &'static Family, labels: Labels, growth: u64) {
        debug_assert_eq!(family.kind, Type::Counter);
        let cells = self.counters.entry(family.name).or_default();
        match place(family, cells, labels, 1) {
            Place::Own(labels) => grow(cells.entry(labels).or_default(), growth),
            Place::Folded(labels) => {
                self.refused += 1;
                grow(cells.entry(labels).or_default(), growth);
            }
            Place::Refused => self.refused += 1,
        }
    }

    /// Books a histogram.
    pub fn observe(&mut self, family: &'static Family, labels: Labels, grown: &Histogram) {
        debug_assert_eq!(family.kind, Type::Histogram);
        let cells = self.histograms.entry(family.name).or_default();
        match place(family, cells, labels, HISTOGRAM_SERIES) {
            Place::Own(labels) => cells.entry(labels).or_default().add(grown),
            Place::Folded(labels) => {
                self.refused += 1;
                cells.entry(labels).or_default().add(grown);
            }
            Place::Refused => self.refused += 1,
        }
    }

    /// Books a histogram of sizes: what each slot grew by, and the sum.
    pub fn sizes(&mut self, family: &'static Family, labels: Labels, slots: &[u64], sum: u64) {
        debug_assert_eq!(family.kind, Type::Histogram);
        let cells = self.sizes.entry(family.name).or_default();
        let (Place::Own(labels) | Place::Folded(labels)) = place(family, cells, labels, SIZE_SERIES) else {
            self.refused += 1;
            return;
        };
        let all = cells.entry(labels).or_default();
        all.slots.resize(all.slots.len().max(slots.len()), 0);
        all.slots.iter_mut().zip(slots).for_each(|(total, n)| *total += n);
        all.sum += sum;
    }

    /// Sets a gauge of this interval. It is gone in the next one unless it is set again.
    pub fn gauge(&mut self, family: &'static Family, labels: Labels, value: f64) {
        debug_assert_eq!(family.kind, Type::Gauge);
        let cells = self.gauges.entry(family.name).or_default();
        if cells.len() < family.max || cells.contains_key(&labels) {
            cells.insert(labels, value);
        } else {
            self.refused += 1;
        }
    }

    /// What is found now, after what was booked.
    pub fn find(&mut self, findings: &[Finding]) {
        for finding in findings {
            let mut labels: Labels =
                vec![("rule", finding.rule.clone()), ("severity", finding.severity.clone())];
            labels.extend(finding.uuid.iter().map(|uuid| ("UUID", uuid.clone())));
            labels.extend(finding.pci.as_deref().and_then(crate::pci::dcgm).map(|bus| ("pci_bus_id", bus)));
            self.gauge(&FINDING_ACTIVE, labels, 1.0);
        }
    }

    /// A counter that something else keeps, whole: a GPU's ECC errors since it was made. Like a gauge it is gone in the next
    /// interval unless it is told again, and it starts again where its keeper does.
    pub fn tell(&mut self, family: &'static Family, labels: Labels, total: u64) {
        debug_assert_eq!(family.kind, Type::Counter);
        let cells = self.told.entry(family.name).or_default();
        if cells.len() < family.max || cells.contains_key(&labels) {
            cells.insert(labels, total);
        } else {
            self.refused += 1;
        }
    }

    /// The gauges of a family.
    pub fn gauges(&self, family: &Family) -> impl Iterator<Item = (&Labels, f64)> {
        self.gauges.get(family.name).into_iter().flatten().map(|(labels, value)| (labels, *value))
    }

    /// The counters of a family that belong to no workload.
    pub fn counters(&self, family: &Family) -> impl Iterator<Item = (&Labels, u64)> {
        let own = self.counters.get(family.name).into_iter().flatten();
        own.chain(self.told.get(family.name).into_iter().flatten()).map(|(labels, total)| (labels, *total))
    }

    /// The histograms of a family.
    pub fn histograms(&self, family: &Family) -> impl Iterator<Item = (&Labels, &Histogram)> {
        self.histograms.get(family.name).into_iter().flatten()
    }

    /// The histograms of sizes of a family.
    pub fn size_histograms(&self, family: &Family) -> impl Iterator<Item = (&Labels, &Sizes)> {
        self.sizes.get(family.name).into_iter().flatten()
    }

    /// What is booked by workload.
    pub fn workloads(&self) -> &Booking {
        &self.workloads
    }

    /// How often a label set found its family full.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

enum Place {
    Own(Labels),
    Folded(Labels),
    Refused,
}

/// Where a label set goes: to its own series while there is room, else to the family's `other`.
fn place<T>(family: &Family, cells: &BTreeMap<Labels, T>, labels: Labels, series: usize) -> Place {
    let spare = if family.folds.is_empty() { 0 } else { SPARE.min(family.max / series / 4) };
    if cells.contains_key(&labels) || (cells.len() + spare + 1) * series <= family.max {
        return Place::Own(labels);
    }
    if family.folds.is_empty() {
        return Place::Refused;
    }
    let folded: Labels = labels
        .into_iter()
        .map(
            |(name, value)| {
                if family.folds.contains(&name) { (name, "other".to_owned()) } else { (name, value) }
            },
        )
        .collect();
    if cells.contains_key(&folded) || (cells.len() + 1) * series <= family.max {
        return Place::Folded(folded);
    }
    Place::Refused
}
