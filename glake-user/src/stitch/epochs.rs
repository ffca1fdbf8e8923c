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
    /// Something was freed, or moved, in the open epoch.
    used: bool,
    /// Every epoch below this has been past for [`COLD_NS`]: what was freed then is not part of a cycle of this stream.
    cold: u32,
    /// What was past, and when that was looked at.
    seen: (u32, u64),
}

/// Events that one stream has in flight at most.
const MOST_CLOSED: usize = 64;

/// Memory that its stream has not touched for this long goes to other streams without need. Less, and streams that take
/// turns would take the same memory from each other at every turn.
const COLD_NS: u64 = 1_000_000_000;

impl Epochs {
    /// Epoch 0 is always past: for what the GPU never touched, or is known to be done with.
    pub(crate) fn new() -> Epochs {
        Epochs { open: 1, past: 1, closed: VecDeque::new(), used: false, cold: 0, seen: (1, 0) }
    }

    /// Something belongs to the open epoch from now on.
    pub(crate) fn touch(&mut self) -> u32 {
        self.used = true;
        self.open
    }

    /// Closes the open epoch with an event. Does nothing while the stream is captured: the epoch stays open.
    pub(crate) fn close(&mut self, driver: &Driver, stream: Stream) {
        if let Some(event) = driver.record(stream) {
            self.closed.push_back((self.open, event));
            self.open += 1;
            self.used = false;
        }
    }

    /// Closes the open epoch where that is of use and not too many are closed already: the device may be far behind.
    pub(crate) fn close_used(&mut self, driver: &Driver, stream: Stream) {
        if self.used && self.closed.len() < MOST_CLOSED {
            self.close(driver, stream);
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
