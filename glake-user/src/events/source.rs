//! Where readings come from: live probes, a recording, a test.

use super::{event::Event, sample::Sample};
use crate::error::Result;

/// A source of readings. The live one is eBPF; a recording is another; both give the same types.
pub trait Source: Send {
    /// Takes one reading. Counters are cumulative since the source started.
    ///
    /// # Errors
    /// When nothing can be read any more; one failed probe is no error but a line in [`Sample::probes`].
    fn sample(&mut self) -> Result<Sample>;

    /// Events since the last call, oldest first. What was lost on the way is in [`Sample::dropped`].
    fn events(&mut self) -> Result<Vec<Event>>;
}
