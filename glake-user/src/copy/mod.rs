//! Bytes between files and GPUs at the speed of the slowest part on the way.
//!
//! A copy is a list of [`span::Span`]s (which bytes of a file belong at which address), cut into chunks that fit a part of
//! the pinned [`ring`]. Lanes, threads of their own, fill parts from the file and let the GPU fetch them while they
//! fill the next. How a lane reaches the file is its [`lanes::Lane`]: the page cache by pread, or the disk past it by
//! io_uring. [`route`] decides which, from what was probed and what was measured on this host ([`rates`]), and says why not
//! the others. Where a peer is named, its link carries parts too ([`relay`]).
//!
//! Every wait has a deadline. A file that changes while it is read is an error, not a mixture.

pub mod engine;
pub mod job;
pub mod lanes;
mod paths;
pub mod rates;
pub mod relay;
pub mod ring;
pub mod room;
pub mod route;
pub mod safetensors;
pub mod source;
pub mod span;
mod tally;
pub mod write;

pub use engine::{Engine, Wish};
pub use job::{Moved, Settings, read};
pub use relay::Relay;
pub use ring::Ring;
pub use source::Source;
pub use span::Span;
pub use tally::tally;
pub use write::{Image, write};
