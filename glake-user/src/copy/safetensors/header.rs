//! One file's header: eight bytes of length, JSON, and the tensors' bytes behind it, without a gap.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::{Dtype, MAX_HEADER};
use crate::error::{Error, Kind, Result};

/// What one tensor's entry says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape; empty for a single number.
    pub shape: Vec<u64>,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// A file's header, checked against the file's size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<Tensor>,
    /// The file's own notes.
    pub metadata: BTreeMap<String, String>,
}

/// An entry as it is written.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The whole object, in its order, its names checked to be different.
struct Entries {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, Entry)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut all = Entries { metadata: BTreeMap::new(), tensors: Vec::new() };
                let mut seen = std::collections::HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        all.metadata = map.next_value()?;
                    } else {
                        all.tensors.push((name.clone(), map.next_value()?));
                    }
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("two entries are called {name:?}")));
                    }
                }
                Ok(all)
            }
        }
        from.deserialize_map(Object)
    }
}

fn broken(what: impl Into<String>) -> Error {
    Error::new(Kind::BadInput, what)
}

/// How many bytes from the file's start [`parse`] needs. `start` is what the file begins with, up to 8 bytes or more.
/// `BadInput` for what is no safetensors file.
pub(super) fn needed(start: &[u8], file_size: u64) -> Result<u64> {
    if start.starts_with(b"version https://git-lfs") || start.starts_with(b"version ") {
        return Err(broken("the file is a Git LFS pointer, not the weights").remedy("git lfs pull"));
    }
    let Some(length) = start.first_chunk::<8>() else {
        let what = format!("a file of {file_size} bytes holds no safetensors header");
        return Err(broken(what).remedy("the download or the copy was cut short: get the file again"));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        let what = format!("the header claims {length} bytes; the format allows {MAX_HEADER}");
        return Err(broken(what).remedy("it is no safetensors file, or its first bytes are damaged"));
    }
    if length + 8 > file_size {
        let what = format!("the header claims {length} bytes, the file has {file_size} in all");
        return Err(broken(what).remedy("the download or the copy was cut short: get the file again"));
    }
    Ok(length + 8)
}

/// Reads a header. `start` is the file's beginning, at least the whole header.
///
/// Refused, by name and number: two tensors of one name, an unknown element type, a shape that does not fit its bytes, bytes
/// that overlap, a gap, and bytes that are missing or left over at the end.
pub fn parse(start: &[u8], file_size: u64) -> Result<Header> {
    let end = needed(start, file_size)?;
    let text = usize::try_from(end).ok().and_then(|end| start.get(8..end));
    let text = text.ok_or_else(|| broken(format!("{} of {end} bytes of a header were read", start.len())))?;
    let entries: Entries =
        serde_json::from_slice(text).map_err(|e| broken("reading the safetensors header").because(e))?;
    let tensors =
        entries.tensors.into_iter().map(|(name, entry)| check(name, entry, end)).collect::<Result<Vec<_>>>();
    let mut tensors = tensors?;
    tensors.sort_by(|a, b| (a.offset, a.size, &a.name).cmp(&(b.offset, b.size, &b.name)));
    let mut next = end;
    for tensor in &tensors {
        if tensor.offset != next {
            let what =
                if tensor.offset < next { "overlaps the tensor before it" } else { "leaves a gap before it" };
            return Err(broken(format!(
                "tensor {:?} begins at byte {} and {what}, which ends at {next}",
                tensor.name, tensor.offset
            )));
        }
        next += tensor.size;
    }
    if next != file_size {
        let (more, n) =
            if next > file_size { ("missing", next - file_size) } else { ("left over", file_size - next) };
        return Err(broken(format!(
            "the tensors end at byte {next} of a file of {file_size}: {n} bytes are {more}"
        ))
        .remedy("the download or the copy was cut short, or the file was damaged: get it again"));
    }
    Ok(Header { tensors, metadata: entries.metadata })
}

fn check(name: String, entry: Entry, data: u64) -> Result<Tensor> {
    let dtype = Dtype::named(&entry.dtype).ok_or_else(|| {
        broken(format!("tensor {name:?} has the element type {:?}, which is not known", entry.dtype))
            .remedy("a newer GLake may know it")
    })?;
    let (from, to) = entry.data_offsets;
    let bits = entry.shape.iter().try_fold(dtype.bits, |bits, n| bits.checked_mul(*n));
    let said = to.checked_sub(from);
    if bits.is_none_or(|bits| bits % 8 != 0 || Some(bits / 8) != said) {
        return Err(broken(format!(
            "tensor {name:?} of shape {:?} and type {} does not fit its bytes {from} to {to}",
            entry.shape, dtype.name
        )));
    }
    let offset = data.checked_add(from).filter(|o| o.checked_add(to - from).is_some());
    let offset = offset.ok_or_else(|| broken(format!("tensor {name:?} lies at bytes {from} to {to}")))?;
    Ok(Tensor { name, dtype, shape: entry.shape, offset, size: to - from })
}

