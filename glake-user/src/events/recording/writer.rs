//! Writing a recording.

use super::{
    BLOCK_BYTES, BLOCK_MAGIC, BLOCK_NS, Delta, Gap, Header, KEYFRAME_NS, MAGIC, MAX_BLOCK, MAX_WEIGHT, SCHEMA,
};
use super::{delta, frame};
use crate::clock::Stamp;
use crate::error::{Error, Kind, Result};
use crate::events::{event::Event, sample::Sample};
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// Writes readings and events. Nothing is sure to be in the file before [`Writer::finish`] or [`Writer::flush`].
pub struct Writer<W> {
    out: W,
    written: u64,
    /// Frames of the block that is being filled.
    pub(super) plain: Vec<u8>,
    block_began_ns: Option<u64>,
    pub(super) last: Option<Last>,
}

/// The newest sample, which the next difference stands on.
pub(super) struct Last {
    value: Value,
    t: u64,
    keyframe_t: u64,
    /// What was put in with and since the last keyframe.
    weight: usize,
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// When `out` cannot be written or the header is longer than a reader accepts.
    pub fn new(mut out: W, header: &Header) -> Result<Self> {
        let json = to_json(header)?;
        let length = u32::try_from(json.len()).ok().filter(|n| *n <= super::MAX_HEADER).ok_or_else(|| {
            Error::new(Kind::Exhausted, format!("a recording header of {} bytes", json.len()))
        })?;
        let mut guarded = Vec::with_capacity(json.len() + 6);
        guarded.extend(SCHEMA.to_le_bytes());
        guarded.extend(length.to_le_bytes());
        guarded.extend(&json);
        out.write_all(&MAGIC)
            .and_then(|()| out.write_all(&guarded))
            .and_then(|()| out.write_all(&crc32c::crc32c(&guarded).to_le_bytes()))
            .map_err(failed)?;
        let written = (MAGIC.len() + guarded.len() + 4) as u64;
        Ok(Writer { out, written, plain: Vec::new(), block_began_ns: None, last: None })
    }

    /// Adds a reading. One that is too large for a frame becomes a [`Gap`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn sample(&mut self, sample: &Sample) -> Result<()> {
        let value = serde_json::to_value(sample).map_err(not_json)?;
        let t = sample.at.monotonic_ns;
        if let Some((text, added)) = self.difference(&value, t)? {
            self.frame(frame::DELTA, t, &text)?;
            if let Some(last) = &mut self.last {
                last.weight += added;
                (last.value, last.t) = (value, t);
            }
            return Ok(());
        }
        let text = to_json(&value)?;
        let weight = delta::weight(&value);
        if weight > MAX_WEIGHT / 2 || !fits(&text) {
            // The next sample stands on nothing: it will be a keyframe.
            self.last = None;
            return self.gap(&Gap { at: sample.at, samples: 1, reason: "too_large".into() });
        }
        self.frame(frame::KEYFRAME, t, &text)?;
        self.last = Some(Last { value, t, keyframe_t: t, weight });
        Ok(())
    }

    /// The difference to the last sample and the weight it puts in, unless a keyframe is due.
    fn difference(&self, value: &Value, t: u64) -> Result<Option<(Vec<u8>, usize)>> {
        let Some(last) = &self.last else { return Ok(None) };
        // Time that runs backwards is another boot or another source: start again.
        if t < last.t || t - last.keyframe_t >= KEYFRAME_NS {
            return Ok(None);
        }
        let d = delta::diff(&last.value, value).unwrap_or_else(|| serde_json::json!({"o": {}}));
        let added = delta::inserted(&d);
        if last.weight + added > MAX_WEIGHT / 2 {
            return Ok(None);
        }
        let text = to_json(&Delta { base: last.t, d })?;
        Ok(fits(&text).then_some((text, added)))
    }

    /// Adds an event.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn event(&mut self, event: &Event) -> Result<()> {
        self.frame(frame::EVENT, event.at.monotonic_ns, &to_json(event)?)
    }

    /// Notes that samples are missing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn gap(&mut self, gap: &Gap) -> Result<()> {
        self.frame(frame::GAP, gap.at.monotonic_ns, &to_json(gap)?)
    }

    /// Notes that the host's facts changed at `at`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn host(&mut self, at: Stamp, host: &Value) -> Result<()> {
        self.frame(frame::HOST, at.monotonic_ns, &to_json(host)?)
    }

    /// Bytes in the file so far, without the block that is still being filled.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Closes the block that is being filled and passes everything on.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.close_block()?;
        self.out.flush().map_err(failed)
    }

    /// Closes the recording and gives back what it was written to.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self) -> Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    pub(super) fn frame(&mut self, kind: u16, t: u64, payload: &[u8]) -> Result<()> {
        if !fits(payload) {
            return Err(Error::new(
                Kind::Exhausted,
                format!("a frame of {} bytes in a recording", payload.len()),
            ));
        }
        let size = payload.len() + frame::HEAD + 4;
        let full = self.plain.len() + size > BLOCK_BYTES;
        let old = self.block_began_ns.is_some_and(|began| t.saturating_sub(began) >= BLOCK_NS);
        if full || old {
            self.flush()?;
        }
        self.block_began_ns.get_or_insert(t);
        let start = self.plain.len();
        // Fits in 32 bits: it is below MAX_BLOCK.
        self.plain.extend((payload.len() as u32).to_le_bytes());
        self.plain.extend(kind.to_le_bytes());
        self.plain.extend(t.to_le_bytes());
        self.plain.extend(payload);
        let crc = crc32c::crc32c(&self.plain[start..]);
        self.plain.extend(crc.to_le_bytes());
        Ok(())
    }

    fn close_block(&mut self) -> Result<()> {
        self.block_began_ns = None;
        if self.plain.is_empty() {
            return Ok(());
        }
        let stored = zstd::bulk::compress(&self.plain, zstd::DEFAULT_COMPRESSION_LEVEL)
            .map_err(|e| Error::os("compressing a block of the recording", e))?;
        // Both fit: a frame is below MAX_BLOCK and zstd adds less than 1 % to what it cannot compress.
        let (stored_length, plain_length) = (stored.len() as u32, self.plain.len() as u32);
        self.out
            .write_all(&BLOCK_MAGIC)
            .and_then(|()| self.out.write_all(&stored_length.to_le_bytes()))
            .and_then(|()| self.out.write_all(&plain_length.to_le_bytes()))
            .and_then(|()| self.out.write_all(&stored))
            .map_err(failed)?;
        self.written += stored.len() as u64 + 12;
        self.plain.clear();
        Ok(())
    }
}

/// Whether a reader would accept a frame of this payload.
fn fits(payload: &[u8]) -> bool {
    payload.len() + frame::HEAD + 4 <= MAX_BLOCK as usize && delta::text_weight(payload) <= MAX_WEIGHT
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(not_json)
}

fn not_json(cause: serde_json::Error) -> Error {
    Error::new(Kind::Misuse, "turning a reading into JSON").because(cause)
}

fn failed(cause: std::io::Error) -> Error {
    Error::os("writing the recording", cause)
}
