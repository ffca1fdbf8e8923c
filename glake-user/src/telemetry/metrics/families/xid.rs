//! Xid and SXid reports.

use crate::{
    events::{
        sample::{ProbeState, Sample, XidCount},
        xid::catalogue,
    },
    host::{
        inventory::{Gpu, Inventory},
        pci,
    },
    telemetry::metrics::{
        ledger::{Labels, Ledger},
        table::{GPU_INFO, GPU_UP, SXID_ERRORS, XID_ERRORS, XID_LAST},
    },
};
use std::collections::BTreeSet;

/// Codes with a series of their own per GPU; the rest of a GPU is `xid="other"`.
const CODES: usize = 16;

/// Codes that page somebody and therefore have a series at 0 from the start, on every GPU: a counter born at 1 is no
/// `increase()`. Fewer than [`CODES`], so that the everyday ones still get their own.
pub(crate) const FROM_THE_START: [u32; 10] = [48, 62, 64, 79, 95, 109, 119, 120, 140, 158];

pub(super) fn book(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    facts(ledger, grown, host);
    remembered(ledger, host);
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
    let (code, action) =
        if own { (code, catalogue::action(xid.code).label()) } else { ("other".into(), "other") };
    labels.extend([("xid", code), ("action", action.to_owned())]);
    if xid.last.realtime_ns > 0 {
        let newest = xid.last.realtime_ns as f64 / 1e9;
        let so_far = ledger.gauges(&XID_LAST).find(|(other, _)| **other == labels).map_or(0.0, |(_, at)| at);
        ledger.gauge(&XID_LAST, labels.clone(), newest.max(so_far));
    }
    labels.push(("source", xid.source.clone()));
    ledger.count(&XID_ERRORS, labels, xid.count);
}

/// The labels of a GPU.
pub(super) fn identity(gpu: &Gpu) -> Labels {
    let mut labels: Labels = gpu.uuid.iter().map(|uuid| ("UUID", uuid.clone())).collect();
    labels.push(("pci_bus_id", pci::dcgm(&gpu.pci).unwrap_or_else(|| gpu.pci.clone())));
    labels
}

/// What each GPU is, whether it is there, and its series at 0.
fn facts(ledger: &mut Ledger, grown: &Sample, host: &Inventory) {
    let boot_ns = grown.at.realtime_ns.saturating_sub(grown.at.monotonic_ns);
    for (index, gpu) in host.gpus.iter().enumerate() {
        let labels = identity(gpu);
        let lost = ledger.xid_last(&gpu.pci, catalogue::FELL_OFF).is_some_and(|at| at >= boot_ns)
            || grown.nvml.iter().flat_map(|n| &n.gpus).any(|g| g.lost && g.pci.as_ref() == Some(&gpu.pci));
        ledger.gauge(&GPU_UP, labels.clone(), if lost { 0.0 } else { 1.0 });
        let mut info = labels.clone();
        info.push(("gpu", index.to_string()));
        info.extend(gpu.minor.map(|n| ("device", format!("nvidia{n}"))));
        info.extend(gpu.model.clone().map(|m| ("model", m)));
        info.extend(host.nvidia_driver.clone().map(|v| ("driver_version", v)));
        ledger.gauge(&GPU_INFO, info, 1.0);
        if grown.xid.is_none() {
            continue;
        }
        for code in FROM_THE_START {
            let mut series = labels.clone();
            series.extend([
                ("xid", code.to_string()),
                ("action", catalogue::action(code).label().to_owned()),
                ("source", source(grown).to_owned()),
            ]);
            ledger.count(&XID_ERRORS, series, 0);
        }
    }
}

/// Where Xid reports come from now.
fn source(sample: &Sample) -> &'static str {
    match sample.probes.iter().find(|p| p.name == "xid" && p.state == ProbeState::On) {
        Some(probe) if probe.how.contains("kprobe") => "kprobe",
        Some(_) => "tracepoint",
        None => "kmsg",
    }
}

/// Times of earlier runs, from the store of events.
fn remembered(ledger: &mut Ledger, host: &Inventory) {
    let lasts: Vec<_> = ledger.xid_lasts().iter().map(|((p, c), at)| (p.clone(), *c, *at)).collect();
    for (address, code, at) in lasts {
        let Some(gpu) = host.gpu(&address) else { continue };
        let mut labels = identity(gpu);
        labels.extend([("xid", code.to_string()), ("action", catalogue::action(code).label().to_owned())]);
        ledger.gauge(&XID_LAST, labels, at as f64 / 1e9);
    }
}
