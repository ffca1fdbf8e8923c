//! A GPU as verbs: reserve, create, map, set access, unmap, release, copy, event.
//!
//! [`Device`] is the boundary. Behind it is the CUDA driver ([`cuda`], loaded at run time) or, in tests and on machines
//! without a GPU, the host GPU of real memory (`standin::gpu`). One conformance suite runs on both.

pub mod costs;
pub mod cuda;
pub mod device;
mod flight;

pub use costs::Costs;
pub use device::{Call, Device, Event, Granularity, Handle, Memory, Stream};
pub use flight::{InFlight, Late, Piece, Refused};
