//! Any text is a configuration or an error that names file and line.
#![no_main]

use glake::agent::config::{Layered, Request};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    let mut layered = Layered::read(&Request::default()).expect("the defaults are right");
    match layered.take_text(text, Path::new("file.toml")) {
        // What was taken can be shown and taken again.
        Ok(()) => {
            layered.take_text(&layered.show(), Path::new("shown.toml")).expect("shown values are right")
        }
        Err(error) => assert!(error.chain().contains("file.toml:"), "{}", error.chain()),
    }
});
