//! One function per family of probes: what grew becomes bookings. To add one: a file, its `mod` line, its call below.

mod block;
mod devices;
mod heaps;
mod nvme;
mod nvml;
mod uvm;
mod xid;

use super::ledger::Ledger;
use crate::{
    events::sample::{Operation, Sample},
    host::{inventory::Inventory, pci},
};

/// Books everything that grew.
pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    block::book(ledger, grown, host);
    nvme::book(ledger, grown, host);
    devices::book(ledger, grown, host);
    xid::book(ledger, grown, host);
    nvml::book(ledger, grown);
    uvm::book(ledger, grown, host);
    heaps::book(ledger, grown, host);
    heaps::copies(ledger, grown, host);
    ledger.workloads.settle(grown.at.monotonic_ns);
    heaps::held(ledger, grown, host);
}

/// The label of a PCI device: a GPU as DCGM spells it, every other device as sysfs does. What is no PCI address stays
/// as the kernel named it.
fn bus_label(device: &str, host: &Inventory) -> String {
    let spelled = if host.gpu(device).is_some() { pci::dcgm(device) } else { pci::sysfs(device) };
    spelled.unwrap_or_else(|| device.to_owned())
}

fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Discard => "discard",
        Operation::Other => "other",
    }
}
