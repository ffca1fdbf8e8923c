//! Reading a recording back.

use super::{
    BLOCK_MAGIC, Delta, Gap, Header, MAGIC, MAX_BLOCK, MAX_HEADER, MAX_WEIGHT, SCHEMA, delta, frame,
};
use crate::error::{Error, Kind, Result};
use crate::events::{event::Event, sample::Sample};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufReader, ErrorKind, Read};

/// One thing of a recording, in the order in which it was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A reading.
    Sample(Box<Sample>),
    /// An event.
    Event(Event),
    /// Readings are missing.
    Gap(Gap),
    /// The host's facts changed: see [`Header::host`].
    Host(Value),
}

/// Reads a recording from its begin to its end.
pub struct Reader<R> {
    input: BufReader<R>,
    header: Header,
    /// Plain bytes of the block at hand, and how far they are read.
    plain: Vec<u8>,
    at: usize,
    /// The last sample, which the next difference stands on; `None` after damage, until the next keyframe.
    last: Option<(Value, u64)>,
    budget: usize,
    warnings: Vec<String>,
    skipped_samples: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When it is no recording, is newer than this program, or its header is damaged.
    pub fn new(input: R) -> Result<Self> {
        let mut input = BufReader::new(input);
        let header = read_header(&mut input)?;
        Ok(Reader {
            input,
            header,
            plain: Vec::new(),
            at: 0,
            last: None,
            budget: MAX_WEIGHT,
            warnings: Vec::new(),
            skipped_samples: 0,
            ended: false,
        })
    }

    /// Where and when it was made.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What damage was found since the last call, one sentence each.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// The next entry; `None` at the end. Damage is skipped and told by [`Reader::take_warnings`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        loop {
            if self.at >= self.plain.len() && !self.next_block()? {
                self.tell_skipped();
                return Ok(None);
            }
            if let Some(entry) = self.next_frame() {
                return Ok(Some(entry));
            }
        }
    }

    /// The next frame of the block at hand that means something to us.
    fn next_frame(&mut self) -> Option<Entry> {
        let Some((kind, t, payload, end)) = split_frame(&self.plain[self.at..]) else {
            // Its length may be what is damaged, so nothing after it can be trusted.
            self.warn("a damaged frame: the rest of its block is skipped".into());
            self.at = self.plain.len();
            self.last = None;
            return None;
        };
        let payload = self.at + payload.start..self.at + payload.end;
        self.at += end;
        match kind {
            frame::KEYFRAME => {
                self.budget = MAX_WEIGHT;
                let value = parse(&self.plain[payload]);
                let value = value.and_then(|v| delta::charge(v, &mut self.budget).ok());
                self.sample(value, t)
            }
            frame::DELTA => {
                let Some((mut value, base)) = self.last.take() else {
                    self.skipped_samples += 1;
                    return None;
                };
                let change: Option<Delta> = parse(&self.plain[payload]);
                let fits = change.is_some_and(|change| {
                    change.base == base && delta::apply(&mut value, change.d, &mut self.budget).is_ok()
                });
                self.sample(fits.then_some(value), t)
            }
            frame::EVENT => self.known(payload, "an event").map(Entry::Event),
            frame::GAP => self.known(payload, "a gap").map(Entry::Gap),
            frame::HOST => self.known(payload, "the host's facts").map(Entry::Host),
            // A later version's frame: made to be skipped.
            _ => None,
        }
    }

    fn sample(&mut self, value: Option<Value>, t: u64) -> Option<Entry> {
        use serde::Deserialize;
        let sample = value.as_ref().and_then(|v| Sample::deserialize(v).ok());
        match (value, sample) {
            (Some(value), Some(sample)) if sample.at.monotonic_ns == t => {
                self.tell_skipped();
                self.last = Some((value, t));
                Some(Entry::Sample(Box::new(sample)))
            }
            _ => {
                self.last = None;
                self.skipped_samples += 1;
                None
            }
        }
    }

    fn known<T: serde::de::DeserializeOwned>(
        &mut self,
        payload: std::ops::Range<usize>,
        what: &str,
    ) -> Option<T> {
        let answer = parse(&self.plain[payload]);
        if answer.is_none() {
            self.warn(format!("{what} that this version does not know is skipped"));
        }
        answer
    }

    fn tell_skipped(&mut self) {
        let n = std::mem::take(&mut self.skipped_samples);
        if n > 0 {
            self.warn(format!("{n} samples are lost to damage: they stand on one that cannot be read"));
        }
    }

    /// Warnings are bounded like everything else that a file can cause.
    pub(super) fn warn(&mut self, text: String) {
        if self.warnings.len() < 100 {
            self.warnings.push(text);
        }
    }

    /// Reads the next block that decompresses; `false` at the end.
    fn next_block(&mut self) -> Result<bool> {
        while !self.ended {
            let mut head = [0u8; 12];
            let got = fill(&mut self.input, &mut head)?;
            if got < head.len() {
                self.ended = true;
                if got > 0 {
                    self.cut_tail();
                }
                break;
            }
            if head[..4] != BLOCK_MAGIC {
                self.last = None;
                if self.find_block(head)? {
                    return Ok(true);
                }
                continue;
            }
            let number = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| head[i + k]));
            if self.read_block(number(4), number(8))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn cut_tail(&mut self) {
        self.warn("the file ends within a block: its last seconds are lost, all before them are good".into());
    }

    /// Reads a block's body into `plain`; `false` when it is damaged or cut off.
    fn read_block(&mut self, stored: u32, plain: u32) -> Result<bool> {
        // zstd adds less than 1/256 + 64 bytes to what it cannot compress (ZSTD_COMPRESSBOUND).
        if plain > MAX_BLOCK || stored > MAX_BLOCK + MAX_BLOCK / 256 + 64 {
            self.warn("a block says that it is larger than a block may be: it is skipped".into());
            self.last = None;
            return Ok(false);
        }
        // Memory is taken for what is there, not for what the file claims.
        let mut body = Vec::new();
        (&mut self.input).take(u64::from(stored)).read_to_end(&mut body).map_err(unreadable)?;
        if body.len() < stored as usize {
            self.ended = true;
            self.cut_tail();
            return Ok(false);
        }
        match zstd::bulk::decompress(&body, plain as usize) {
            Ok(bytes) if bytes.len() == plain as usize => {
                (self.plain, self.at) = (bytes, 0);
                Ok(true)
            }
            _ => {
                self.warn("a block cannot be decompressed: it is skipped".into());
                self.last = None;
                Ok(false)
            }
        }
    }

    /// Reads on to the next block and into it: damage that hit a length makes us lose the place.
    /// `false` when that block is damaged too, or there is none.
    fn find_block(&mut self, head: [u8; 12]) -> Result<bool> {
        self.warn("bytes that are no block are skipped".into());
        let mut window: VecDeque<u8> = head.into();
        loop {
            window.pop_front();
            let mut byte = [0u8];
            if fill(&mut self.input, &mut byte)? == 0 {
                self.ended = true;
                return Ok(false);
            }
            window.push_back(byte[0]);
            if window.iter().take(4).eq(BLOCK_MAGIC.iter()) {
                let number = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| window[i + k]));
                return self.read_block(number(4), number(8));
            }
        }
    }
}

