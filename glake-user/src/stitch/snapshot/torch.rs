//! The tree of a torch memory snapshot as a [`Recording`]: every form that torch has written since 2022.

use super::entries::Entry;
use super::input::Input;
use super::pickle::{Extent, Reader};
use super::recording::{Block, BlockState, Coverage, DeviceRecording, Format, Recording, Segment, Settings};
use super::value::{Heap, Value};
use crate::error::{Error, Kind, Result};

/// torch names at most this many devices; more in a file is nonsense.
const MOST_DEVICES: usize = 1024;

/// Reads a snapshot in at most about `budget` bytes of memory.
pub(super) fn read(input: &mut Input, budget: u64) -> Result<Recording> {
    let mut reader = Reader::new(input, budget);
    let (top, extent) = reader.read()?;
    let mut out = Recording::empty(Format::Torch);
    out.coverage = match extent {
        Extent::Whole => Coverage::Whole,
        Extent::Truncated(at) => Coverage::Truncated(at),
        Extent::OverBudget(at) => Coverage::OverBudget(at),
    };
    let heap = &reader.heap;
    // Before device traces came, a snapshot was the bare list of segments.
    let segments = if heap.list(top).is_some() { Some(top) } else { heap.key(top, "segments") };
    let traces = heap.key(top, "device_traces");
    if segments.is_none() && traces.is_none() {
        return Err(not_a_snapshot(heap, top, out.coverage));
    }
    let entries = std::mem::take(&mut reader.entries);
    let heap = &reader.heap;
    split_by_device(heap, traces, &entries.entries, &mut out);
    for segment in segments.and_then(|s| heap.list(s)).unwrap_or_default() {
        add_segment(heap, *segment, &mut out);
    }
    out.settings = settings(heap, heap.key(top, "allocator_settings"));
    out.steps = steps(heap, heap.key(top, "external_annotations"));
    out.sites = entries.sites;
    out.frames = entries.frames;
    let mut unknown: Vec<_> = entries.unknown.into_iter().collect();
    unknown.sort();
    for (action, times) in unknown {
        out.notes.push(format!("{times} events of the unknown kind {action:?} were passed over"));
    }
    out.devices.sort_by_key(|d| d.device);
    Ok(out)
}

fn not_a_snapshot(heap: &Heap, top: Value, coverage: Coverage) -> Error {
    let found = match heap.dict(top) {
        Some(pairs) => {
            let keys: Vec<&str> = pairs.iter().filter_map(|(k, _)| heap.text(*k)).take(6).collect();
            format!("a dict with the keys {keys:?}")
        }
        None => top.name().to_string(),
    };
    let what = match coverage {
        Coverage::Truncated(at) => format!("the file ends at byte {at}, before any segment or trace entry"),
        _ => format!("expected a dict with `segments` or `device_traces`, found {found}"),
    };
    Error::new(Kind::BadInput, what).remedy(
        "record with torch.cuda.memory._record_memory_history(), then torch.cuda.memory._dump_snapshot(\"snap.pickle\")",
    )
}

fn split_by_device(heap: &Heap, traces: Option<Value>, entries: &[Entry], out: &mut Recording) {
    let lists = traces.and_then(|t| heap.list(t)).unwrap_or_default();
    for (device, list) in lists.iter().enumerate().take(MOST_DEVICES) {
        let items = heap.list(*list).unwrap_or_default();
        let entries: Vec<Entry> = items
            .iter()
            .filter_map(|v| if let Value::Event(i) = v { entries.get(*i as usize).copied() } else { None })
            .collect();
        if !entries.is_empty() {
            device_mut(out, device as u32).entries = entries;
        }
    }
}

fn device_mut(out: &mut Recording, device: u32) -> &mut DeviceRecording {
    let at = out.devices.iter().position(|d| d.device == device).unwrap_or(out.devices.len());
    if at == out.devices.len() {
        out.devices.push(DeviceRecording { device, ..DeviceRecording::default() });
    }
    &mut out.devices[at]
}

