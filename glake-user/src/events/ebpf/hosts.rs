//! Counters of the whole host and of things that the kernel names by text.

use super::{attach::Loaded, record};
use crate::{
    clock::Stamp,
    error::Result,
    events::sample::{AerDevice, DmaDevice, Iommu, IommuFaults, SwiotlbDevice, XidCount, trim},
    sys::bpf::Words,
};
use glake_common::{
    named::{Named, family},
    stat::iommu,
    table,
};
use std::mem::{offset_of, size_of};

const NAMED: usize = size_of::<Named>() / 8;
const COUNTERS: usize = 4;

/// The maps of a group that counts by name.
pub(crate) struct Hosts {
    places: usize,
    shards: usize,
    named: Words,
    counters: Words,
    iommu: Words,
}

/// One name and its counters.
pub(crate) struct Count {
    family: u32,
    value: u32,
    name: String,
    last_ns: u64,
    counts: [u64; COUNTERS],
}

impl Hosts {
    pub(crate) fn new(loaded: &Loaded) -> Result<Hosts> {
        let places = loaded.sizes.named_sets as usize * table::WAYS;
        let shards = loaded.sizes.shards as usize;
        Ok(Hosts {
            places,
            shards,
            named: loaded.words("NAMED", (places * NAMED) as u64)?,
            counters: loaded.words("NAMED_COUNTERS", (places * shards * COUNTERS) as u64)?,
            iommu: loaded.words("IOMMU", (shards * iommu::COUNT) as u64)?,
        })
    }

    /// Every name counted so far.
    pub(crate) fn counts(&self) -> Vec<Count> {
        (0..self.places).filter_map(|place| self.count(place)).collect()
    }

    fn count(&self, place: usize) -> Option<Count> {
        let words: [u64; NAMED] = self.named.array(place * NAMED);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let (family, value) = (words[0] as u32, (words[0] >> 32) as u32);
        if family == 0 {
            return None;
        }
        let from = offset_of!(Named, name);
        let name = record::text(&bytes[from..from + glake_common::named::NAME]);
        let mut counts = [0u64; COUNTERS];
        for shard in 0..self.shards {
            let copy = self.counters.array::<COUNTERS>((place * self.shards + shard) * COUNTERS);
            counts.iter_mut().zip(copy).for_each(|(sum, n)| *sum += n);
        }
        Some(Count { family, value, name, last_ns: words[offset_of!(Named, last_ns) / 8], counts })
    }

    /// Map and unmap calls.
    pub(crate) fn iommu(&self) -> Iommu {
        let sum = |which: usize| (0..self.shards).map(|s| self.iommu.load(s * iommu::COUNT + which)).sum();
        let mut map_sizes: Vec<u64> = (0..iommu::CLASSES).map(|c| sum(iommu::SIZES + c)).collect();
        trim(&mut map_sizes);
        Iommu {
            maps: sum(iommu::MAPS),
            mapped_bytes: sum(iommu::MAPPED),
            unmaps: sum(iommu::UNMAPS),
            unmapped_bytes: sum(iommu::UNMAPPED),
            map_sizes,
        }
    }
}

fn of(counts: &[Count], family: u32) -> impl Iterator<Item = &Count> {
    counts.iter().filter(move |c| c.family == family)
}

/// DMA mappings; `errors` where the kernel tells of failed ones.
pub(crate) fn dma(counts: &[Count], errors: bool) -> Vec<DmaDevice> {
    let device = |c: &Count| DmaDevice {
        device: c.name.clone(),
        maps: c.counts[0],
        bytes: c.counts[1],
        errors: errors.then_some(c.counts[2]),
    };
    of(counts, family::DMA).map(device).collect()
}

/// Bounces.
pub(crate) fn swiotlb(counts: &[Count]) -> Vec<SwiotlbDevice> {
    let device =
        |c: &Count| SwiotlbDevice { device: c.name.clone(), bounces: c.counts[0], bytes: c.counts[1] };
    of(counts, family::SWIOTLB).map(device).collect()
}

/// AER reports.
pub(crate) fn aer(counts: &[Count]) -> Vec<AerDevice> {
    let device = |c: &Count| AerDevice {
        pci: c.name.clone(),
        corrected: c.counts[0],
        nonfatal: c.counts[1],
        fatal: c.counts[2],
    };
    of(counts, family::AER).map(device).collect()
}

/// Faults whose trace point names the device.
pub(crate) fn iommu_faults(counts: &[Count]) -> Vec<IommuFaults> {
    let device = |c: &Count| IommuFaults {
        pci: Some(c.name.clone()),
        source: "tracepoint".to_owned(),
        count: c.counts[0],
    };
    of(counts, family::IOMMU_FAULT).map(device).collect()
}

/// Xid and SXid reports.
pub(crate) fn xid(counts: &[Count], now: Stamp) -> Vec<XidCount> {
    let device = |c: &Count| {
        let ago = now.monotonic_ns.saturating_sub(c.last_ns);
        XidCount {
            pci: c.name.clone(),
            nvswitch: c.family == family::SXID,
            code: c.value,
            source: if c.family == family::XID_CALL { "kprobe" } else { "tracepoint" }.to_owned(),
            count: c.counts[0],
            last: Stamp { monotonic_ns: c.last_ns, realtime_ns: now.realtime_ns.saturating_sub(ago) },
        }
    };
    let families = [family::XID, family::XID_CALL, family::SXID];
    families.iter().flat_map(|family| of(counts, *family)).map(device).collect()
}

/// The dmar lines of /proc/interrupts: fault interrupts since boot, all CPUs together. `None`: there are none.
pub(crate) fn dmar_interrupts(text: &str) -> Option<u64> {
    let lines = text.lines().filter(|l| l.split_whitespace().last().is_some_and(is_dmar));
    let counts =
        lines.map(|l| l.split_whitespace().skip(1).map_while(|w| w.parse::<u64>().ok()).sum::<u64>());
    counts.reduce(|a, b| a + b)
}

/// `dmar0`, `DMAR-fault1`... the name that dmar_set_interrupt gives (drivers/iommu/intel/dmar.c: "dmar%d").
fn is_dmar(name: &str) -> bool {
    name.strip_prefix("dmar").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERRUPTS: &str = "            CPU0       CPU1\n  0:         44          0   IO-APIC   2-edge      timer\n\
         24:          1          2   DMAR-MSI    0-edge      dmar0\n 25:          0          4   DMAR-MSI    1-edge      dmar1\n\
         NMI:          0          0   Non-maskable interrupts\n";

    #[test]
    fn dmar_lines_are_added_up_over_units_and_cpus() {
        assert_eq!(dmar_interrupts(INTERRUPTS), Some(7));
    }

    #[test]
    fn a_host_without_dmar_lines_does_not_have_zero_faults() {
        assert_eq!(dmar_interrupts("  0:  44  0  IO-APIC  2-edge  timer\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,300}") { dmar_interrupts(&text); }
    }
}
