//! The tables of each view, made from the state of one interval.

use super::health;
use super::heat::Minute;
use super::table::{About, Cell, Column, Row, Table};
use super::tone::Tone;
use super::ui::{Sort, Ui, View};
use crate::cli::view::{self, Device, merged, number_text, per_second_text, quantile_text, rate_text};
use crate::events::sample::{Operation, ProbeState};
use crate::host::workload::Workload;
use crate::telemetry::state::{Allocator, Attribution, Latency, State, Watched, WorkloadIo};
use crate::units;

/// The tables of the view that `ui` shows, filtered and sorted.
pub(super) fn tables(state: &State, ui: &Ui) -> Vec<Table> {
    let mut tables = match ui.view {
        View::Overview => overview(state, ui),
        View::Devices => vec![operations(state)],
        View::Queues => vec![queues(state)],
        View::Workloads => vec![workloads(state, ui.sort)],
        View::Probes => vec![coverage(state), probes(state)],
    };
    tables.iter_mut().for_each(|table| table.filter(&ui.filter));
    tables
}

fn overview(state: &State, ui: &Ui) -> Vec<Table> {
    let mut tables = Vec::from_iter(health::tables(state));
    if !state.host.gpus.is_empty() || state.xid.iter().flatten().next().is_some() {
        tables.push(gpus(state));
    }
    let nvme = view::nvme_controllers(state);
    // A namespace's numbers are those of its controller: shown once here, and both under Devices.
    let behind: Vec<&str> = nvme.iter().map(|d| d.name.as_str()).collect();
    let hidden = |d: &Device| {
        let of = state.block.iter().flatten().find(|b| b.device == d.name);
        of.is_some_and(|b| {
            !b.controllers.is_empty() && b.controllers.iter().all(|c| behind.contains(&c.as_str()))
        })
    };
    let block: Vec<Device> = view::block_devices(state).into_iter().filter(|d| !hidden(d)).collect();
    if !nvme.is_empty() {
        let rows = sorted(nvme, ui.sort).into_iter().map(|d| nvme_row(&d, &ui.minute)).collect();
        tables.push(Table { columns: NVME, rows, empty: String::new() });
    }
    if state.nvme.as_ref().is_none_or(Vec::is_empty) || !block.is_empty() {
        let empty =
            if state.block.is_none() { why_off(state, "block") } else { "no device was used yet".into() };
        let rows = sorted(block, ui.sort).into_iter().map(|d| block_row(&d, &ui.minute)).collect();
        tables.push(Table { columns: BLOCK, rows, empty });
    }
    if state.allocators.as_ref().is_some_and(|held| !held.is_empty()) {
        tables.push(allocators(state));
    }
    tables.push(workloads(state, ui.sort));
    tables
}

fn sorted(mut devices: Vec<Device>, sort: Sort) -> Vec<Device> {
    let down = |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
    devices.sort_by(|a, b| match sort {
        Sort::Name => std::cmp::Ordering::Equal,
        Sort::Read => down(a.read, b.read),
        Sort::Write => down(a.write, b.write),
        Sort::Latency => b.latency.quantile_ns(0.99).cmp(&a.latency.quantile_ns(0.99)),
    });
    devices
}

const NVME: &[Column] = &[
    Column::text("NVMe", 9, 9),
    Column::number("READ", 9, 8),
    Column::number("WRITE", 9, 8),
    Column::number("p50", 7, 6),
    Column::number("p99", 7, 8),
    Column::number("DEPTH", 5, 4),
    Column::number("FILL", 4, 1),
    Column::number("ERR", 4, 7),
    Column::number("RETRY", 5, 2),
    Column::number("TIMEOUT", 7, 3),
    Column::text("LATENCY 4us-65ms", 16, 5),
];

const BLOCK: &[Column] = &[
    Column::text("BLOCK", 9, 9),
    Column::number("READ", 9, 8),
    Column::number("WRITE", 9, 8),
    Column::number("p50", 7, 6),
    Column::number("p99", 7, 8),
    Column::number("DEPTH", 5, 4),
    Column::number("ERR", 4, 7),
    Column::text("LATENCY 4us-65ms", 16, 5),
];

