//! A recording as a source of readings.

use super::{Entry, Gap, MAX_EVENTS, Reader};
use crate::error::{Error, Kind, Result};
use crate::events::{event::Event, sample::Sample, source::Source};
use serde_json::Value;
use std::io::Read;

/// A recording as a [`Source`]: each call of `sample` gives the next one, `events` those that were recorded before it.
pub struct Playback<R> {
    reader: Reader<R>,
    host: Value,
    events: Vec<Event>,
    gaps: Vec<Gap>,
    untold: u64,
}

impl<R: Read> Playback<R> {
    /// Plays what `reader` has left.
    pub fn new(reader: Reader<R>) -> Self {
        let host = reader.header().host.clone();
        Playback { reader, host, events: Vec::new(), gaps: Vec::new(), untold: 0 }
    }

    /// The reader, for its header and its warnings.
    pub fn reader(&mut self) -> &mut Reader<R> {
        &mut self.reader
    }

    /// The host's facts at the last sample: see the header's `host`.
    pub fn host(&self) -> &Value {
        &self.host
    }

    /// Readings that are missing, noticed since the last call.
    pub fn take_gaps(&mut self) -> Vec<Gap> {
        std::mem::take(&mut self.gaps)
    }

    /// The next sample; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_sample(&mut self) -> Result<Option<Sample>> {
        let answer = self.advance();
        let untold = std::mem::take(&mut self.untold);
        if untold > 0 {
            self.reader
                .warn(format!("{untold} events between two samples are left out: more than {MAX_EVENTS}"));
        }
        answer
    }

    fn advance(&mut self) -> Result<Option<Sample>> {
        loop {
            match self.reader.next_entry()? {
                Some(Entry::Sample(sample)) => return Ok(Some(*sample)),
                Some(Entry::Event(event)) if self.events.len() < MAX_EVENTS => self.events.push(event),
                Some(Entry::Gap(gap)) if self.gaps.len() < MAX_EVENTS => self.gaps.push(gap),
                Some(Entry::Event(_) | Entry::Gap(_)) => self.untold += 1,
                Some(Entry::Host(host)) => self.host = host,
                None => return Ok(None),
            }
        }
    }
}

impl<R: Read + Send> Source for Playback<R> {
    fn sample(&mut self) -> Result<Sample> {
        self.next_sample()?.ok_or_else(|| Error::new(Kind::Missing, "the recording has ended"))
    }

    fn events(&mut self) -> Result<Vec<Event>> {
        Ok(std::mem::take(&mut self.events))
    }
}
