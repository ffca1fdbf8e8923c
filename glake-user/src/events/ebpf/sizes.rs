//! How large the maps are: from the host's devices and possible CPUs, within a budget of kernel memory.

use super::table::Group;
use crate::error::{Error, Kind, Result};
use glake_common::{block, named, nvme, param, record::Record, stat, table, uvm};
use std::mem::size_of;

/// What the sizes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Possible CPUs.
    pub cpus: u32,
    /// Block devices.
    pub disks: u32,
    /// NVMe queues, all controllers together.
    pub nvme_queues: u32,
}

/// Entries of each map of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Copies of each counter: a power of two.
    pub shards: u32,
    /// Sets of requests in flight: a power of two.
    pub slot_sets: u32,
    /// Sets of devices: a power of two.
    pub device_sets: u32,
    /// Histogram blocks.
    pub blocks: u32,
    /// Workload cells.
    pub cells: u32,
    /// Sets of NVMe commands in flight: a power of two.
    pub flight_sets: u32,
    /// Sets of NVMe cells: a power of two.
    pub nvme_sets: u32,
    /// Sets of named things: a power of two.
    pub named_sets: u32,
    /// UVM address spaces at one time.
    pub uvm_spaces: u32,
    /// UVM cells.
    pub uvm_cells: u32,
    /// Sets of GPUs: a power of two.
    pub uvm_gpu_sets: u32,
    /// Bytes of the ring: a power of two, at least a page.
    pub ring: u32,
}

/// Nothing: the maps of other groups still exist in each, as small as they can be.
const LEAST: Sizes = Sizes {
    shards: 1,
    slot_sets: 1,
    device_sets: 1,
    blocks: 1,
    cells: 1,
    flight_sets: 1,
    nvme_sets: 1,
    named_sets: 1,
    uvm_spaces: 1,
    uvm_cells: 1,
    uvm_gpu_sets: 1,
    ring: 4096,
};

/// Kernel bookkeeping per element of a preallocated hash map: `struct htab_elem` (48) plus its bucket (16).
const HASH_OVERHEAD: u64 = 64;

/// One size of [`Sizes`], to read or shrink.
type Size = fn(&mut Sizes) -> &mut u32;

impl Sizes {
    /// What a group wants on this host.
    fn wanted(group: Group, host: Host, ring: u32) -> Sizes {
        let shards = host.cpus.clamp(1, 64).next_power_of_two();
        match group {
            Group::Block => Sizes {
                shards,
                slot_sets: 4096,
                device_sets: (host.disks * 4 / table::WAYS as u32).clamp(8, 512).next_power_of_two(),
                // Reads, writes and flushes or discards of each; some more for devices that come later.
                blocks: (host.disks * 3 + 16).min(1024),
                cells: 16384,
                ring,
                ..LEAST
            },
            Group::Nvme => Sizes {
                flight_sets: 4096,
                // Read, write, and two more per queue; half empty so that sets seldom fill.
                nvme_sets: (host.nvme_queues * 8 / table::WAYS as u32).clamp(64, 4096).next_power_of_two(),
                ring,
                ..LEAST
            },
            Group::Host => Sizes { shards: shards.min(16), named_sets: 64, ring, ..LEAST },
            Group::Xid => Sizes { named_sets: 64, ring: ring.min(64 << 10), ..LEAST },
            // One thread a GPU services faults, so few copies will do. A process has a cell for each GPU, and one.
            Group::Uvm => Sizes {
                shards: shards.min(4),
                uvm_spaces: 512,
                uvm_cells: 512,
                uvm_gpu_sets: 8,
                ring: ring.min(64 << 10),
                ..LEAST
            },
        }
    }

    /// Sizes of a group that take at most `budget` bytes. Gives up precision in this order: copies per CPU, workload cells,
    /// requests in flight, NVMe cells, ring.
    ///
    /// # Errors
    /// `Exhausted` when even the least does not fit.
    pub fn within(group: Group, host: Host, ring: u32, budget: u64) -> Result<Sizes> {
        let ring = ring.clamp(4096, 64 << 20).next_power_of_two();
        let mut sizes = Sizes::wanted(group, host, ring);
        let floors: [(Size, u32); 7] = [
            (|s| &mut s.shards, 8),
            (|s| &mut s.cells, 4096),
            (|s| &mut s.slot_sets, 512),
            (|s| &mut s.nvme_sets, 64),
            (|s| &mut s.flight_sets, 256),
            (|s| &mut s.ring, 64 << 10),
            (|s| &mut s.shards, 1),
        ];
        for (field, floor) in floors {
            while sizes.bytes() > budget && *field(&mut sizes) > floor {
                *field(&mut sizes) /= 2;
            }
        }
        if sizes.bytes() > budget {
            return Err(Error::new(
                Kind::Exhausted,
                format!("fitting the maps of {group:?} into {budget} bytes: they need {}", sizes.bytes()),
            )
            .remedy(format!("set map_budget_bytes to at least {}", sizes.bytes())));
        }
        Ok(sizes)
    }