fn device_cells(d: &Device) -> Vec<Cell> {
    vec![
        Cell::from(d.name.as_str()),
        rate_text(d.read).into(),
        rate_text(d.write).into(),
        quantile_text(&d.latency, 0.5).into(),
        quantile_text(&d.latency, 0.99).into(),
        number_text(d.depth).into(),
    ]
}

fn errors(d: &Device) -> Cell {
    let tone = if d.new_errors {
        Tone::Bad
    } else if d.errors > 0 {
        Tone::Warn
    } else {
        Tone::Plain
    };
    Cell::toned(d.errors.to_string(), tone)
}

fn block_row(d: &Device, minute: &Minute) -> Row {
    let mut cells = device_cells(d);
    cells.extend([errors(d), Cell::runs(minute.row(&d.name))]);
    Row { about: About::Block(d.name.clone()), cells }
}

fn nvme_row(d: &Device, minute: &Minute) -> Row {
    let trouble = d.nvme.unwrap_or_default();
    let warn = |n: Option<u64>| {
        let tone = if n.is_some_and(|n| n > 0) { Tone::Warn } else { Tone::Plain };
        Cell::toned(number_text(n), tone)
    };
    let mut cells = device_cells(d);
    cells.extend([
        trouble.fill.map_or_else(|| "-".into(), |f| format!("{:.0}%", f * 100.0)).into(),
        errors(d),
        warn(trouble.retries),
        warn(trouble.timeouts),
        Cell::runs(minute.row(&d.name)),
    ]);
    Row { about: About::Nvme(d.name.clone()), cells }
}

const GPUS: &[Column] = &[
    Column::text("GPU", 4, 9),
    Column::text("MODEL", 14, 4),
    Column::text("PCI", 12, 9),
    Column::number("XIDS", 5, 7),
    Column::text("LAST XID", 20, 8),
];

/// Where paging of managed memory is watched.
const PAGING_GPUS: &[Column] = &[
    GPUS[0],
    GPUS[1],
    GPUS[2],
    GPUS[3],
    GPUS[4],
    Column::number("UVM FAULTS", 10, 6),
    Column::number("TO GPU", 9, 5),
    Column::number("TO CPU", 9, 5),
    Column::number("FAULT TIME", 10, 3),
];

/// Paging of one GPU: faults, bytes each way, share of time in the driver's fault service.
fn paging(state: &State, pci: &str) -> [Cell; 4] {
    let gpu = state.uvm.iter().flat_map(|u| &u.gpus).find(|g| g.pci.as_deref() == Some(pci));
    let share = gpu.and_then(|g| g.service_share);
    [
        per_second_text(gpu.and_then(|g| g.faults.per_second)).into(),
        rate_text(gpu.and_then(|g| g.to_gpu_bytes.per_second)).into(),
        rate_text(gpu.and_then(|g| g.to_cpu_bytes.per_second)).into(),
        share.map_or_else(|| "-".into(), |s| format!("{:.0}%", s * 100.0)).into(),
    ]
}

