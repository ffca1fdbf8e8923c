//! Counters of what was missed, and totals that belong to no device. One copy per shard.

macro_rules! stats {
    ($($(#[$doc:meta])* $id:ident = $n:literal: $source:literal $reason:literal),* $(,)?) => {
        $($(#[$doc])* pub const $id: usize = $n;)*
        /// Source and reason of each drop counter, in the order of the indices.
        pub const DROPS: &[(&str, &str)] = &[$(($source, $reason)),*];
    };
}

stats! {
    /// No free place for a request in flight: its workload is unknown.
    BLOCK_SLOTS_FULL = 0: "block" "map_full",
    /// A request ended whose start was not seen.
    BLOCK_UNMATCHED = 1: "block" "unmatched",
    /// No free cell for a workload: its requests are unknown.
    OWNERS_FULL = 2: "owners" "map_full",
    /// No free place for a device or for a device's operation: its requests are not counted.
    DEVICES_FULL = 3: "devices" "map_full",
    /// No free place for an NVMe command in flight, queue or opcode.
    NVME_FULL = 4: "nvme" "map_full",
    /// A command ended whose start was not seen.
    NVME_UNMATCHED = 5: "nvme" "unmatched",
    /// No free place for a named device.
    NAMED_FULL = 6: "named" "map_full",
    /// The ring was full: an event was lost.
    RING_FULL = 7: "ring" "ring_full",
    /// No free place for an address space, a cell or a run of the fault service.
    UVM_FULL = 8: "uvm" "map_full",
    /// A structure of the driver held what it cannot hold: it has another layout than we think.
    UVM_IMPLAUSIBLE = 9: "uvm" "implausible",
}

/// io_uring requests punted to workers.
pub const IO_URING_PUNTED: usize = 10;
/// IOMMU fault interrupts (Intel).
pub const DMAR_FAULTS: usize = 11;
/// Histogram blocks taken from the pool; counted in shard 0 only.
pub const BLOCKS_TAKEN: usize = 12;
/// UVM events that were understood: what implausible ones are compared with.
pub const UVM_SEEN: usize = 13;
/// Address spaces seen; counted in shard 0 only.
pub const UVM_SERIALS: usize = 14;
/// How many words there are.
pub const COUNT: usize = 16;

/// One shard of all of them.
pub type Stats = [u64; COUNT];

/// IOMMU map and unmap calls: counts, bytes, then maps by size.
pub mod iommu {
    /// Map calls.
    pub const MAPS: usize = 0;
    /// Bytes mapped.
    pub const MAPPED: usize = 1;
    /// Unmap calls.
    pub const UNMAPS: usize = 2;
    /// Bytes unmapped.
    pub const UNMAPPED: usize = 3;
    /// First of the size classes.
    pub const SIZES: usize = 4;
    /// Size classes: at most `4 KiB << i`, the last holds everything larger.
    pub const CLASSES: usize = 20;
    /// How many words there are.
    pub const COUNT: usize = SIZES + CLASSES;
    /// One shard of all of them.
    pub type Counters = [u64; COUNT];

    /// The class of a size.
    #[inline(always)]
    pub fn class(bytes: u64) -> usize {
        let pages = bytes.saturating_sub(1) >> 12;
        let class = (64 - pages.leading_zeros()) as usize;
        if class < CLASSES { class } else { CLASSES - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_equal_to_a_bound_belongs_to_that_class() {
        for i in 0..iommu::CLASSES - 1 {
            assert_eq!(iommu::class(4096 << i), i);
            assert_eq!(iommu::class((4096 << i) + 1), i + 1);
        }
        assert_eq!(iommu::class(0), 0);
        assert_eq!(iommu::class(u64::MAX), iommu::CLASSES - 1);
    }

    #[test]
    fn drop_counters_are_numbered_in_their_order() {
        assert_eq!(DROPS.len(), IO_URING_PUNTED);
        assert_eq!(DROPS[RING_FULL], ("ring", "ring_full"));
    }
}
