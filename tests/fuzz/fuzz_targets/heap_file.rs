//! Any bytes in a file of `/dev/shm` are a heap's statistics or an error.
#![no_main]

use glake::events::heaps::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = parse(bytes) {
        assert!(file.pid != 0 && file.gpus.len() <= 64);
    }
});
