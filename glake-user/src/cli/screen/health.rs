//! What is wrong now, and how the GPUs' memory is: tables that are there only where there is something to say.

use super::table::{About, Cell, Column, Row, Table};
use super::tone::Tone;
use crate::cli::view;
use crate::events::nvml::{GpuHealth, Health, Nvml};
use crate::telemetry::finding::Finding;
use crate::telemetry::state::State;
use crate::units;

const FINDINGS: &[Column] = &[
    Column::text("FINDING", 27, 9),
    Column::text("SINCE", 9, 6),
    Column::text("GPU", 12, 7),
    Column::text("WHAT, AND WHAT TO DO", 30, 9),
];

const GPUS: &[Column] = &[
    Column::text("GPU HEALTH", 12, 9),
    Column::number("ECC CORR", 9, 6),
    Column::number("ECC UNC", 7, 8),
    Column::number("ROWS", 5, 7),
    Column::number("PAGES", 5, 2),
    Column::text("REMAP", 8, 8),
    Column::number("MIG", 3, 3),
    Column::number("USED", 9, 5),
    Column::number("FREE", 9, 4),
    Column::number("BUSY", 4, 1),
];

/// The tables of a state.
pub(super) fn tables(state: &State) -> impl Iterator<Item = Table> {
    let findings = (!state.findings.is_empty()).then(|| findings(&state.findings));
    findings.into_iter().chain(state.nvml.as_ref().map(gpus))
}

fn findings(all: &[Finding]) -> Table {
    let row = |finding: &Finding| {
        let tone = match finding.severity.as_str() {
            "page" => Tone::Bad,
            "ticket" => Tone::Warn,
            _ => Tone::Plain,
        };
        let cells = vec![
            Cell::toned(finding.rule.clone(), tone),
            view::clock_text(finding.since.realtime_ns).into(),
            finding.pci.clone().unwrap_or_else(|| "-".into()).into(),
            format!("{}. {}", finding.what, finding.do_now).into(),
        ];
        Row { about: About::Finding(finding.rule.clone()), cells }
    };
    Table { columns: FINDINGS, rows: all.iter().map(row).collect(), empty: String::new() }
}

fn gpus(nvml: &Nvml) -> Table {
    let empty = match (nvml.health, &nvml.reason) {
        (Health::Starting, _) => "the first reading of NVML is under way".to_owned(),
        (Health::Answering, _) => "NVML lists no GPU".to_owned(),
        (_, reason) => {
            let since =
                nvml.unknown_since.map_or("the start".to_owned(), |at| view::clock_text(at.realtime_ns));
            format!("unknown since {since}: {}", reason.as_deref().unwrap_or("NVML does not answer"))
        }
    };
    Table { columns: GPUS, rows: nvml.gpus.iter().map(gpu).collect(), empty }
}

fn gpu(gpu: &GpuHealth) -> Row {
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let bad = |n: Option<u64>| {
        Cell::toned(number(n), if n.is_some_and(|n| n > 0) { Tone::Warn } else { Tone::Plain })
    };
    let rows = gpu.remapped_rows;
    let remap = match rows {
        _ if gpu.lost => Cell::toned("GPU LOST", Tone::Bad),
        None => "-".into(),
        Some(rows) if rows.failure => Cell::toned("FAILED", Tone::Bad),
        Some(rows) if rows.pending => Cell::toned("pending", Tone::Warn),
        Some(_) => "ok".into(),
    };
    let retired = gpu.retired_pages;
    let pages = retired.multiple_single_bit.zip(retired.double_bit).map(|(a, b)| u64::from(a) + u64::from(b));
    let memory = |of: fn(&crate::events::nvml::Memory) -> u64| {
        gpu.memory.as_ref().map_or_else(|| "-".to_owned(), |m| units::bytes(of(m)))
    };
    let mig = match &gpu.mig {
        None => "-".to_owned(),
        Some(mig) if mig.enabled => mig.instances.len().to_string(),
        Some(_) => "off".to_owned(),
    };
    let labels = gpu.pci.as_deref().and_then(crate::host::pci::dcgm).map(|bus| ("pci_bus_id", bus));
    Row {
        about: About::Gpu(labels.into_iter().collect()),
        cells: vec![
            gpu.pci.clone().unwrap_or_else(|| "-".into()).into(),
            number(gpu.ecc_aggregate.corrected).into(),
            bad(gpu.ecc_aggregate.uncorrected),
            number(rows.map(|r| u64::from(r.correctable) + u64::from(r.uncorrectable))).into(),
            number(pages).into(),
            remap,
            mig.into(),
            memory(|m| m.used_bytes).into(),
            memory(|m| m.free_bytes).into(),
            gpu.busy_percent.map_or_else(|| "-".to_owned(), |p| format!("{p}%")).into(),
        ],
    }
}
