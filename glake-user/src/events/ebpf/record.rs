//! Bytes of the ring become records. Total: bytes of a wrong length are no record, never a panic.

use glake_common::record::Record;
use std::mem::{offset_of, size_of};

/// One record, or `None` when the bytes are not one.
pub fn decode(bytes: &[u8]) -> Option<Record> {
    if bytes.len() != size_of::<Record>() {
        return None;
    }
    let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Record {
        kind: u32_at(offset_of!(Record, kind))?,
        a: u32_at(offset_of!(Record, a))?,
        at_ns: u64_at(offset_of!(Record, at_ns))?,
        value: u64_at(offset_of!(Record, value))?,
        b: u32_at(offset_of!(Record, b))?,
        spare: 0,
        name: bytes.get(offset_of!(Record, name)..)?.get(..glake_common::named::NAME)?.try_into().ok()?,
        text: bytes.get(offset_of!(Record, text)..)?.get(..glake_common::record::TEXT)?.try_into().ok()?,
    })
}

/// Text up to the first 0, with anything that is not UTF-8 replaced.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned()
}

/// As [`text`], with `cut` at the end of one that fills its field: the kernel copies no more than fits, and a 0.
pub fn whole_or_cut(bytes: &[u8], cut: char) -> String {
    let mut found = text(bytes);
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    if end + 1 >= bytes.len() {
        found.push(cut);
    }
    found
}

/// A request's status in words: a `blk_status_t` (include/linux/blk_types.h) or, below 0, an errno.
pub fn block_status(status: i64) -> String {
    const WORDS: [(i64, &str); 18] = [
        (1, "not supported"),
        (2, "timed out"),
        (3, "no space"),
        (4, "transport error"),
        (5, "target error"),
        (6, "reservation conflict"),
        (7, "medium error"),
        (8, "protection error"),
        (9, "out of resources"),
        (10, "I/O error"),
        (11, "device-mapper requeue"),
        (12, "would block"),
        (13, "device resources"),
        (14, "zone resources"),
        (15, "too many open zones"),
        (16, "too many active zones"),
        (17, "device offline"),
        (18, "duration limit exceeded"),
    ];
    if status < 0 {
        let errno = status.checked_neg().and_then(|n| i32::try_from(n).ok());
        let words = errno.map_or("no errno".to_owned(), |n| std::io::Error::from_raw_os_error(n).to_string());
        return format!("{words} ({status})");
    }
    match WORDS.iter().find(|(n, _)| *n == status) {
        Some((_, words)) => format!("{words} (block status {status})"),
        None => format!("block status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_ends_at_its_zero_or_fills_its_field() {
        assert_eq!(text(b"0000:3b:00.0\0junk"), "0000:3b:00.0");
        assert_eq!(text(b"full"), "full");
        assert_eq!(text(&[0xff, b'a', 0]), "\u{fffd}a");
    }

    #[test]
    fn a_text_that_fills_its_field_says_that_it_was_cut() {
        assert_eq!(whole_or_cut(b"ABCDEFG\0", '~'), "ABCDEFG~");
        assert_eq!(whole_or_cut(b"ABCDEF\0\0", '~'), "ABCDEF");
    }

    #[test]
    fn statuses_read_as_words_with_their_number() {
        assert_eq!(block_status(10), "I/O error (block status 10)");
        assert!(block_status(-5).contains("(-5)"));
        assert_eq!(block_status(i64::MIN), format!("no errno ({})", i64::MIN));
        assert_eq!(block_status(99), "block status 99");
    }

    proptest! {
        #[test]
        fn only_bytes_of_the_right_length_are_a_record(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(decode(&bytes).is_some(), bytes.len() == size_of::<Record>());
        }

        #[test]
        fn fields_come_back_from_where_the_kernel_put_them(kind: u32, a: u32, at_ns: u64, value: u64, b: u32, name: [u8; 32]) {
            let mut bytes = Vec::new();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(a.to_ne_bytes());
            bytes.extend(at_ns.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
            bytes.extend(b.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(name);
            bytes.extend([7; 128]);
            let r = decode(&bytes).unwrap();
            prop_assert_eq!((r.kind, r.a, r.at_ns, r.value, r.b, r.name), (kind, a, at_ns, value, b, name));
            prop_assert_eq!(r.text, [7; 128]);
        }

        #[test]
        fn any_text_is_text(bytes in proptest::collection::vec(any::<u8>(), 0..200)) { text(&bytes); }
    }
}