fn gpus(state: &State) -> Table {
    let reports = |pci: &str| state.xid.iter().flatten().filter(move |x| x.pci == pci).collect::<Vec<_>>();
    let row = |pci: &str, name: String, model: String, labels| {
        let xids = reports(pci);
        let last = xids.iter().max_by_key(|x| x.last.monotonic_ns);
        let tone = if xids.iter().any(|x| view::grew(&x.count)) { Tone::Bad } else { Tone::Warn };
        let total: u64 = xids.iter().map(|x| x.count.total).sum();
        let mut row = Row {
            about: About::Gpu(labels),
            cells: vec![
                name.into(),
                model.into(),
                pci.into(),
                if state.xid.is_some() { total.to_string() } else { "-".into() }.into(),
                last.map_or_else(
                    || Cell::from("-"),
                    |x| Cell::toned(format!("{} at {}", x.code, view::clock_text(x.last.realtime_ns)), tone),
                ),
            ],
        };
        if state.uvm.is_some() {
            row.cells.extend(paging(state, pci));
        }
        row
    };
    let mut rows: Vec<Row> = Vec::new();
    for gpu in &state.host.gpus {
        let mut labels = Vec::from_iter(gpu.uuid.clone().map(|uuid| ("UUID", uuid)));
        labels.extend(crate::host::pci::dcgm(&gpu.pci).map(|pci| ("pci_bus_id", pci)));
        let name = number_text(gpu.minor.map(u64::from));
        rows.push(row(&gpu.pci, name, gpu.model.clone().unwrap_or_else(|| "-".into()), labels));
    }
    for xid in state.xid.iter().flatten() {
        let known = rows.iter().any(|r| r.cells.get(2) == Some(&Cell::from(xid.pci.as_str())));
        if !known {
            let labels = Vec::from_iter(crate::host::pci::dcgm(&xid.pci).map(|pci| ("pci_bus_id", pci)));
            let model = if xid.nvswitch { "NVSwitch" } else { "-" };
            rows.push(row(&xid.pci, "-".into(), model.into(), labels));
        }
    }
    let columns = if state.uvm.is_some() { PAGING_GPUS } else { GPUS };
    Table { columns, rows, empty: String::new() }
}

const ALLOCATORS: &[Column] = &[
    Column::text("GPU MEM HELD BY", 24, 9),
    Column::text("PCI", 12, 8),
    Column::number("ALLOCATED", 9, 7),
    Column::number("RESERVED", 9, 8),
    Column::number("RATIO", 5, 5),
    Column::number("DRIVER", 8, 3),
    Column::number("OOM", 4, 6),
    Column::number("FALLBACK", 8, 4),
];

/// What GLake's allocator holds, by workload and GPU.
fn allocators(state: &State) -> Table {
    let bad = |n: u64| Cell::toned(n.to_string(), if n > 0 { Tone::Warn } else { Tone::Plain });
    let row = |held: &Allocator| {
        let bus = held.pci.as_deref().and_then(crate::host::pci::dcgm).map(|pci| ("pci_bus_id", pci));
        let labels = held.workload.labels().into_iter().chain(bus).collect();
        let ratio = held.allocated_to_reserved_ratio;
        Row {
            about: About::Allocator(labels),
            cells: vec![
                format!("{} ({} proc)", held.name, held.processes).into(),
                held.pci.as_deref().unwrap_or("-").into(),
                units::bytes(held.allocated_bytes).into(),
                units::bytes(held.reserved_bytes).into(),
                ratio.map_or_else(|| "-".into(), |r| format!("{:.0}%", r * 100.0)).into(),
                per_second_text(held.driver_calls.per_second).into(),
                bad(held.ooms.total),
                bad(held.fallbacks.total),
            ],
        }
    };
    let rows = state.allocators.iter().flatten().map(row).collect();
    Table { columns: ALLOCATORS, rows, empty: String::new() }
}

const WORKLOADS: &[Column] = &[
    Column::text("WORKLOAD", 24, 9),
    Column::number("READ", 9, 8),
    Column::number("WRITE", 9, 8),
    Column::number("MEAN WAIT", 9, 5),
    Column::text("WHERE", 10, 6),
    Column::text("COMMANDS", 12, 3),
];

fn workloads(state: &State, sort: Sort) -> Table {
    let mut all: Vec<&WorkloadIo> = state.workloads.iter().flatten().collect();
    let down = |a: &WorkloadIo, b: &WorkloadIo, f: fn(&WorkloadIo) -> Option<f64>| {
        f(b).unwrap_or(-1.0).total_cmp(&f(a).unwrap_or(-1.0))
    };
    match sort {
        Sort::Name => {}
        Sort::Read => all.sort_by(|a, b| down(a, b, |w| w.read.per_second)),
        Sort::Write => all.sort_by(|a, b| down(a, b, |w| w.write.per_second)),
        Sort::Latency => all.sort_by(|a, b| down(a, b, |w| w.mean_wait_ns)),
    }
    let empty = if state.workloads.is_none() {
        why_off(state, "block")
    } else {
        "nobody did block I/O yet".to_owned()
    };
    Table { columns: WORKLOADS, rows: all.into_iter().map(workload_row).collect(), empty }
}

