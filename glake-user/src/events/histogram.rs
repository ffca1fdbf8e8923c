//! Rows of counts, and the latency histogram made of one.

use serde::{Deserialize, Serialize};

/// A latency histogram in the slots of [`glake_common::hist`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Counts by slot, trailing empty slots left out; at most [`glake_common::hist::SLOTS`] long.
    pub slots: Vec<u64>,
    /// The sum of all values in ns.
    pub sum_ns: u64,
}

/// Leaves trailing zeros out, as rows of counts are kept everywhere.
pub fn trim(row: &mut Vec<u64>) {
    while row.last() == Some(&0) {
        row.pop();
    }
}

/// Adds one row of counts to another.
pub fn add_row(sum: &mut Vec<u64>, more: &[u64]) {
    sum.resize(sum.len().max(more.len()), 0);
    sum.iter_mut().zip(more).for_each(|(total, n)| *total = total.saturating_add(*n));
}

impl Histogram {
    /// Of the counts of all slots.
    pub fn new(mut slots: Vec<u64>, sum_ns: u64) -> Histogram {
        trim(&mut slots);
        Histogram { slots, sum_ns }
    }

    /// Adds another one.
    pub fn add(&mut self, more: &Histogram) {
        add_row(&mut self.slots, &more.slots);
        self.sum_ns = self.sum_ns.saturating_add(more.sum_ns);
    }

    /// What it has beyond an older reading of the same. `None`: less than that somewhere, so it began anew; slots and sum belong
    /// together.
    pub fn since(&self, older: &Histogram) -> Option<Histogram> {
        let slot = |slots: &[u64], i: usize| slots.get(i).copied().unwrap_or(0);
        let wide = older.slots.len().max(self.slots.len());
        let grown = (0..wide).map(|i| slot(&self.slots, i).checked_sub(slot(&older.slots, i)));
        Some(Histogram::new(grown.collect::<Option<_>>()?, self.sum_ns.checked_sub(older.sum_ns)?))
    }

    /// How many values it holds.
    pub fn count(&self) -> u64 {
        self.slots.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The upper bound in ns of the slot where quantile `q` falls: at most one half octave too high.
    /// `None` when empty, `u64::MAX` when it falls in the last slot, which has no bound.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = ((total as f64 * q).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (i, n) in self.slots.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return Some(glake_common::hist::upper_us(i).map_or(u64::MAX, |us| us * 1000));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_upper_bound_of_its_slot() {
        let mut h = Histogram { slots: vec![0; glake_common::hist::SLOTS], sum_ns: 0 };
        for ns in [90_000u64, 90_000, 90_000, 31_000_000] {
            h.slots[glake_common::hist::slot(ns)] += 1;
        }
        assert_eq!(h.quantile_ns(0.5), Some(96_000));
        assert_eq!(h.quantile_ns(0.99), Some(32_768_000));
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
    }
}
