//! Which bytes of a file go where, and how they are cut into reads. Pure.

use crate::error::{Error, Kind, Result};
use crate::gpu::Piece;

/// A range of a file and its place on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first byte in the file.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// The first byte's address on the device.
    pub address: u64,
}

/// One read: a range of the file that fits a part, and where its bytes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The first byte in the file, a multiple of the alignment.
    pub offset: u64,
    /// Bytes to read. At the file's end, fewer exist than [`Chunk::reads`] asks for.
    pub size: usize,
    /// What of it goes to the device.
    pub pieces: Vec<Piece>,
}

impl Chunk {
    /// Bytes to ask the file for: whole alignment units, which a read past the page cache needs.
    pub fn reads(&self, align: usize) -> usize {
        self.size.next_multiple_of(align.max(1))
    }

    /// Bytes that go to the device.
    pub fn payload(&self) -> u64 {
        self.pieces.iter().map(|p| p.size as u64).sum()
    }
}

/// Cuts spans into chunks of at most `part` bytes that begin at multiples of `align`, a power of two that divides `part`.
/// Spans that lie side by side in the file share reads. Overlapping spans are read twice. `BadInput` if a span ends beyond
/// `file_size` bytes.
pub fn chunks(spans: &[Span], file_size: u64, part: usize, align: usize) -> Result<Vec<Chunk>> {
    let (part64, align64) = (part as u64, align as u64);
    if !align.is_power_of_two() || part == 0 || !part.is_multiple_of(align) {
        let what = format!("cutting a file into parts of {part} bytes at multiples of {align}");
        return Err(Error::new(Kind::Misuse, what));
    }
    let mut sorted: Vec<Span> = spans.iter().copied().filter(|s| s.size > 0).collect();
    sorted.sort_by_key(|s| s.offset);
    let mut made: Vec<Chunk> = Vec::new();
    for span in sorted {
        let end = span.offset.checked_add(span.size).filter(|end| *end <= file_size);
        let Some(end) = end else {
            let what = format!("reading {} bytes at {} of a file of {file_size}", span.size, span.offset);
            return Err(Error::new(Kind::BadInput, what));
        };
        let mut at = span.offset;
        while at < end {
            let chunk = match made.last_mut() {
                Some(last) if joins(last, at, part64, align64) => last,
                _ => {
                    made.push(Chunk { offset: at - at % align64, size: 0, pieces: Vec::new() });
                    let Some(last) = made.last_mut() else { continue };
                    last
                }
            };
            let size = (end - at).min(chunk.offset + part64 - at);
            let piece = Piece {
                at: (at - chunk.offset) as usize,
                size: size as usize,
                address: span.address + (at - span.offset),
            };
            chunk.pieces.push(piece);
            chunk.size = chunk.size.max(piece.at + piece.size);
            at += size;
        }
    }
    Ok(made)
}

/// Cuts a whole file into its parts of `part` bytes, each with the pieces of the spans that fall into it; a part may have none.
pub fn windows(spans: &[Span], file_size: u64, part: usize) -> Result<Vec<Chunk>> {
    let mut filled = chunks(spans, file_size, part, part)?.into_iter().peekable();
    let mut all = Vec::new();
    for offset in (0..file_size).step_by(part.max(1)) {
        let size = (file_size - offset).min(part as u64) as usize;
        let pieces = filled.next_if(|c| c.offset == offset).map(|c| c.pieces).unwrap_or_default();
        all.push(Chunk { offset, size, pieces });
    }
    Ok(all)
}

/// Whether a read already made takes in byte `at` too: it fits, and no unit that nobody wants lies between.
fn joins(last: &Chunk, at: u64, part: u64, align: u64) -> bool {
    let end = last.offset + last.size as u64;
    at >= last.offset && at < last.offset + part && at <= end.next_multiple_of(align)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the chunks say, byte by byte: address and file offset.
    fn laid_out(chunks: &[Chunk]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for c in chunks {
            for p in &c.pieces {
                assert!(p.at + p.size <= c.size, "{c:?}");
                all.extend((0..p.size as u64).map(|i| (p.address + i, c.offset + p.at as u64 + i)));
            }
        }
        all.sort_unstable();
        all
    }

    proptest! {
        #[test]
        fn every_byte_goes_where_its_span_says_and_reads_keep_their_limits(
            raw in prop::collection::vec((0_u64..3000, 0_u64..900), 0..12),
            part in 1_usize..6, align in 0_u32..4,
        ) {
            let align = 16_usize << align;
            let part = part * align;
            let mut address = 1 << 20;
            let spans: Vec<Span> = raw.iter().map(|(offset, size)| {
                address += 1000;
                Span { offset: *offset, size: *size, address }
            }).collect();
            let made = chunks(&spans, 4000, part, align).unwrap();
            let mut wanted: Vec<(u64, u64)> = spans
                .iter()
                .flat_map(|s| (0..s.size).map(|i| (s.address + i, s.offset + i)))
                .collect();
            wanted.sort_unstable();
            prop_assert_eq!(laid_out(&made), wanted);
            for c in &made {
                prop_assert!(c.size > 0 && c.size <= part && c.offset.is_multiple_of(align as u64), "{:?}", c);
                prop_assert!(c.reads(align) <= part);
            }
        }
    }

    #[test]
    fn spans_side_by_side_share_a_read_and_a_gap_begins_another() {
        let span = |offset, size| Span { offset, size, address: offset + (1 << 30) };
        let made = chunks(&[span(100, 50), span(150, 10), span(3000, 8)], 4000, 4096, 512).unwrap();
        assert_eq!(made.len(), 2);
        assert_eq!((made[0].offset, made[0].size, made[0].pieces.len()), (0, 160, 2));
        assert_eq!((made[1].offset, made[1].size), (2560, 448));
    }

    #[test]
    fn windows_cover_a_file_whose_beginning_is_no_span() {
        let span = Span { offset: 5000, size: 5000, address: 1 << 20 };
        let made = windows(&[span], 10_000, 4096).unwrap();
        let at: Vec<_> = made.iter().map(|c| (c.offset, c.size, c.pieces.len())).collect();
        assert_eq!(at, [(0, 4096, 0), (4096, 4096, 1), (8192, 1808, 1)]);
        assert_eq!(made[1].pieces[0], Piece { at: 904, size: 3192, address: 1 << 20 });
    }

    #[test]
    fn a_span_beyond_the_end_is_refused_with_its_numbers() {
        let e = chunks(&[Span { offset: 10, size: u64::MAX, address: 0 }], 100, 4096, 512).unwrap_err();
        assert_eq!(e.kind(), Kind::BadInput);
        assert!(e.to_string().contains("at 10 of a file of 100"), "{e}");
        assert_eq!(chunks(&[], 0, 4096, 5).unwrap_err().kind(), Kind::Misuse);
    }
}