/// Parses JSON that cannot take more memory than a reading may.
fn parse<T: serde::de::DeserializeOwned>(text: &[u8]) -> Option<T> {
    (delta::text_weight(text) <= MAX_WEIGHT).then(|| serde_json::from_slice(text).ok())?
}

/// Type, time, place of the payload, and length of the frame at the start of `bytes`; `None` when damaged.
fn split_frame(bytes: &[u8]) -> Option<(u16, u64, std::ops::Range<usize>, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<2>()?;
    let (t, rest) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let crc = rest.get(length..)?.first_chunk::<4>()?;
    let payload = frame::HEAD..frame::HEAD + length;
    let good = crc32c::crc32c(&bytes[..payload.end]) == u32::from_le_bytes(*crc);
    let end = payload.end + 4;
    good.then_some((u16::from_le_bytes(*kind), u64::from_le_bytes(*t), payload, end))
}

fn read_header(input: &mut impl Read) -> Result<Header> {
    let mut magic = [0u8; MAGIC.len()];
    if fill(input, &mut magic)? < magic.len() || magic != MAGIC {
        return Err(Error::new(
            Kind::BadInput,
            "this is no GLake recording: it does not begin with GLAKEREC",
        )
        .remedy("recordings are made by `glake record FILE`"));
    }
    let damaged = || Error::new(Kind::BadInput, "the header of the recording is damaged or cut off");
    let mut head = [0u8; 6];
    if fill(input, &mut head)? < head.len() {
        return Err(damaged());
    }
    let schema = u16::from_le_bytes([head[0], head[1]]);
    if schema != SCHEMA {
        return Err(Error::new(
            Kind::Unsupported,
            format!("recording of schema {schema}; this glake reads {SCHEMA}"),
        )
        .remedy("use the glake that made it, or a newer one"));
    }
    let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
    if length > MAX_HEADER {
        return Err(damaged());
    }
    let mut guarded = head.to_vec();
    input.take(u64::from(length)).read_to_end(&mut guarded).map_err(unreadable)?;
    let mut crc = [0u8; 4];
    if fill(input, &mut crc)? < crc.len() || crc32c::crc32c(&guarded) != u32::from_le_bytes(crc) {
        return Err(damaged());
    }
    serde_json::from_slice(&guarded[head.len()..]).map_err(|e| damaged().because(e))
}

/// Fills `buffer` as far as the input goes.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(unreadable(e)),
        }
    }
    Ok(got)
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::os("reading the recording", cause)
}
