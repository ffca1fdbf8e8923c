//! Recordings: readings and events in a file that can be played back, mailed, cut off and damaged.
//!
//! ```text
//! file   = "GLAKEREC", schema u16, header length u32, header (JSON), crc32c of schema..header u32, block*
//! block  = "GLkb", stored length u32, plain length u32, zstd frame that holds whole frames
//! frame  = payload length u32, type u16, t u64 (CLOCK_MONOTONIC, ns), payload (JSON), crc32c of length..payload u32
//! ```
//!
//! All numbers are little endian. A sample is either a keyframe or the difference to the sample before it
//! ([`delta`]); a keyframe comes at least every [`KEYFRAME_NS`]. Frames of an unknown type are skipped. What damage
//! costs: a cut tail the last block; a damaged block itself and the samples up to the next keyframe; both are
//! warnings, not errors. Every length is checked against a limit before memory is taken for it.

pub mod delta;
mod playback;
mod reader;
mod redact;
mod writer;

pub use playback::Playback;
pub use reader::{Entry, Reader};
pub use redact::Redactor;
pub use writer::Writer;

use super::sample::Probe;
use crate::clock::Stamp;
use serde::{Deserialize, Serialize};

/// The first bytes of every recording.
pub const MAGIC: [u8; 8] = *b"GLAKEREC";
/// The newest schema, and the only one so far. A reader refuses newer ones: frames it could skip, a layout it cannot.
pub const SCHEMA: u16 = 1;
/// The longest header that a reader accepts, in bytes. A host with 64 devices and 60 probes needs about 20 KiB.
pub const MAX_HEADER: u32 = 1 << 20;
/// The most plain bytes in a block that a reader accepts, and so the longest frame. 10,000 owners need about 4 MiB.
pub const MAX_BLOCK: u32 = 16 << 20;
/// The most that a keyframe and the differences after it may put into memory, in the units of [`delta::weight`]: bounds
/// what a hostile file can make of little text. The writer begins again with a keyframe at half of it.
pub const MAX_WEIGHT: usize = 4_000_000;
/// The most events that playback keeps between two samples. Live, the ring that carries them is far smaller.
pub const MAX_EVENTS: usize = 50_000;
/// The longest time between two keyframes in ns.
pub const KEYFRAME_NS: u64 = 60_000_000_000;

const BLOCK_MAGIC: [u8; 4] = *b"GLkb";
/// A block is closed at this many plain bytes ...
const BLOCK_BYTES: usize = 256 << 10;
/// ... or when it spans this much time, so that a crash costs no more.
const BLOCK_NS: u64 = 5_000_000_000;

/// What a frame holds. Numbers are never used again.
mod frame {
    pub(super) const KEYFRAME: u16 = 1;
    pub(super) const DELTA: u16 = 2;
    pub(super) const EVENT: u16 = 3;
    pub(super) const GAP: u16 = 4;
    pub(super) const HOST: u16 = 5;
    /// Payload length, type, t.
    pub(super) const HEAD: usize = 4 + 2 + 8;
}

/// Where and when a recording was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Version of the program that wrote it.
    pub glake: String,
    /// Names were replaced (`--redact`).
    pub redacted: bool,
    /// Time between samples in ns.
    pub interval_ns: u64,
    /// The host's clocks, read together when recording began.
    pub clocks: Clocks,
    /// The host: name, kernel, boot id, GPUs, drives. The JSON of `host::inventory::Inventory`, which is not looked into.
    pub host: serde_json::Value,
    /// The probes when recording began.
    pub probes: Vec<Probe>,
}

/// The kernel's clocks, read one after the other within microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// CLOCK_MONOTONIC and CLOCK_REALTIME.
    pub at: Stamp,
    /// CLOCK_MONOTONIC_RAW in ns: the clock of UVM's own events.
    pub monotonic_raw_ns: u64,
    /// CLOCK_BOOTTIME in ns: the kernel log counts from the same start, without sleep.
    pub boottime_ns: u64,
}

/// Samples that were not recorded, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// When it was noticed.
    pub at: Stamp,
    /// Samples missed.
    pub samples: u64,
    /// `late`, `too_large`, `source_lost`.
    pub reason: String,
}

/// A sample as difference to the one before it.
#[derive(Serialize, Deserialize)]
struct Delta {
    /// `at.monotonic_ns` of the sample it stands on.
    base: u64,
    /// See [`delta`].
    d: serde_json::Value,
}

#[cfg(test)]
mod tests;
