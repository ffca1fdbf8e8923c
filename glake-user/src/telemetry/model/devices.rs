//! Block devices, IOMMU, DMA, Xid: one state item per item of the reading.

use super::{View, count, count_opt, latency};
use crate::telemetry::state::{Block, BlockOp, Count, Dma, Dropped, Fault, Iommu, Xid};

impl View<'_> {
    pub(super) fn block(&self) -> Option<Vec<Block>> {
        let (newer, grown) = (self.newer.block.as_ref()?, self.grown.block.as_ref()?);
        let devices = newer.iter().zip(grown).map(|(total, growth)| {
            let seconds = self.seconds(self.older.block.is_some(), &format!("block {}", total.device));
            let operations = total.operations.iter().zip(&growth.operations).map(|(total, growth)| BlockOp {
                operation: total.operation,
                completed: count(total.completed, growth.completed, seconds),
                bytes: count(total.bytes, growth.bytes, seconds),
                errors: count(total.errors, growth.errors, seconds),
                queue: growth.queue.as_ref().map(latency),
                device: growth.device.as_ref().map(latency),
            });
            Block {
                device: total.device.clone(),
                controllers: total.controllers.clone(),
                in_flight: total.in_flight,
                requeues: count_opt(total.requeues, growth.requeues, seconds),
                merges: count_opt(total.merges, growth.merges, seconds),
                operations: operations.collect(),
            }
        });
        Some(devices.collect())
    }

    pub(super) fn iommu(&self) -> Option<Iommu> {
        let (total, growth) = (self.newer.iommu.as_ref()?, self.grown.iommu.as_ref()?);
        let seconds = self.seconds(self.older.iommu.is_some(), "iommu");
        Some(Iommu {
            maps: count(total.maps, growth.maps, seconds),
            mapped_bytes: count(total.mapped_bytes, growth.mapped_bytes, seconds),
            unmaps: count(total.unmaps, growth.unmaps, seconds),
            unmapped_bytes: count(total.unmapped_bytes, growth.unmapped_bytes, seconds),
            map_sizes: growth.map_sizes.clone(),
        })
    }

    pub(super) fn iommu_faults(&self) -> Option<Vec<Fault>> {
        let (newer, grown) = (self.newer.iommu_faults.as_ref()?, self.grown.iommu_faults.as_ref()?);
        let faults = newer.iter().zip(grown).map(|(total, growth)| {
            let thing = format!("iommu_faults {}", total.pci.as_deref().unwrap_or("unknown device"));
            let seconds = self.seconds(self.older.iommu_faults.is_some(), &thing);
            Fault {
                pci: total.pci.clone(),
                source: total.source.clone(),
                count: count(total.count, growth.count, seconds),
            }
        });
        Some(faults.collect())
    }

    pub(super) fn dma(&self) -> Option<Vec<Dma>> {
        let (newer, grown) = (self.newer.dma.as_ref()?, self.grown.dma.as_ref()?);
        let devices = newer.iter().zip(grown).map(|(total, growth)| {
            let seconds = self.seconds(self.older.dma.is_some(), &format!("dma {}", total.device));
            Dma {
                device: total.device.clone(),
                operations: count(total.maps, growth.maps, seconds),
                bytes: count(total.bytes, growth.bytes, seconds),
                errors: count_opt(total.errors, growth.errors, seconds),
            }
        });
        Some(devices.collect())
    }

    pub(super) fn swiotlb(&self) -> Option<Vec<Dma>> {
        let (newer, grown) = (self.newer.swiotlb.as_ref()?, self.grown.swiotlb.as_ref()?);
        let devices = newer.iter().zip(grown).map(|(total, growth)| {
            let seconds = self.seconds(self.older.swiotlb.is_some(), &format!("swiotlb {}", total.device));
            Dma {
                device: total.device.clone(),
                operations: count(total.bounces, growth.bounces, seconds),
                bytes: count(total.bytes, growth.bytes, seconds),
                errors: None,
            }
        });
        Some(devices.collect())
    }

    pub(super) fn io_uring(&self) -> Option<Count> {
        let seconds = self.seconds(self.older.io_uring_punted.is_some(), "io_uring");
        count_opt(self.newer.io_uring_punted, self.grown.io_uring_punted, seconds)
    }

    pub(super) fn xid(&self) -> Option<Vec<Xid>> {
        let (newer, grown) = (self.newer.xid.as_ref()?, self.grown.xid.as_ref()?);
        let reports = newer.iter().zip(grown).map(|(total, growth)| {
            let seconds = self.seconds(self.older.xid.is_some(), &format!("xid {}", total.pci));
            Xid {
                pci: total.pci.clone(),
                uuid: self.host.gpu(&total.pci).and_then(|gpu| gpu.uuid.clone()),
                nvswitch: total.nvswitch,
                code: total.code,
                source: total.source.clone(),
                count: count(total.count, growth.count, seconds),
                last: total.last,
            }
        });
        Some(reports.collect())
    }

    pub(super) fn dropped(&self) -> Vec<Dropped> {
        let pairs = self.newer.dropped.iter().zip(&self.grown.dropped);
        let dropped = pairs.map(|(total, growth)| {
            let seconds = self.seconds(true, &format!("dropped {} {}", total.source, total.reason));
            Dropped {
                source: total.source.clone(),
                reason: total.reason.clone(),
                count: count(total.count, growth.count, seconds),
            }
        });
        dropped.collect()
    }
}