fn add_segment(heap: &Heap, value: Value, out: &mut Recording) {
    let (Some(address), Some(size)) = (heap.number(value, "address"), heap.number(value, "total_size"))
    else {
        return;
    };
    let Ok(device) = u32::try_from(heap.number(value, "device").unwrap_or(0)) else { return };
    if address.checked_add(size).is_none() || (device as usize) >= MOST_DEVICES {
        return;
    }
    let pool = heap.key(value, "segment_pool_id").and_then(|p| heap.list(p)).unwrap_or_default();
    let segment = Segment {
        address,
        size,
        stream: heap.number(value, "stream").unwrap_or(0),
        small: heap.key(value, "segment_type").and_then(|t| heap.text(t)) == Some("small"),
        private: pool.iter().any(|v| v.as_u64() != Some(0)),
        expandable: heap.key(value, "is_expandable") == Some(Value::Bool(true)),
        blocks: blocks(heap, value, address, size),
    };
    device_mut(out, device).segments.push(segment);
}

/// Blocks tile the segment; files before 2024 leave their addresses out.
fn blocks(heap: &Heap, segment: Value, address: u64, size: u64) -> Vec<Block> {
    let mut at = address;
    let mut out = Vec::new();
    for block in heap.key(segment, "blocks").and_then(|b| heap.list(b)).unwrap_or_default() {
        let Some(bytes) = heap.number(*block, "size") else { continue };
        let start = heap.number(*block, "address").unwrap_or(at);
        let Some(end) = start.checked_add(bytes).filter(|e| *e <= address + size && start >= at) else {
            break;
        };
        let state = match heap.key(*block, "state").and_then(|s| heap.text(s)) {
            Some("active_allocated") => BlockState::Allocated,
            // The documentation says awaiting, the code writes pending.
            Some("active_pending_free" | "active_awaiting_free") => BlockState::Pending,
            _ => BlockState::Free,
        };
        let requested = heap
            .number(*block, "requested_size")
            .or_else(|| legacy_requested(heap, *block))
            .unwrap_or(bytes)
            .min(bytes);
        out.push(Block { address: start, size: bytes, requested, state });
        at = end;
    }
    out
}

/// 2023: `history` holds the allocations of the block, the newest first, with the size asked for as `real_size`.
fn legacy_requested(heap: &Heap, block: Value) -> Option<u64> {
    let history = heap.key(block, "history")?;
    heap.number(*heap.list(history)?.first()?, "real_size")
}

fn settings(heap: &Heap, value: Option<Value>) -> Settings {
    let Some(value) = value else { return Settings::default() };
    let conf = heap
        .key(value, "PYTORCH_CUDA_ALLOC_CONF")
        .or_else(|| heap.key(value, "PYTORCH_ALLOC_CONF"))
        .and_then(|v| heap.text(v))
        .map(str::to_string);
    let mut rounding: Vec<(u64, u64)> = heap
        .key(value, "roundup_power2_divisions")
        .and_then(|d| heap.dict(d))
        .unwrap_or_default()
        .iter()
        .filter_map(|(k, v)| Some((heap.text(*k)?.parse().ok()?, v.as_u64()?)))
        .filter(|(_, divisions)| *divisions > 0)
        .collect();
    rounding.sort_unstable();
    Settings {
        conf,
        // -1 is no limit.
        max_split_size: heap.number(value, "max_split_size").filter(|n| *n > 0 && *n < 1 << 60),
        garbage_collection_threshold: match heap.key(value, "garbage_collection_threshold") {
            Some(Value::Float(f)) if f.is_finite() => f,
            _ => 0.0,
        },
        expandable_segments: match heap.key(value, "expandable_segments") {
            Some(Value::Bool(on)) => Some(on),
            _ => None,
        },
        roundup_power2_divisions: rounding,
    }
}

/// Ends of `Optimizer.step` mark the steps of a training run.
fn steps(heap: &Heap, value: Option<Value>) -> Vec<(u32, u64)> {
    let items = value.and_then(|v| heap.list(v)).unwrap_or_default();
    let text = |item: Value, key| heap.key(item, key).and_then(|v| heap.text(v)).unwrap_or("");
    items
        .iter()
        .filter(|i| text(**i, "stage") == "END" && text(**i, "name").starts_with("Optimizer.step"))
        .filter_map(|i| {
            let device = u32::try_from(heap.number(*i, "device").unwrap_or(0)).ok()?;
            Some((device, heap.number(*i, "time_us")?))
        })
        .collect()
}
