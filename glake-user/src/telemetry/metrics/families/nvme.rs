//! NVMe controllers.

use crate::{
    events::sample::{Histogram, NvmeController, Sample},
    host::inventory::Inventory,
    telemetry::{
        metrics::{
            ledger::Ledger,
            table::{
                NVME_BUSIEST_QUEUE, NVME_COMMAND_DURATION, NVME_COMMAND_ERRORS, NVME_COMMAND_RETRIES,
                NVME_COMMAND_TIMEOUTS, NVME_CONTROLLER_RESETS, NVME_QUEUE_FILL,
            },
        },
        model::{busiest, fill_ratio, operation_of},
    },
};
use std::collections::BTreeMap;

/// The label `status_type` (NVMe base specification, figure "Status Code Type Values").
const STATUS_TYPES: [&str; 5] = ["generic", "command", "media", "path", "vendor"];

fn status_type(sct: u8) -> &'static str {
    match sct {
        0 => "generic",
        1 => "command",
        2 => "media",
        3 => "path",
        // 7 is the vendor's; 4 to 6 are reserved.
        _ => "vendor",
    }
}

pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    for controller in grown.nvme.iter().flatten() {
        self::controller(ledger, controller, host);
    }
}

fn controller(ledger: &mut Ledger, controller: &NvmeController, host: &Inventory) {
    let name = || vec![("controller", controller.controller.clone())];
    let known = host.nvme.iter().find(|n| n.controller == controller.controller);
    let pci = controller.pci.clone().or_else(|| known.and_then(|n| n.pci.clone()));
    let mut sums: BTreeMap<&str, Histogram> = BTreeMap::new();
    for commands in controller.commands.iter().filter(|c| c.queue != 0) {
        let sum = sums.entry(operation_of(commands.queue, commands.opcode)).or_default();
        sum.add(&commands.latency);
    }
    for (operation, latency) in sums {
        let mut labels = name();
        labels.extend(pci.clone().map(|pci| ("pci_bus_id", pci)));
        labels.push(("operation", operation.to_owned()));
        ledger.observe(&NVME_COMMAND_DURATION, labels, &latency);
    }
    for kind in STATUS_TYPES {
        let errors = controller.errors.iter().filter(|e| status_type(e.sct) == kind);
        let mut labels = name();
        labels.push(("status_type", kind.to_owned()));
        ledger.count(&NVME_COMMAND_ERRORS, labels, errors.map(|e| e.count).sum());
    }
    let counters = [
        (&NVME_COMMAND_RETRIES, controller.retries),
        (&NVME_COMMAND_TIMEOUTS, controller.timeouts),
        (&NVME_CONTROLLER_RESETS, controller.resets),
    ];
    for (family, growth) in counters {
        if let Some(growth) = growth {
            ledger.count(family, name(), growth);
        }
    }
    if let Some(ratio) = fill_ratio(controller) {
        ledger.gauge(&NVME_QUEUE_FILL, name(), ratio);
    }
    if let Some(ratio) = busiest(controller) {
        ledger.gauge(&NVME_BUSIEST_QUEUE, name(), ratio);
    }
}