fn workload_row(w: &WorkloadIo) -> Row {
    let named = w.workload != Workload::OTHER;
    let tone = match w.attribution {
        Attribution::Task | Attribution::Writeback | Attribution::Mixed => Tone::Plain,
        Attribution::Shared | Attribution::Unknown => Tone::Dim,
    };
    Row {
        about: About::Workload(if named { w.workload.labels() } else { Workload::OTHER.labels() }),
        cells: vec![
            Cell::toned(w.name.as_str(), tone),
            rate_text(w.read.per_second).into(),
            rate_text(w.write.per_second).into(),
            w.mean_wait_ns.map_or_else(|| "-".into(), |ns| units::duration_ns(ns as u64)).into(),
            w.devices.join(" ").into(),
            w.commands.join(" ").into(),
        ],
    }
}

const OPERATIONS: &[Column] = &[
    Column::text("DEVICE", 9, 9),
    Column::text("OPERATION", 9, 9),
    Column::number("REQUESTS", 8, 7),
    Column::number("BYTES", 9, 8),
    Column::number("WAIT p50", 8, 4),
    Column::number("WAIT p99", 8, 5),
    Column::number("DEV p50", 7, 4),
    Column::number("DEV p99", 7, 6),
    Column::number("ERR", 4, 3),
];

