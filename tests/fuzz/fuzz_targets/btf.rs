//! Any bytes as the kernel's type information: parsed, and asked for what the probes need.
#![no_main]

use glake::sys::btf::Btf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(btf) = Btf::parse(bytes) else { return };
    for (structure, path) in glake_common::member::MEMBERS {
        let _ = btf.member(structure, path);
    }
    for event in ["block_io_start", "block_rq_complete", ""] {
        let _ = btf.tracepoint(event);
    }
    let _ = (btf.len(), btf.is_empty());
});
