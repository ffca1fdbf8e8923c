//! Where readings come from: live probes, a recording, a test.

use super::{event::Event, sample::Sample};
use crate::error::{Error, Kind, Result};

/// A source of readings. The live one is eBPF; a recording is another; both give the same types.
pub trait Source: Send {
    /// Takes one reading. Counters are cumulative since the source started.
    ///
    /// # Errors
    /// When nothing can be read any more; one failed probe is no error but a line in [`Sample::probes`].
    fn sample(&mut self) -> Result<Sample>;

    /// Events since the last call, oldest first. What was lost on the way is in [`Sample::dropped`].
    fn events(&mut self) -> Result<Vec<Event>>;

    /// Watches what the profile `full` wants, or only what `light` wants, from now on.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for a source whose probes are not its own.
    fn set_full(&mut self, full: bool) -> Result<()> {
        let wanted = if full { "full" } else { "light" };
        Err(Error::new(
            Kind::Unsupported,
            format!("changing to profile {wanted}: this source has no probes of its own"),
        ))
    }
}
