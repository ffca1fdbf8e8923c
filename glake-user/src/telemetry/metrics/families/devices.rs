//! What is counted by PCI device or for the whole host, and what the probes say about themselves.

use super::bus_label;
use crate::{
    events::sample::{ProbeState, Sample},
    host::inventory::Inventory,
    telemetry::metrics::{
        ledger::{Labels, Ledger},
        table::{
            AER_ERRORS, DMA_MAPS, EVENTS_DROPPED, IO_URING_PUNTED, IOMMU_BYTES, IOMMU_FAULTS,
            IOMMU_OPERATIONS, PROBE_ATTACHED, PROBE_CPU, PROBE_MEMORY, SAMPLE_TIMESTAMP, SWIOTLB_BYTES,
        },
    },
};

pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    mappings(ledger, grown, host);
    faults(ledger, grown, host);
    itself(ledger, grown);
}

fn mappings(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    if let Some(iommu) = &grown.iommu {
        let operation = |name: &str| vec![("operation", name.to_owned())];
        ledger.count(&IOMMU_OPERATIONS, operation("map"), iommu.maps);
        ledger.count(&IOMMU_OPERATIONS, operation("unmap"), iommu.unmaps);
        ledger.count(&IOMMU_BYTES, operation("map"), iommu.mapped_bytes);
        ledger.count(&IOMMU_BYTES, operation("unmap"), iommu.unmapped_bytes);
    }
    let device = |name: &str| vec![("pci_bus_id", bus_label(name, host))];
    for dma in grown.dma.iter().flatten() {
        ledger.count(&DMA_MAPS, device(&dma.device), dma.maps);
    }
    for bounce in grown.swiotlb.iter().flatten() {
        ledger.count(&SWIOTLB_BYTES, device(&bounce.device), bounce.bytes);
    }
    if let Some(punted) = grown.io_uring_punted {
        ledger.count(&IO_URING_PUNTED, Vec::new(), punted);
    }
}

fn faults(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    for fault in grown.iommu_faults.iter().flatten() {
        let device = fault.pci.iter().map(|pci| ("pci_bus_id", bus_label(pci, host)));
        let labels: Labels = device.chain([("source", fault.source.clone())]).collect();
        ledger.count(&IOMMU_FAULTS, labels, fault.count);
    }
    let Some(aer) = &grown.aer else { return };
    let mut severities = |pci: &str, counts: [u64; 3]| {
        for (severity, count) in ["corrected", "nonfatal", "fatal"].into_iter().zip(counts) {
            let labels = vec![("pci_bus_id", bus_label(pci, host)), ("severity", severity.to_owned())];
            ledger.count(&AER_ERRORS, labels, count);
        }
    };
    // The devices that people buy this host for exist at 0, so that the first report shows in increase().
    let known = host.gpus.iter().map(|g| Some(&g.pci)).chain(host.nvme.iter().map(|n| n.pci.as_ref()));
    known.flatten().for_each(|pci| severities(pci, [0; 3]));
    for device in aer {
        severities(&device.pci, [device.corrected, device.nonfatal, device.fatal]);
    }
}

fn itself(ledger: &mut Ledger, grown: &Sample) {
    for drop in &grown.dropped {
        let labels = vec![("source", drop.source.clone()), ("reason", drop.reason.clone())];
        ledger.count(&EVENTS_DROPPED, labels, drop.count);
    }
    for probe in grown.probes.iter().filter(|p| p.state != ProbeState::Off) {
        let labels = vec![("probe", probe.name.clone()), ("required", probe.required.to_string())];
        ledger.gauge(&PROBE_ATTACHED, labels, f64::from(u8::from(probe.state == ProbeState::On)));
    }
    if let Some(ns) = grown.cost.ebpf_run_time_ns {
        ledger.count(&PROBE_CPU, Vec::new(), ns);
    }
    ledger.gauge(&PROBE_MEMORY, Vec::new(), grown.cost.map_bytes as f64);
    ledger.gauge(&SAMPLE_TIMESTAMP, Vec::new(), grown.at.realtime_ns as f64 / 1e9);
}
