//! Any bytes as a recording: read, made into a trace, played into the model of the default allocator.
#![no_main]

use glake::stitch::model::Caching;
use glake::stitch::snapshot::{self, Limits, Run};
use glake::stitch::trace;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(recording) = snapshot::read_bytes(bytes, Limits { memory: 1 << 22 }) else { return };
    for device in &recording.devices {
        let run = Run::of(&recording, device);
        let mut model = Caching::at_start_of(&run, &recording.settings, 1 << 40);
        let _ = trace::play(&run.events, &mut model, &mut |_, _| {});
    }
});
