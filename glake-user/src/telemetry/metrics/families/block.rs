//! Block devices and the workloads that use them.

use super::operation_name;
use crate::{
    events::sample::{BlockDevice, Sample},
    host::inventory::Inventory,
    telemetry::{
        metrics::{
            ledger::{Labels, Ledger},
            table::{
                BLOCK_DEVICE_DURATION, BLOCK_ERRORS, BLOCK_IO_BYTES, BLOCK_QUEUE_DURATION, BLOCK_REQUEUES,
            },
        },
        model::workload_of,
    },
};

pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    for device in grown.block.iter().flatten() {
        self::device(ledger, device);
    }
    for owner in grown.owners.iter().flatten() {
        let who = workload_of(owner, host);
        for io in &owner.io {
            let labels = vec![("operation", operation_name(io.operation).to_owned())];
            // A request without bytes (a flush) still shows that its workload is alive.
            let activity = io.bytes.saturating_add(io.completed);
            ledger.workloads.book(&who, (&BLOCK_IO_BYTES, labels), io.bytes, activity);
        }
    }
}

fn device(ledger: &mut Ledger, device: &BlockDevice) {
    if let Some(requeues) = device.requeues {
        ledger.count(&BLOCK_REQUEUES, vec![("device", device.device.clone())], requeues);
    }
    for op in &device.operations {
        let labels: Labels =
            vec![("device", device.device.clone()), ("operation", operation_name(op.operation).to_owned())];
        if let Some(queue) = &op.queue {
            ledger.observe(&BLOCK_QUEUE_DURATION, labels.clone(), queue);
        }
        // An NVMe drive's time is counted per command by the NVMe probes, retries and all.
        if let Some(time) = op.device.as_ref().filter(|_| device.controllers.is_empty()) {
            ledger.observe(&BLOCK_DEVICE_DURATION, labels.clone(), time);
        }
        ledger.count(&BLOCK_ERRORS, labels, op.errors);
    }
}
