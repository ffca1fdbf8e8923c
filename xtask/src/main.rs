//! The developers' door: `cargo xtask run | test | check | vm | bench | setup`.
fn main() {}
