//! A training run under a limit: what GLake finishes and torch's expandable segments do not, both modelled.

use std::path::Path;
use std::sync::Arc;

use glake::gpu::Costs;
use glake::standin::gpu::{HostGpu, Settings};
use glake::stitch::model::Expandable;
use glake::stitch::snapshot::{self, Limits, Run};
use glake::stitch::trace::{TraceEvent, play};
use glake::stitch::{Heap, HeapTarget, Options};
use glake_tests::binary::data;

fn expandable_segments_finish(events: &[TraceEvent], limit: u64) -> bool {
    let mut model = Expandable::new(&Default::default(), Costs::H200, limit);
    play(events, &mut model, &mut |_, _| {}).unwrap().failed.is_none()
}

fn glake_finishes(events: &[TraceEvent], limit: u64) -> bool {
    let gpu = Arc::new(HostGpu::new(Settings { lag_ns: 50_000_000, ..Settings::default() }).unwrap());
    let heap = Heap::new(gpu.clone(), Options { max_bytes: Some(limit), ..Options::default() }).unwrap();
    let mut target = HeapTarget::new(&heap, Box::new(move |ns| gpu.advance_to(ns)));
    let outcome = play(events, &mut target, &mut |_, _| {}).unwrap();
    heap.verify().unwrap();
    assert!(outcome.peak_reserved <= limit, "the limit holds");
    outcome.failed.is_none()
}

#[test]
fn a_run_finishes_under_a_limit_at_which_expandable_segments_run_out_of_memory() {
    let file = data("snapshots/train_recompute.pickle.xz");
    let recording = snapshot::read(Path::new(&file), Limits::default()).unwrap();
    let run = Run::of(&recording, &recording.devices[0]);
    let mut plenty = Expandable::new(&Default::default(), Costs::H200, 139 << 30);
    let peak = play(&run.events, &mut plenty, &mut |_, _| {}).unwrap().peak_allocated;
    // 1.4 % above what is allocated at the peak.
    let limit = peak / 1000 * 1014;
    assert!(!expandable_segments_finish(&run.events, limit));
    assert!(glake_finishes(&run.events, limit));
}
