//! The JSON: `docs/cli.md` lists the keys; they are an interface.

use serde_json::{Value, json};

use super::text;
use super::{Check, Shown};
use crate::stitch::model::stranded::Stranded;
use crate::stitch::model::study::{GPU_SIZES, Played};
use crate::stitch::snapshot::Coverage;

pub(super) fn of(s: &Shown<'_>) -> Value {
    let (coverage, stopped_at) = match s.recording.coverage {
        Coverage::Whole => ("whole", None),
        Coverage::Truncated(at) => ("truncated", Some(at)),
        Coverage::OverBudget(at) => ("over-budget", Some(at)),
    };
    let reserved = |name: &str| s.played.iter().find(|p| p.name == name).map(|p| p.outcome.peak_reserved);
    let best = s.played.iter().map(|p| p.outcome.peak_reserved).min();
    json!({
        "file": s.args.file.display().to_string(),
        "format": s.recording.format.name(),
        "device": s.run.device,
        "events_used": s.run.used,
        "coverage": coverage,
        "stopped_at_byte": stopped_at,
        "steps": s.run.steps,
        "seconds": s.run.timed.then(|| s.run.span_ns() as f64 / 1e9),
        "complete_from_process_start": s.run.complete,
        "held_before_first_event_bytes": s.run.recorded.start,
        "private_pool_peak_bytes": s.run.private_peak,
        "streams": s.run.streams.len(),
        "run_ahead_ms": s.args.run_ahead,
        "scale": s.args.scale,
        "on": s.args.on,
        "check": check(s),
        "models": s.played.iter().map(model).collect::<Vec<_>>(),
        "verdict": s.verdict.name(),
        "verdict_text": text::verdict(s),
        "saved_bytes": reserved("default").zip(best).map(|(d, b)| d.saturating_sub(b)),
        "idle_at_peak": causes(&s.causes),
        "at_end": s.state.as_ref().map(causes),
        "call_sites": sites(s),
        "glake_not_played": s.without_glake,
        "notes": text::limits(s),
    })
}

fn check(s: &Shown<'_>) -> Value {
    match s.check {
        Check::Compared { expandable, model, recorded } => json!({
            "model": if expandable { "expandable_segments" } else { "default" },
            "model_peak_reserved_bytes": model,
            "recorded_peak_reserved_bytes": recorded,
            "deviation": s.check.deviation(),
            "agrees": s.check.deviation().is_some_and(|d| d.abs() <= 0.02),
        }),
        Check::Not(why) => json!({ "not_checked": why }),
    }
}

fn model(p: &Played) -> Value {
    let o = &p.outcome;
    let fits: Vec<Value> = GPU_SIZES.iter().map(|g| json!({"gpu_gib": g, "fits": p.fits(*g)})).collect();
    json!({
        "name": p.name,
        "peak_allocated_bytes": o.peak_requested,
        "peak_reserved_bytes": o.peak_reserved,
        "allocated_to_reserved_ratio": o.allocated_to_reserved_ratio(),
        "driver_calls": p.driver_calls(),
        "driver_us": p.driver_ns() as f64 / 1e3,
        "driver_foreground_us": p.foreground_ns() as f64 / 1e3,
        "largest_stall_us": o.largest_stall_ns as f64 / 1e3,
        "late_driver_share": o.late_driver_share(),
        "driver_calls_by_step": o.calls_by_step,
        "needs_bytes": p.needs,
        "gpu_sizes": fits,
        "completed": o.failed.is_none(),
        "unknown_frees": o.unknown_frees,
    })
}

fn causes(s: &Stranded) -> Value {
    json!({
        "segments": s.segments,
        "reserved_bytes": s.reserved,
        "requested_bytes": s.requested,
        "wholly_free_bytes": s.whole_free,
        "stitchable_bytes": s.holes,
        "stranded_bytes": s.holes + s.slivers,
        "side_stream_bytes": s.other_streams,
        "pending_bytes": s.pending,
        "rounding_bytes": s.rounding,
        "private_pool_bytes": s.private,
    })
}

fn sites(s: &Shown<'_>) -> Vec<Value> {
    let named = s.pins.iter().filter_map(|p| Some((p, s.recording.site(p.site)?)));
    named
        .take(20)
        .map(|(p, site)| json!({"site": site, "holds_bytes": p.holds, "strands_bytes": p.strands}))
        .collect()
}
