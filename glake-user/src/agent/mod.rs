//! The daemon: wiring, configuration, HTTP.

pub mod config;
pub mod findings;
pub mod gpu_events;
pub mod health;
pub mod http;
pub mod live;
mod lock;
pub mod logger;
mod notify;
pub mod privileges;
mod sampler;
mod serve;
mod uvm_process;
pub mod web;

pub use lock::Lock;
pub use sampler::{Sampler, Shared, Snapshot};
pub use serve::{Agent, Open, Outcome, Until};
