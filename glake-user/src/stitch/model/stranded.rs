//! Where memory went that is held and not asked for: the picture at one moment, cut into causes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, Region, Use};
use crate::stitch::snapshot::{BlockState, DeviceRecording, Run};

/// Handles of the GPU: free memory that spans no whole one cannot be joined with other memory.
pub const GRANULE: u64 = 2 << 20;

/// Bytes by cause. `requested` and the causes together are `reserved`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stranded {
    /// Held from the driver.
    pub reserved: u64,
    /// Asked for by live tensors.
    pub requested: u64,
    /// Segments with no tensor in them, that `empty_cache` would give back.
    pub whole_free: u64,
    /// How many distinct sizes those have.
    pub whole_free_sizes: usize,
    /// Free parts of segments in use, as far as they span whole granules: remapping can use them.
    pub holes: u64,
    /// Free parts of segments in use below a granule.
    pub slivers: u64,
    /// Free memory that belongs to other streams than the main one.
    pub other_streams: u64,
    /// Let go by the program, still in use by another stream.
    pub pending: u64,
    /// Rounding, and ends of blocks that were not split off.
    pub rounding: u64,
    /// Free memory of private pools: not stitchable.
    pub private: u64,
    /// Segments.
    pub segments: usize,
}

impl Stranded {
    /// Everything held and not asked for.
    pub fn gap(&self) -> u64 {
        self.reserved.saturating_sub(self.requested)
    }

    /// The causes with their bytes, the largest first; those of no bytes are left out.
    pub fn causes(&self) -> Vec<(String, u64)> {
        let sizes = match self.whole_free_sizes {
            1 => "of one size".to_string(),
            n => format!("of {n} different sizes"),
        };
        let mut causes = vec![
            (format!("cached segments {sizes}, wholly free"), self.whole_free),
            ("free parts of segments in use".to_string(), self.holes),
            ("free parts below 2 MiB (cannot be joined)".to_string(), self.slivers),
            ("free memory of side streams".to_string(), self.other_streams),
            ("freed, waiting for another stream".to_string(), self.pending),
            ("rounding and block ends not split off".to_string(), self.rounding),
            ("free memory of private pools (cannot be joined)".to_string(), self.private),
        ];
        causes.retain(|(_, bytes)| *bytes > 0);
        causes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        causes
    }

    /// The picture of a layout.
    pub fn of(regions: &[Region]) -> Stranded {
        let main = main_stream(regions);
        let mut out = Stranded { segments: regions.len(), ..Stranded::default() };
        let mut sizes = BTreeSet::new();
        for region in regions {
            let in_use = region.cells.iter().any(|c| matches!(c.state, Use::Allocated | Use::Pending));
            if !in_use && !region.private && region.stream == main {
                sizes.insert(region.size);
            }
            let mut at = region.address;
            for cell in &region.cells {
                out.add(region, cell, at, in_use, main);
                at += cell.size;
            }
        }
        out.whole_free_sizes = sizes.len();
        out
    }

    fn add(&mut self, region: &Region, cell: &Cell, at: u64, in_use: bool, main: u64) {
        if cell.state == Use::Unmapped {
            return;
        }
        self.reserved += cell.size;
        match cell.state {
            Use::Allocated => {
                self.requested += cell.requested;
                self.rounding += cell.size.saturating_sub(cell.requested);
            }
            Use::Pending => self.pending += cell.size,
            _ if region.private => self.private += cell.size,
            _ if region.stream != main => self.other_streams += cell.size,
            _ if !in_use => self.whole_free += cell.size,
            _ => {
                let whole = granules(at, cell.size);
                self.holes += whole;
                self.slivers += cell.size - whole;
            }
        }
    }
}

/// Bytes of whole granules inside a range.
fn granules(at: u64, size: u64) -> u64 {
    let first = at.next_multiple_of(GRANULE);
    ((at + size) / GRANULE * GRANULE).saturating_sub(first)
}

/// The stream that holds the most.
fn main_stream(regions: &[Region]) -> u64 {
    let mut by_stream: BTreeMap<u64, u64> = BTreeMap::new();
    for region in regions {
        *by_stream.entry(region.stream).or_default() += region.size;
    }
    by_stream
        .into_iter()
        .max_by_key(|(stream, size)| (*size, std::cmp::Reverse(*stream)))
        .map_or(0, |(s, _)| s)
}

/// The segments of a snapshot as they stood when it was taken.
pub fn regions_of(device: &DeviceRecording) -> Vec<Region> {
    let cell = |b: &crate::stitch::snapshot::Block| Cell {
        size: b.size,
        requested: if b.state == BlockState::Allocated { b.requested } else { 0 },
        id: None,
        state: match b.state {
            BlockState::Allocated => Use::Allocated,
            BlockState::Pending => Use::Pending,
            BlockState::Free => Use::Free,
        },
    };
    let one = |s: &crate::stitch::snapshot::Segment| Region {
        address: s.address,
        size: s.size,
        stream: s.stream,
        small: s.small,
        private: s.private,
        cells: s.blocks.iter().map(cell).collect(),
    };
    device.segments.iter().map(one).collect()
}

/// A call site whose live tensors keep free memory from going back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The call site's number in the recording.
    pub site: u32,
    /// Bytes its tensors hold in segments with free parts.
    pub holds: u64,
    /// Free bytes in those segments, its share of them.
    pub strands: u64,
}

/// Who keeps segments from being wholly free, the largest first. Free bytes are shared out by the bytes held.
pub fn pins(regions: &[Region], run: &Run) -> Vec<Pin> {
    let mut by_site: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for region in regions {
        let free: u64 = region.cells.iter().filter(|c| c.state == Use::Free).map(|c| c.size).sum();
        let used: u64 = region.cells.iter().filter(|c| c.state == Use::Allocated).map(|c| c.size).sum();
        if free == 0 || used == 0 {
            continue;
        }
        for cell in region.cells.iter().filter(|c| c.state == Use::Allocated) {
            let site = cell.id.and_then(|id| run.sites.get(id as usize)).copied();
            let entry = by_site.entry(site.unwrap_or(u32::MAX)).or_default();
            entry.0 += cell.size;
            entry.1 += (u128::from(free) * u128::from(cell.size) / u128::from(used)) as u64;
        }
    }
    let mut pins: Vec<Pin> =
        by_site.into_iter().map(|(site, (holds, strands))| Pin { site, holds, strands }).collect();
    pins.sort_by_key(|p| (std::cmp::Reverse(p.strands), p.site));
    pins
}
