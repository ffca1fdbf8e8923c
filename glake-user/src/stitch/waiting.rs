//! Blocks that wait for other streams after their free.

use super::driver::Driver;
use crate::error::Result;
use crate::gpu::{Event, Stream};

/// A block that was handed back while other streams may still use it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) space: usize,
    pub(super) node: u32,
    pub(super) events: Vec<Event>,
    /// Streams that were captured at the time: their events are still to be recorded.
    pub(super) unmarked: Vec<Stream>,
}

impl Waiting {
    /// Records the events that could not be recorded before.
    pub(super) fn mark(&mut self, driver: &Driver) {
        let mut at = 0;
        while at < self.unmarked.len() {
            match driver.record(self.unmarked[at]) {
                Some(event) => {
                    self.events.push(event);
                    self.unmarked.swap_remove(at);
                }
                None => at += 1,
            }
        }
    }

    /// True when no stream uses the block any more.
    pub(super) fn poll(&mut self, driver: &Driver) -> Result<bool> {
        while let Some(&event) = self.events.last() {
            if !driver.is_done(event)? {
                return Ok(false);
            }
            driver.recycle(event);
            self.events.pop();
        }
        Ok(self.unmarked.is_empty())
    }
}
