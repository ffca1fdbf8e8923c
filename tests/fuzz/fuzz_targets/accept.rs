//! Any `Accept` header is answered with one of the two formats.
#![no_main]

use glake::telemetry::metrics::accept::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|header: &str| {
    let _ = Format::of_accept(Some(header)).content_type();
});
