//! Any bytes as a recording of an allocator: pickles of every protocol, packed or not, and text traces; what is read is
//! played into the model of torch's default allocator.
#![no_main]

use glake::stitch::model::Caching;
use glake::stitch::snapshot::{Limits, Run, read_bytes};
use glake::stitch::trace::play;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(recording) = read_bytes(bytes, Limits { memory: 8 << 20 }) else { return };
    for device in &recording.devices {
        let run = Run::of(&recording, device);
        let mut model = Caching::at_start_of(&run, &recording.settings, 1 << 40);
        let _ = play(&run.events, &mut model, &mut |_, _| {});
    }
});
