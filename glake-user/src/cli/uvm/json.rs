//! What `glake uvm --json` prints: each object on a line of its own.

use super::screen::{Named, Report, hints};
use crate::events::uvm::entry::kind;
use crate::telemetry::uvm_tally::{Direction, GpuFaults, Line, Tally};
use serde_json::{Value, json};
use std::time::Duration;

/// One interval.
pub(super) fn line_json(pid: i32, at: Duration, line: &Line, dropped: u64, on: Option<Duration>) -> Value {
    let mut value = serde_json::to_value(line).unwrap_or(Value::Null);
    value["type"] = json!("interval");
    value["pid"] = json!(pid);
    value["seconds"] = json!(at.as_secs_f64());
    value["dropped_so_far"] = json!(dropped);
    value["events_on_seconds"] = json!(on.map(|d| d.as_secs_f64()));
    value
}

/// The whole report as JSON: one object on one line.
pub(super) fn summary_json(r: &Report) -> Value {
    let t = &r.tally;
    let watched = |kind: u8, value: Value| if r.watches(kind) { value } else { Value::Null };
    let moved: Vec<Value> = t
        .moved
        .iter()
        .map(|((source, target, cause), m)| {
            json!({"from": r.name(*source), "to": r.name(*target), "cause": cause.word(),
                   "direction": Direction::of(*source, *target).word(), "count": m.count, "bytes": m.bytes})
        })
        .collect();
    let cpu: serde_json::Map<String, Value> =
        t.cpu_faults.iter().map(|(a, n)| (a.word().to_owned(), json!(n))).collect();
    let fatal: Vec<Value> = t
        .fatal
        .iter()
        .map(|((p, reason), n)| json!({"processor": r.name(*p), "reason": reason.word(), "count": n}))
        .collect();
    json!({
        "type": "summary", "schema": 1, "pid": r.pid, "comm": r.comm, "driver": r.driver,
        "source": format!("driver event queue {:?}", r.layout), "events": super::mask::words(r.mask),
        "watched_seconds": r.watched.as_secs_f64(),
        "events_on_seconds": r.on.map(|d| d.as_secs_f64()), "events_on_share": r.share(), "ended": r.ended, "complete": r.complete,
        "blind_seconds": r.blind.before.as_secs_f64(),
        "blind_with_uvm_open_at_most_seconds": r.blind.late_by.map(|d| d.as_secs_f64()),
        "entries": t.entries, "entries_by_event": by_event(t), "dropped": r.dropped_total(),
        "dropped_by_event": r.dropped.iter().map(|(n, c)| ((*n).to_owned(), json!(c)))
            .collect::<serde_json::Map<String, Value>>(),
        "undecoded": r.undecoded,
        "gpus": r.gpus.iter().map(|g| gpu_json(g, t.gpus.get(&g.processor))).collect::<Vec<_>>(),
        "gpu_faults": watched(kind::GPU_FAULT, json!(t.gpu_total())),
        "batches": t.batches(), "replays": t.replays(),
        "cpu_faults": watched(kind::CPU_FAULT, json!(t.cpu_total())),
        "cpu_faults_by_access": watched(kind::CPU_FAULT, Value::Object(cpu)),
        "migrations": watched(kind::MIGRATION, json!(t.moved_total().count)),
        "moved_bytes": watched(kind::MIGRATION, json!(t.moved_total().bytes)),
        "moved": watched(kind::MIGRATION, json!(moved)),
        "fatal": watched(kind::FATAL, json!(fatal)),
        "thrashing": t.thrashing, "throttled": t.throttled.0, "throttled_ns": t.throttled.1,
        "mapped_remote_bytes": watched(kind::MAP_REMOTE, json!(t.mapped_remote.bytes)),
        "read_duplicated_bytes": watched(kind::READ_DUPLICATE, json!(t.read_duplicated.bytes)),
        "evictions": Value::Null, "service_time_ns": Value::Null,
        "hints": hints(r),
    })
}

/// Entries by the names of the masks; the driver's own tests have none.
fn by_event(tally: &Tally) -> serde_json::Map<String, Value> {
    let named = |n: &u8| kind::NAMES.iter().find(|(_, number)| number == n).map(|(name, _)| *name);
    tally.by_kind.iter().filter_map(|(n, count)| Some((named(n)?.to_owned(), json!(count)))).collect()
}

fn gpu_json(named: &Named, faults: Option<&GpuFaults>) -> Value {
    let by_access: serde_json::Map<String, Value> =
        faults.iter().flat_map(|g| g.faults.iter()).map(|(a, n)| (a.word().to_owned(), json!(n))).collect();
    json!({
        "UUID": named.uuid, "gpu": named.index, "pci": named.pci, "model": named.model,
        "gpu_faults_by_access": by_access,
        "batches": faults.map(|g| g.batches), "replays": faults.map(|g| g.replays),
        "batch_sizes_log2": faults.map(|g| g.batch_sizes.clone()),
    })
}
