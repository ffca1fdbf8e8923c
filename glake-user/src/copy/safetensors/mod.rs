//! Weights in the safetensors format: what a file says of its tensors, many files as one checkpoint, and where each tensor
//! lands. Everything here is pure but [`checkpoint`], which opens files.
//!
//! A header is not trusted: every number is checked against the file's size before anything is read by it.

pub mod checkpoint;
mod dtype;
mod header;

pub use checkpoint::{Checkpoint, Placed};
pub use dtype::Dtype;
pub use header::{Header, Tensor, parse, write};

/// The longest header that is read: the format's own limit, 100 MB.
pub const MAX_HEADER: u64 = 100_000_000;

/// Every tensor begins at a multiple of this on the device. The format only promises the alignment of the element type, and
/// matrix kernels read 16 bytes and more at a time.
pub const ALIGN: u64 = 512;
