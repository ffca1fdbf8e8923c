//! The models against what torch itself recorded, and against plain rules.

use std::path::PathBuf;

use super::*;
use crate::gpu::Costs;
use crate::stitch::snapshot::{self, Limits, Run, Settings};
use crate::stitch::trace::{Outcome, play};

fn fixture(name: &str) -> (snapshot::Recording, Run) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/snapshots").join(name);
    let recording = snapshot::read(&path, Limits::default()).unwrap();
    let run = Run::of(&recording, &recording.devices[0]);
    (recording, run)
}

fn by_default(recording: &snapshot::Recording, run: &Run) -> Outcome {
    let mut model = Caching::at_start_of(run, &recording.settings, u64::MAX);
    play(&run.events, &mut model, &mut |_, _| {}).unwrap()
}

fn by_expandable(run: &Run) -> Outcome {
    let mut model = Expandable::new(&Settings::default(), Costs::H200, u64::MAX);
    play(&run.events, &mut model, &mut |_, _| {}).unwrap()
}

#[test]
fn the_default_model_reserves_to_the_byte_what_torch_recorded() {
    for name in [
        "train_recompute.pickle.xz",
        "train_varlen.pickle.xz",
        "medium_256_training.pickle.xz",
        "medium_128_inference.pickle.xz",
        "memory_forward_fp32_128.pickle",
    ] {
        let (recording, run) = fixture(name);
        let out = by_default(&recording, &run);
        assert_eq!(Some(out.peak_reserved), run.recorded.peak, "{name}");
    }
}

/// Measured on the H200 in the same runs: 64.906 GiB against 25.531, 43.504 against 33.732.
#[test]
fn the_expandable_model_is_close_to_what_torch_measured() {
    for (name, measured) in [("train_recompute.pickle.xz", 25.531), ("train_varlen.pickle.xz", 33.732)] {
        let (_, run) = fixture(name);
        let gib = by_expandable(&run).peak_reserved as f64 / f64::from(1 << 30);
        println!("{name} {gib} {measured}");
        assert!((gib / measured - 1.0).abs() < 0.02, "{name}: {gib} GiB, measured {measured}");
    }
}
