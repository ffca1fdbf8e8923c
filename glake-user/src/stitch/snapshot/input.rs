//! The bytes of a recording: plain, xz or zstd, with the offset that error messages name.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Decoding xz may take this much memory, whatever the file asks for (`xz -9` needs 65 MiB).
const XZ_MEMORY: u64 = 512 << 20;

/// How a file is packed, told by its first bytes and never by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As it is.
    Plain,
    /// `.xz`
    Xz,
    /// `.zst`
    Zstd,
}

/// A stream of bytes that knows where it is.
pub struct Input {
    reader: Box<dyn BufRead>,
    offset: u64,
    packing: Packing,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({:?} at byte {})", self.packing, self.offset)
    }
}

impl Input {
    /// Opens a file and looks at its first bytes.
    ///
    /// # Errors
    /// The file cannot be read, or is packed in a way that is not read here (gzip, zip, bzip2).
    pub fn open(path: &Path) -> Result<Input> {
        let name = path.display();
        let file = File::open(path).map_err(|e| Error::os(format!("opening {name}"), e))?;
        Input::sniff(Box::new(BufReader::with_capacity(1 << 16, file)), &name.to_string())
    }

    /// Bytes already in memory.
    ///
    /// # Errors
    /// As [`Input::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Input> {
        Input::sniff(Box::new(std::io::Cursor::new(bytes.to_vec())), "the given bytes")
    }

    fn sniff(mut raw: Box<dyn BufRead>, name: &str) -> Result<Input> {
        let head = raw.fill_buf().map_err(|e| Error::os(format!("reading {name}"), e))?;
        let (packing, refused) = match head {
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => (Packing::Xz, None),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => (Packing::Zstd, None),
            [0x1f, 0x8b, ..] => (Packing::Plain, Some(("gzip", "gunzip"))),
            [b'B', b'Z', b'h', ..] => (Packing::Plain, Some(("bzip2", "bunzip2"))),
            [b'P', b'K', 3, 4, ..] => (Packing::Plain, Some(("zip", "unzip"))),
            _ => (Packing::Plain, None),
        };
        if let Some((format, tool)) = refused {
            return Err(Error::new(Kind::Unsupported, format!("{name} is packed with {format}")).remedy(
                format!("unpack it first with {tool}; plain, .xz and .zst files are read as they are"),
            ));
        }
        let reader: Box<dyn BufRead> = match packing {
            Packing::Plain => raw,
            Packing::Xz => {
                let stream =
                    liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)
                        .map_err(|e| Error::new(Kind::Exhausted, "starting the xz decoder").because(e))?;
                Box::new(BufReader::new(liblzma::bufread::XzDecoder::new_stream(raw, stream)))
            }
            Packing::Zstd => Box::new(BufReader::new(
                zstd::stream::read::Decoder::with_buffer(raw)
                    .map_err(|e| Error::os(format!("starting the zstd decoder for {name}"), e))?,
            )),
        };
        Ok(Input { reader, offset: 0, packing })
    }

    /// How the file is packed.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Bytes read so far, counted after unpacking.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes that come next, without taking them.
    ///
    /// # Errors
    /// What the file system or the decoder answers.
    pub fn peek(&mut self) -> std::io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    /// The next byte; `None` at the end.
    ///
    /// # Errors
    /// What the file system or the decoder answers; a packed file cut short is `UnexpectedEof`.
    pub fn byte(&mut self) -> std::io::Result<Option<u8>> {
        let Some(&byte) = self.reader.fill_buf()?.first() else { return Ok(None) };
        self.reader.consume(1);
        self.offset += 1;
        Ok(Some(byte))
    }

    /// Exactly `N` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` where the file ends first.
    pub fn array<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.offset += N as u64;
        Ok(bytes)
    }

    /// Exactly `len` bytes, taken as they come: a length that lies costs no memory.
    ///
    /// # Errors
    /// `UnexpectedEof` where the file ends first.
    pub fn bytes(&mut self, len: u64, into: &mut Vec<u8>) -> std::io::Result<()> {
        into.clear();
        let got = (&mut self.reader).take(len).read_to_end(into)? as u64;
        self.offset += got;
        if got == len { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    }

    /// A line without its end, at most `limit` bytes of it; `false` at the end of the file.
    ///
    /// # Errors
    /// `InvalidData` where the line is longer than `limit`.
    pub fn line(&mut self, limit: u64, into: &mut Vec<u8>) -> std::io::Result<bool> {
        into.clear();
        let got = (&mut self.reader).take(limit).read_until(b'\n', into)? as u64;
        self.offset += got;
        if into.last() == Some(&b'\n') {
            into.pop();
            if into.last() == Some(&b'\r') {
                into.pop();
            }
        } else if got == limit {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Ok(got > 0)
    }
}
