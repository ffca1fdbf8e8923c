//! Recordings of allocators that users have: PyTorch's memory snapshots, RMM's log, STAlloc's and MiniMalloc's traces.
//!
//! Reading is pure, total and bounded: whatever the file claims, at most about [`Limits::memory`] is held, and nothing
//! in it is ever imported or run. Privileges: none.

mod entries;
mod input;
mod pickle;
mod recording;
mod run;
mod text;
mod torch;
mod value;

#[cfg(test)]
mod tests;

use std::path::Path;

pub use entries::{Action, Entry, Frame, NO_SITE};
pub use input::{Input, Packing};
pub use recording::{Block, BlockState, Coverage, DeviceRecording, Format, Recording, Segment, Settings};
pub use run::{Held, Recorded, Run, StartSegment};

use crate::error::{Error, Result};

/// What reading may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, about. Reading stops there and says how far it came.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory: 2 << 30 }
    }
}

/// Reads a file of any known format.
///
/// # Errors
/// The file cannot be read, is no known trace, is broken, or wants to import Python code. The message names the file
/// and the byte.
pub fn read(path: &Path, limits: Limits) -> Result<Recording> {
    let mut input = Input::open(path)?;
    read_from(&mut input, limits).map_err(|e| {
        let remedy = e.remedy_text().map(str::to_string);
        let named = Error::new(e.kind(), format!("reading {}", path.display())).because(e);
        match remedy {
            Some(text) => named.remedy(text),
            None => named,
        }
    })
}

/// Reads bytes that are already in memory.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(bytes: &[u8], limits: Limits) -> Result<Recording> {
    read_from(&mut Input::from_bytes(bytes)?, limits)
}

fn read_from(input: &mut Input, limits: Limits) -> Result<Recording> {
    let head = input.peek().map_err(|e| Error::os("reading the first bytes", e))?;
    let pickle = match head {
        [0x80, 0..=5, ..] => true,
        // Protocol 0 and 1 have no header: a snapshot opens with a mark and a dict or list, or an empty one.
        [b'(', b'd' | b'l', ..] | [b'}' | b']', b'q' | b'r' | b'(' | b'.' | b'p', ..] => true,
        _ => false,
    };
    if pickle { torch::read(input, limits.memory) } else { text::read(input, limits.memory) }
}
