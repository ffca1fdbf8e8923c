//! A minute of latencies as one row of cells, and the memory that it needs.

use super::tone::Tone;
use crate::cli::view::{self, Device};
use crate::telemetry::state::State;
use glake_common::hist::upper_us;
use std::collections::{BTreeMap, VecDeque};

/// Cells of a row: at most 4 us, then one per doubling, the last one all above 65.5 ms.
pub(super) const CELLS: usize = 16;

/// The last minute's histograms by device.
#[derive(Debug, Default)]
pub(super) struct Minute {
    devices: BTreeMap<String, VecDeque<(u64, Vec<u64>)>>,
}

impl Minute {
    const NS: u64 = 60_000_000_000;

    /// Adds an interval. Devices that are gone are forgotten.
    pub(super) fn add(&mut self, state: &State) {
        let now = state.at.monotonic_ns;
        let devices: Vec<Device> =
            view::block_devices(state).into_iter().chain(view::nvme_controllers(state)).collect();
        self.devices.retain(|name, _| devices.iter().any(|d| d.name == *name));
        for device in devices {
            let kept = self.devices.entry(device.name).or_default();
            // Time that runs backwards is another host or boot.
            kept.retain(|(t, _)| *t < now && now - t < Self::NS);
            kept.push_back((now, device.latency.slots));
        }
    }

    /// The row of a device.
    pub(super) fn row(&self, device: &str) -> Vec<(String, Tone)> {
        let mut slots = Vec::new();
        for (_, part) in self.devices.get(device).into_iter().flatten() {
            view::add_slots(&mut slots, part);
        }
        cells(&slots).into_iter().map(|level| (glyph(level).to_string(), Tone::Heat(level))).collect()
    }
}

/// Slots to levels, 0 (none) to 5 (half and more), by their share.
fn cells(slots: &[u64]) -> [u8; CELLS] {
    let mut counts = [0u64; CELLS];
    for (i, n) in slots.iter().enumerate() {
        // The first bound, 4 us, is 2^2; a slot belongs to the cell whose bound is the next power of two.
        let cell = upper_us(i)
            .map_or(CELLS - 1, |us| us.next_power_of_two().trailing_zeros().saturating_sub(2) as usize);
        counts[cell.min(CELLS - 1)] = counts[cell.min(CELLS - 1)].saturating_add(*n);
    }
    let total: f64 = counts.iter().map(|n| *n as f64).sum();
    counts.map(|n| match n as f64 / total {
        _ if n == 0 => 0,
        share if share < 0.01 => 1,
        share if share < 0.05 => 2,
        share if share < 0.2 => 3,
        share if share < 0.5 => 4,
        _ => 5,
    })
}

fn glyph(level: u8) -> char {
    ['.', ':', '-', '=', '+', '#'][usize::from(level.min(5))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use glake_common::hist::{SLOTS, slot};

    fn row(durations: &[(u64, u64)]) -> String {
        let mut slots = vec![0; SLOTS];
        for (us, n) in durations {
            slots[slot(us * 1000)] += n;
        }
        cells(&slots).map(glyph).iter().collect()
    }

    #[test]
    fn a_cell_is_a_doubling_and_its_sign_a_share() {
        assert_eq!(row(&[]), "................");
        assert_eq!(row(&[(1, 1)]), "#...............");
        assert_eq!(row(&[(4, 1), (5, 1), (8, 1)]), "+#..............", "4 us belongs below, 5 and 8 above");
        assert_eq!(row(&[(64, 996), (65_536, 3), (70_000, 1)]), "....#.........::");
        assert_eq!(row(&[(99_000_000, 1)]), "...............#");
    }

    #[test]
    fn a_minute_is_a_minute() {
        let mut minute = Minute::default();
        for second in 1..200 {
            minute.add(&view::tests::state(second));
        }
        assert_eq!(minute.devices["vda"].len(), 60);
        assert!(!minute.devices.contains_key("loop0"));
    }
}
