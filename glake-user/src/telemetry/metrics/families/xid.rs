//! Xid and SXid reports.

use crate::{
    events::sample::{Sample, XidCount},
    host::{inventory::Inventory, pci},
    telemetry::metrics::{
        ledger::{Labels, Ledger},
        table::{SXID_ERRORS, XID_ERRORS, XID_LAST},
    },
};
use std::collections::BTreeSet;

/// Codes with a series of their own per GPU; the rest of a GPU is `xid="other"`.
const CODES: usize = 16;

/// The immediate action of NVIDIA's Xid catalogue (<https://docs.nvidia.com/deploy/xid-errors/>), as a label.
pub(crate) fn action(code: u32) -> &'static str {
    match code {
        13 | 31 | 32 | 39 | 40 | 41 | 68 | 69 | 80 | 94 => "restart_app",
        46 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156 | 158 => "reset_gpu",
        79 => "restart_node",
        43 | 44 | 63 | 66 | 67 | 92 | 121 | 137 | 141 | 152 | 153 | 157 | 160 | 161 => "ignore",
        // The catalogue names a workflow, or nothing.
        _ => "investigate",
    }
}

pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    for xid in grown.xid.iter().flatten() {
        let bus = pci::dcgm(&xid.pci).unwrap_or_else(|| xid.pci.clone());
        if xid.nvswitch {
            let labels = vec![("pci_bus_id", bus), ("sxid", xid.code.to_string())];
            ledger.count(&SXID_ERRORS, labels, xid.count);
            continue;
        }
        let uuid = host.gpu(&xid.pci).and_then(|gpu| gpu.uuid.clone());
        let mut labels: Labels = uuid.map(|uuid| ("UUID", uuid)).into_iter().collect();
        labels.push(("pci_bus_id", bus));
        gpu(ledger, xid, labels);
    }
}

fn gpu(ledger: &mut Ledger, xid: &XidCount, mut labels: Labels) {
    let of_gpu = |other: &Labels| labels.iter().all(|label| other.contains(label));
    let known: BTreeSet<String> = {
        let series = ledger.counters(&XID_ERRORS).filter(|(other, _)| of_gpu(other));
        series
            .filter_map(|(other, _)| other.iter().find(|(name, _)| *name == "xid").map(|(_, v)| v.clone()))
            .collect()
    };
    let code = xid.code.to_string();
    let own = known.contains(&code) || known.len() < CODES;
    let (code, action) = if own { (code, action(xid.code)) } else { ("other".into(), "other") };
    labels.extend([("xid", code), ("action", action.to_owned())]);
    if xid.last.realtime_ns > 0 {
        let newest = xid.last.realtime_ns as f64 / 1e9;
        let so_far = ledger.gauges(&XID_LAST).find(|(other, _)| **other == labels).map_or(0.0, |(_, at)| at);
        ledger.gauge(&XID_LAST, labels.clone(), newest.max(so_far));
    }
    labels.push(("source", xid.source.clone()));
    ledger.count(&XID_ERRORS, labels, xid.count);
}
