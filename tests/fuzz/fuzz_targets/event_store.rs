//! Any bytes as a store of events: every whole frame is found, the rest is counted, and each byte is one or the other.
#![no_main]

use glake::telemetry::event_store::{Found, decode};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut found = Found::default();
    decode(bytes, &mut found);
    let whole: usize = found.records.iter().map(|r| r.len() + 13).sum();
    assert!(whole as u64 + found.damaged_bytes <= bytes.len() as u64);
});
