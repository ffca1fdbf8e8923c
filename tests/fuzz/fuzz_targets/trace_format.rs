//! Any text as the `format` of a trace point.
#![no_main]

use glake::sys::tracefs::parse_format;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for field in parse_format(&String::from_utf8_lossy(bytes)) {
        assert!(!field.name.is_empty(), "a field has a name");
    }
});
