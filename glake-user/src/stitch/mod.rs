//! The stitching allocator. Plans are pure values, then applied.

pub mod heap;
pub mod model;
pub mod oom;
pub mod options;
pub mod snapshot;
pub mod stats;
pub mod trace;

pub use heap::{Block, Heap, Reclaimed};
pub use options::Options;
pub use stats::Stats;