/// The beginning of a file that holds `tensors` in this order (their offsets are ignored), padded so that the first tensor's
/// bytes begin at a multiple of 8, as the format's own writer does. Gives the header's bytes and the file's size.
pub fn write(tensors: &[Tensor], metadata: &BTreeMap<String, String>) -> Result<(Vec<u8>, u64)> {
    let mut object = serde_json::Map::new();
    if !metadata.is_empty() {
        object.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    }
    let mut next = 0_u64;
    for tensor in tensors {
        let end = next.checked_add(tensor.size).ok_or_else(|| broken("more than 2^64 bytes of tensors"))?;
        let entry = Entry {
            dtype: tensor.dtype.name.to_owned(),
            shape: tensor.shape.clone(),
            data_offsets: (next, end),
        };
        if tensor.name == "__metadata__" || object.contains_key(&tensor.name) {
            return Err(broken(format!("a tensor cannot be called {:?}: the name is taken", tensor.name)));
        }
        object.insert(tensor.name.clone(), serde_json::json!(entry));
        next = end;
    }
    let mut text = serde_json::to_vec(&object).map_err(|e| broken("writing a header").because(e))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    let size = header.len() as u64 + next;
    Ok((header, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of a header and `data` zero bytes.
    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn verdict(bytes: &[u8]) -> Result<Header> {
        parse(bytes, bytes.len() as u64)
    }

    fn refused(bytes: &[u8], words: &str) {
        let e = verdict(bytes).unwrap_err();
        assert_eq!(e.kind(), Kind::BadInput);
        assert!(e.chain().contains(words), "{} says nothing of {words:?}", e.chain());
    }

    /// The odd files with the verdicts of the safetensors 0.8.0 package.
    #[test]
    fn odd_files_get_the_formats_own_verdicts() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/safetensors-odd");
        let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
        let good = verdict(&read("01-valid-two-tensors.safetensors")).unwrap();
        let names: Vec<_> =
            good.tensors.iter().map(|t| (&*t.name, t.dtype.name, &*t.shape, t.size)).collect();
        assert_eq!(names, [("a", "F32", &[2][..], 8), ("b", "F32", &[4], 16)]);
        assert_eq!(verdict(&read("04-empty-metadata-object.safetensors")).unwrap().tensors.len(), 2);
        let zero = verdict(&read("11-zero-size-tensor.safetensors")).unwrap();
        assert_eq!(
            zero.tensors.iter().find(|t| t.name == "z").map(|t| (t.size, t.shape.len())),
            Some((0, 2))
        );
        let eight = verdict(&read("18-fp8-tensor.safetensors")).unwrap();
        assert_eq!(eight.tensors[0].dtype.name, "F8_E4M3");
        for (name, words) in [
            ("02-duplicate-key.safetensors", "two entries are called \"k\""),
            ("06-overlapping-offsets.safetensors", "tensor \"b\" begins at byte"),
            ("08-truncated-data.safetensors", "bytes are missing"),
            ("09-trailing-bytes.safetensors", "bytes are left over"),
            ("13-shape-size-mismatch.safetensors", "tensor \"a\" of shape [3] and type F32 does not fit"),
            ("16-empty-file.safetensors", "a file of 0 bytes holds no safetensors header"),
        ] {
            refused(&read(name), words);
        }
    }

    #[test]
    fn numbers_that_overflow_or_run_backwards_are_refused() {
        let one = |shape: &str, from: u64, to: u64| {
            file(
                &format!("{{\"t\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}}}"),
                8,
            )
        };
        verdict(&one("[2]", 0, 8)).unwrap();
        refused(&one("[2]", 8, 0), "does not fit its bytes 8 to 0");
        refused(&one("[4294967296,4294967296,4]", 0, 8), "does not fit");
        refused(&one("[2]", u64::MAX - 7, u64::MAX), "does not fit");
        refused(&one("[2]", u64::MAX - 8, u64::MAX), "lies at bytes");
        refused(&one("[2]", 4, 12), "leaves a gap");
        refused(&one("[-2]", 0, 8), "reading the safetensors header");
    }

    #[test]
    fn what_is_no_safetensors_file_is_told_apart() {
        refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull");
        refused(&u64::MAX.to_le_bytes(), "the format allows 100000000");
        refused(&1000_u64.to_le_bytes(), "the file has 8 in all");
        refused(b"\x80\x02}q\x00", "holds no safetensors header");
        refused(&file("[]", 0), "reading the safetensors header");
        refused(&file("{\"t\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", 4), "\"F33\"");
        refused(&file("{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1), "does not fit");
        assert!(verdict(&file("{}", 0)).unwrap().tensors.is_empty());
    }

    #[test]
    fn a_header_that_was_written_reads_the_same() {
        let f16 = Dtype::named("F16").unwrap();
        let tensor = |name: &str, shape: &[u64], size| Tensor {
            name: name.to_owned(),
            dtype: f16,
            shape: shape.to_vec(),
            offset: 0,
            size,
        };
        let tensors = [tensor("z", &[3, 5], 30), tensor("a \"quoted\"", &[], 2), tensor("none", &[0], 0)];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let (mut bytes, size) = write(&tensors, &metadata).unwrap();
        assert!(bytes.len().is_multiple_of(8));
        bytes.resize(usize::try_from(size).unwrap(), 0);
        let read = verdict(&bytes).unwrap();
        assert_eq!(read.metadata, metadata);
        assert_eq!(read.tensors.iter().map(|t| t.size).sum::<u64>(), 32);
        for t in &tensors {
            let seen = read.tensors.iter().find(|s| s.name == t.name).unwrap();
            assert_eq!((&seen.shape, seen.size), (&t.shape, t.size));
        }
        assert!(write(&[tensor("a", &[], 2), tensor("a", &[], 2)], &metadata).is_err());
    }
}
