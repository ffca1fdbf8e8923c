//! Any bytes as a record of the probes' ring buffer.
#![no_main]

use glake::events::ebpf::record::{block_status, decode, text};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = text(bytes);
    if let Some(record) = decode(bytes) {
        let _ = (text(&record.name), text(&record.text), block_status(record.value.cast_signed()));
    }
});