    /// Each map and its entries.
    pub fn entries(&self) -> [(&'static str, u32, u64); 29] {
        let devices = self.device_sets * table::WAYS as u32;
        let nvme_cells = self.nvme_sets * table::WAYS as u32;
        let named = self.named_sets * table::WAYS as u32;
        let set = size_of::<table::Set>() as u64;
        let gpus = self.uvm_gpu_sets * table::WAYS as u32;
        // As many runs of the fault service as GPUs, and some processors held back at one time.
        let (runs, throttles) = (gpus, self.uvm_cells);
        [
            ("SLOTS", self.slot_sets, size_of::<block::SlotSet>() as u64),
            ("DEVICES", self.device_sets, set),
            ("DEVICE_BLOCKS", devices * 8, 8),
            ("BLOCKS", self.blocks * self.shards, size_of::<block::Counters>() as u64),
            ("OWNERS", self.cells, size_of::<block::OwnerKey>() as u64 + 8 + HASH_OVERHEAD),
            ("FREE_CELLS", self.cells, 4),
            ("CELL_INFO", self.cells, size_of::<block::CellInfo>() as u64),
            ("CELLS", self.cells * self.shards.min(CELL_SHARDS), size_of::<block::Cell>() as u64),
            ("FLIGHTS", self.flight_sets, size_of::<nvme::FlightSet>() as u64),
            ("NVME_KEYS", self.nvme_sets, set),
            ("NVME_CELLS", nvme_cells, size_of::<nvme::Counters>() as u64),
            ("NVME_DEPTHS", nvme::DEPTHS, 8),
            ("NVME_SHIFTS", nvme::SHIFTS, 8),
            ("NAMED_KEYS", self.named_sets, set),
            ("NAMED", named, size_of::<named::Named>() as u64),
            ("NAMED_COUNTERS", named * self.shards, size_of::<named::Counters>() as u64),
            ("UVM_SPACES", self.uvm_spaces, size_of::<uvm::Space>() as u64 + 8 + HASH_OVERHEAD),
            ("UVM_INDEX", self.uvm_cells, size_of::<uvm::CellKey>() as u64 + 8 + HASH_OVERHEAD),
            ("UVM_FREE", self.uvm_cells, 4),
            ("UVM_INFO", self.uvm_cells, size_of::<uvm::CellInfo>() as u64),
            ("UVM_CELLS", self.uvm_cells * self.shards, size_of::<uvm::Counters>() as u64),
            ("UVM_GPU_KEYS", self.uvm_gpu_sets, set),
            ("UVM_GPUS", gpus, size_of::<uvm::GpuInfo>() as u64),
            ("UVM_GPU_CELLS", gpus * self.shards, size_of::<uvm::GpuCounters>() as u64),
            ("UVM_RUNS", runs, size_of::<uvm::Run>() as u64 + 8 + HASH_OVERHEAD),
            ("UVM_EVICTING", throttles, 1 + 8 + HASH_OVERHEAD),
            ("UVM_THROTTLES", throttles, size_of::<uvm::ThrottleKey>() as u64 + 8 + HASH_OVERHEAD),
            ("IOMMU", self.shards, size_of::<stat::iommu::Counters>() as u64),
            ("STATS", self.shards, size_of::<stat::Stats>() as u64),
        ]
    }

    /// Kernel memory of all maps in bytes: values, the ring (data and its two control pages) and known bookkeeping.
    pub fn bytes(&self) -> u64 {
        let page = 4096u64;
        let maps: u64 =
            self.entries().iter().map(|(_, n, each)| (u64::from(*n) * each).next_multiple_of(page)).sum();
        maps + u64::from(self.ring) + 3 * page
    }

    /// The settings that the programs need to know.
    pub fn params(&self) -> [u32; param::COUNT] {
        let mut params = [0; param::COUNT];
        params[param::SLOT_MASK] = self.slot_sets - 1;
        params[param::DEVICE_MASK] = self.device_sets - 1;
        params[param::SHARDS] = self.shards;
        params[param::CELL_SHARDS] = self.shards.min(CELL_SHARDS);
        params[param::BLOCKS] = self.blocks;
        params[param::NVME_MASK] = self.nvme_sets - 1;
        params[param::FLIGHT_MASK] = self.flight_sets - 1;
        params[param::NAMED_MASK] = self.named_sets - 1;
        params[param::UVM_GPU_MASK] = self.uvm_gpu_sets - 1;
        params
    }
}

/// Copies of each workload cell: fewer than of the other counters, since a workload runs on few CPUs at a time and there
/// are many cells.
pub const CELL_SHARDS: u32 = 8;

/// A ring must hold a few events at least.
const _: () = assert!(size_of::<Record>() * 8 < 4096);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: u64 = 16 << 20;

    #[test]
    fn a_large_host_fits_the_default_budget() {
        let host = Host { cpus: 256, disks: 64, nvme_queues: 24 * 128 };
        let sizes = |g: &Group| Sizes::within(*g, host, 256 << 10, BUDGET / 16 * g.sixteenths()).unwrap();
        let total: u64 = Group::ALL.iter().map(|g| sizes(g).bytes()).sum();
        assert!(total <= BUDGET, "{total}");
        assert_eq!(Group::ALL.iter().map(|g| g.sixteenths()).sum::<u64>(), 16);
    }

    #[test]
    fn a_budget_that_cannot_hold_the_least_names_the_least() {
        let host = Host { cpus: 2, disks: 2, nvme_queues: 2 };
        let error = Sizes::within(Group::Block, host, 4096, 1000).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        assert!(error.remedy_text().unwrap().contains("map_budget_bytes"));
    }

    proptest! {
        #[test]
        fn sizes_keep_to_the_budget_and_masks_are_masks(
            cpus in 1u32..1024, disks in 0u32..2000, nvme_queues in 0u32..10_000,
            ring in 0u32..(1 << 24), budget in (4u64 << 20)..(64 << 20),
        ) {
            for group in Group::ALL {
                let Ok(sizes) = Sizes::within(group, Host { cpus, disks, nvme_queues }, ring, budget) else { continue };
                prop_assert!(sizes.bytes() <= budget);
                for n in [sizes.shards, sizes.slot_sets, sizes.device_sets, sizes.nvme_sets, sizes.flight_sets,
                          sizes.named_sets, sizes.uvm_gpu_sets, sizes.ring] {
                    prop_assert!(n.is_power_of_two());
                }
            }
        }
    }
}
