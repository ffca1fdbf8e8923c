//! Readings become numbers: rates, histograms, workloads, the metric tree.

pub mod difference;
pub mod event_store;
pub mod finding;
pub mod metrics;
pub mod model;
pub mod state;
pub mod uvm_tally;
