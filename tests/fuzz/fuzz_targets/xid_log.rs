//! Any text as a saved kernel log: read, joined, judged and printed.
#![no_main]

use glake::diagnose::xid::{join::Joiner, saved, text};
use glake::host::inventory::Inventory;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let log = String::from_utf8_lossy(bytes);
    let found = saved::read(log.lines(), &mut Joiner::new(Inventory::default(), Vec::new()));
    for record in &found.records {
        let _ = (text::show(record), text::line(record));
    }
});
