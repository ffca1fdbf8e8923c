//! Epochs: one event for many frees. What is freed in epoch `n` is past once the event that closed epoch `n` is done.

use std::collections::VecDeque;

use super::driver::Driver;
use crate::error::Result;
use crate::gpu::{Event, Stream};

/// The epochs of one stream.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// The open epoch: what is freed now belongs to it.
    pub(crate) open: u32,
    /// Every epoch below this is past.
    pub(crate) past: u32,
    closed: VecDeque<(u32, Event)>,
    /// Bytes freed in the open epoch.
    pub(crate) freed: u64,
    /// Every epoch below this has been past for [`COLD_NS`]: what was freed then is not part of a cycle of this stream.
    cold: u32,
    /// What was past, and when that was looked at.
    seen: (u32, u64),
}

/// Memory that its stream has not touched for this long goes to other streams without need. Less, and streams that take
/// turns would take the same memory from each other at every turn.
const COLD_NS: u64 = 1_000_000_000;

impl Epochs {
    /// Epoch 0 is always past: for what the GPU never touched, or is known to be done with.
    pub(crate) fn new() -> Epochs {
        Epochs { open: 1, past: 1, closed: VecDeque::new(), freed: 0, cold: 0, seen: (1, 0) }
    }

    /// Closes the open epoch with an event. Does nothing while the stream is captured: the epoch stays open.
    pub(crate) fn close(&mut self, driver: &Driver, stream: Stream) {
        if let Some(event) = driver.record(stream) {
            self.closed.push_back((self.open, event));
            self.open += 1;
            self.freed = 0;
        }
    }

    /// Looks which epochs are past. Asks the driver only for the oldest ones.
    pub(crate) fn poll(&mut self, driver: &Driver) -> Result<()> {
        while let Some(&(epoch, event)) = self.closed.front() {
            if !driver.is_done(event)? {
                break;
            }
            self.pass(driver, epoch, event);
        }
        Ok(())
    }

    /// Looks which epochs are cold by now.
    pub(crate) fn cool(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.seen.1) >= COLD_NS {
            self.cold = self.seen.0;
            self.seen = (self.past, now_ns);
        }
    }

    pub(crate) fn is_cold(&self, epoch: u32) -> bool {
        epoch < self.cold
    }

    fn pass(&mut self, driver: &Driver, epoch: u32, event: Event) {
        driver.recycle(event);
        self.closed.pop_front();
        self.past = epoch + 1;
    }

    /// Waits for the oldest epoch that is not past. False when there is none or it did not come in time.
    pub(crate) fn wait_oldest(&mut self, driver: &Driver, timeout_ns: u64) -> Result<bool> {
        let Some(&(epoch, event)) = self.closed.front() else { return Ok(false) };
        if !driver.wait(event, timeout_ns)? {
            return Ok(false);
        }
        self.pass(driver, epoch, event);
        Ok(true)
    }

    pub(crate) fn is_past(&self, epoch: u32) -> bool {
        epoch < self.past
    }
}
