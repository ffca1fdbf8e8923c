//! Any text as a log with out-of-memory messages.
#![no_main]

use glake::stitch::oom;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for message in oom::parse(text) {
        let _ = oom::explain(&message);
    }
    let _ = oom::peaks(text);
});