/// Block devices by operation (waiting in the host, then in the device), then NVMe controllers.
fn operations(state: &State) -> Table {
    let shown: Vec<String> = view::block_devices(state).into_iter().map(|d| d.name).collect();
    let both = |latency: &Option<Latency>| {
        let h = merged(latency.iter());
        (Cell::from(quantile_text(&h, 0.5)), Cell::from(quantile_text(&h, 0.99)))
    };
    let mut rows = Vec::new();
    for block in state.block.iter().flatten().filter(|b| shown.contains(&b.device)) {
        for o in &block.operations {
            let ((q50, q99), (d50, d99)) = (both(&o.queue), both(&o.device));
            let bytes =
                if o.operation == Operation::Flush { "-".into() } else { rate_text(o.bytes.per_second) };
            rows.push(Row {
                about: About::Block(block.device.clone()),
                cells: vec![
                    block.device.as_str().into(),
                    operation_name(o.operation).into(),
                    per_second_text(o.completed.per_second).into(),
                    bytes.into(),
                    q50,
                    q99,
                    d50,
                    d99,
                    o.errors.total.to_string().into(),
                ],
            });
        }
    }
    for nvme in state.nvme.iter().flatten() {
        for o in &nvme.operations {
            let (d50, d99) = both(&Some(o.latency.clone()));
            rows.push(Row {
                about: About::Nvme(nvme.controller.clone()),
                cells: vec![
                    nvme.controller.as_str().into(),
                    o.operation.as_str().into(),
                    per_second_text(o.completed.per_second).into(),
                    o.bytes.as_ref().map_or_else(|| "-".into(), |b| rate_text(b.per_second)).into(),
                    "-".into(),
                    "-".into(),
                    d50,
                    d99,
                    "-".into(),
                ],
            });
        }
    }
    Table { columns: OPERATIONS, rows, empty: why_off(state, "block") }
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

const QUEUES: &[Column] = &[
    Column::text("NVMe", 9, 9),
    Column::number("QUEUE", 5, 9),
    Column::number("COMMANDS", 9, 8),
    Column::number("p50", 7, 6),
    Column::number("p99", 7, 7),
    Column::number("FILL/DEPTH", 10, 5),
    Column::text("OPCODES", 20, 3),
];

fn queues(state: &State) -> Table {
    let mut rows = Vec::new();
    for nvme in state.nvme.iter().flatten() {
        for q in &nvme.queues {
            let h = merged(std::iter::once(&q.latency));
            let fill =
                format!("{}/{}", number_text(q.max_fill.map(u64::from)), number_text(q.depth.map(u64::from)));
            let opcodes: Vec<String> = q
                .opcodes
                .iter()
                .filter(|o| o.completed.per_second.is_none_or(|r| r > 0.0))
                .map(|o| format!("{} {}", o.name, per_second_text(o.completed.per_second)))
                .collect();
            let number = if q.queue == 0 { "admin".into() } else { q.queue.to_string() };
            rows.push(Row {
                about: About::Nvme(nvme.controller.clone()),
                cells: vec![
                    nvme.controller.as_str().into(),
                    number.into(),
                    per_second_text(q.completed.per_second).into(),
                    quantile_text(&h, 0.5).into(),
                    quantile_text(&h, 0.99).into(),
                    fill.into(),
                    opcodes.join(", ").into(),
                ],
            });
        }
    }
    let empty = if state.host.nvme.is_empty() {
        "this host has no NVMe controller that the kernel drives".into()
    } else {
        why_off(state, "nvme")
    };
    Table { columns: QUEUES, rows, empty }
}

const COVERAGE: &[Column] =
    &[Column::text("FAMILY", 11, 9), Column::text("WATCHED", 7, 9), Column::text("HOW, OR WHY NOT", 40, 8)];

fn coverage(state: &State) -> Table {
    let row = |c: &crate::telemetry::state::Coverage| {
        let (word, tone) = match c.state {
            Watched::Yes => ("yes", Tone::Good),
            Watched::Partly => ("partly", Tone::Warn),
            Watched::No => ("NO", Tone::Bad),
            Watched::Off => ("off", Tone::Dim),
        };
        let watched = c.state == Watched::Yes || c.missing.is_empty();
        let why = if watched { c.how.join(", ") } else { c.missing.join("; ") };
        let cells = vec![c.family.as_str().into(), Cell::toned(word, tone), why.into()];
        Row { about: About::Probe(c.family.clone()), cells }
    };
    let rows = state.coverage.iter().map(row).collect();
    Table { columns: COVERAGE, rows, empty: "no probe is known to this source".into() }
}

const PROBES: &[Column] = &[
    Column::text("PROBE", 18, 9),
    Column::text("STATE", 8, 9),
    Column::number("RUNS", 8, 3),
    Column::number("TIME/RUN", 8, 4),
    Column::text("HOOK, OR WHY NOT", 40, 8),
];

fn probes(state: &State) -> Table {
    let rows = state.probes.iter().map(|p| {
        let (word, tone) = match p.state {
            ProbeState::On => ("on", Tone::Good),
            ProbeState::Off => ("off", Tone::Dim),
            ProbeState::Failed => ("FAILED", Tone::Bad),
            ProbeState::Detached => ("TAKEN OFF", Tone::Bad),
        };
        let per_run = p.run_time_ns.zip(p.runs).filter(|(_, n)| *n > 0).map(|(ns, n)| ns / n);
        let why = match (&p.reason, &p.remedy) {
            (Some(reason), Some(remedy)) => format!("{reason} -> {remedy}"),
            (Some(reason), None) => reason.clone(),
            _ => p.how.clone(),
        };
        Row {
            about: About::Probe(p.name.clone()),
            cells: vec![
                p.name.as_str().into(),
                Cell::toned(word, tone),
                number_text(p.runs).into(),
                per_run.map_or_else(|| "-".into(), units::duration_ns).into(),
                why.into(),
            ],
        }
    });
    Table { columns: PROBES, rows: rows.collect(), empty: "no probe is known to this source".into() }
}

/// Why a family shows nothing, in the words of its probes.
fn why_off(state: &State, family: &str) -> String {
    let found = state.coverage.iter().find(|c| c.family == family);
    match found.and_then(|c| c.missing.first()) {
        Some(why) => format!("not watched: {why}"),
        None if found.is_some_and(|c| c.state == Watched::Yes) => "nothing was seen yet".into(),
        None => format!("not watched: no {family} probe is on (Tab: probes)"),
    }
}
