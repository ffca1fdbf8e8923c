//! The header of a safetensors file. What is accepted covers the file without gap or overlap, and is written and read the same.
#![no_main]

use glake::copy::safetensors::{parse, write};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = parse(bytes, bytes.len() as u64) else { return };
    let data: u64 = header.tensors.iter().map(|t| t.size).sum();
    let start = bytes.len() as u64 - data;
    assert!(header.tensors.iter().all(|t| t.offset >= start && t.offset + t.size <= bytes.len() as u64));
    let Ok((mut again, size)) = write(&header.tensors, &header.metadata) else { return };
    again.resize(size as usize, 0);
    let read = parse(&again, size).expect("what was written is read");
    assert_eq!(read.tensors.len(), header.tensors.len());
    assert_eq!(read.metadata, header.metadata);
});
