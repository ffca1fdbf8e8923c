//! The stitching allocator. Plans are pure values, then applied.

mod apply;
mod bins;
mod budget;
mod checks;
mod depot;
mod driver;
mod epochs;
pub mod heap;
mod kept;
mod lane;
mod lanes;
pub mod map;
pub mod model;
pub mod oom;
pub mod options;
pub mod plan;
mod pressure;
pub mod reclaim;
mod recorder;
mod regions;
pub mod release;
mod share;
pub mod snapshot;
mod space;
pub mod stats;
mod table;
pub mod target;
pub mod trace;
mod waiting;

pub use budget::Budget;
pub use heap::{Block, Found, Heap};
pub use options::{Config, OptionInfo, Options};
pub use reclaim::{Reclaimed, Reclaimer};
pub use share::Shared;
pub use stats::Stats;
pub use target::HeapTarget;
