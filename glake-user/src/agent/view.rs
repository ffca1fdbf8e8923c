//! The plain view: a line per device, for logs, pipes and small terminals.

use crate::{
    telemetry::state::{Block, BlockOp, Count, Latency, Nvme, State},
    units,
};
use std::fmt::Write;

/// The lines of one state, each ended.
pub fn lines(state: &State) -> String {
    let mut out = String::new();
    for device in state.block.iter().flatten() {
        block(&mut out, device);
    }
    for controller in state.nvme.iter().flatten() {
        nvme(&mut out, controller);
    }
    if let Some(iommu) = &state.iommu {
        let _ =
            writeln!(out, "iommu     map {}  unmap {}", per_second(&iommu.maps), per_second(&iommu.unmaps));
    }
    if out.is_empty() {
        out.push_str("nothing is watched on this host: `glake doctor` says why\n");
    }
    if !state.health.reasons.is_empty() {
        let _ = writeln!(out, "degraded  {}", state.health.reasons.join("; "));
    }
    out
}

fn block(out: &mut String, device: &Block) {
    let _ = write!(out, "{:<9}", device.device);
    for op in device.operations.iter().filter(|op| op.completed.per_second != Some(0.0)) {
        let _ = write!(out, " {}", operation(op));
    }
    if device.operations.iter().all(|op| op.completed.per_second == Some(0.0)) {
        out.push_str(" idle");
    }
    if let Some(depth) = device.in_flight {
        let _ = write!(out, "  in flight {depth}");
    }
    out.push('\n');
}

fn operation(op: &BlockOp) -> String {
    let name = format!("{:?}", op.operation).to_lowercase();
    let mut text = format!(" {name} {} {}", rate(&op.bytes), per_second(&op.completed));
    if let Some(device) = &op.device {
        let _ = write!(text, " {}", quantiles("device", device));
    }
    if let Some(queue) = op.queue.as_ref().filter(|queue| queue.count > 0) {
        let _ = write!(text, " {}", quantiles("queue", queue));
    }
    if op.errors.per_second.is_some_and(|n| n > 0.0) {
        let _ = write!(text, " errors {}", per_second(&op.errors));
    }
    text
}

fn nvme(out: &mut String, controller: &Nvme) {
    let _ = write!(out, "{:<9}", controller.controller);
    let busy = controller.operations.iter().filter(|op| op.completed.per_second != Some(0.0));
    for op in busy {
        let _ =
            write!(out, "  {} {} {}", op.operation, per_second(&op.completed), quantiles("", &op.latency));
    }
    let count = |count: &Option<Count>| count.map_or_else(|| "?".into(), |c| c.total.to_string());
    let _ = writeln!(
        out,
        "  errors {}  retries {}  timeouts {}  resets {}",
        controller.errors.total,
        count(&controller.retries),
        count(&controller.timeouts),
        count(&controller.resets)
    );
}

fn quantiles(what: &str, latency: &Latency) -> String {
    let (Some(p50), Some(p99)) = (latency.p50_ns, latency.p99_ns) else { return String::new() };
    let gap = if what.is_empty() { "" } else { " " };
    format!("{what}{gap}p50 {} p99 {}", units::duration_ns(p50), units::duration_ns(p99))
}

fn rate(count: &Count) -> String {
    count.per_second.map_or_else(|| "?".into(), units::bytes_per_second)
}

fn per_second(count: &Count) -> String {
    count.per_second.map_or_else(|| "?/s".into(), |n| format!("{n:.0}/s"))
}
