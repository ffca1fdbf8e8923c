//! The daemon: wiring, configuration, HTTP.

pub mod gpu_events;
