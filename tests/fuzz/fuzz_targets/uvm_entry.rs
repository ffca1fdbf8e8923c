//! Any bytes as entries of the driver's event queue, in both layouts, and what they add up to.
#![no_main]

use glake::events::uvm::{entry, release::Layout};
use glake::telemetry::uvm_tally::Tally;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for layout in [Layout::V1, Layout::V2] {
        let mut tally = Tally::default();
        for chunk in bytes.chunks(layout.entry_size()) {
            if let Ok(found) = entry::decode(layout, layout == Layout::V2, chunk) {
                tally.add(&found);
            }
        }
        let _ = (tally.by_cause(), tally.by_direction(), tally.heat.spans(3, 48));
    }
});
