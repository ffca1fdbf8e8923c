//! The daemon: wiring, configuration, HTTP.
