//! Any bytes as what follows the header of a recording, and as a whole recording: played to the end.
#![no_main]

use glake::events::recording::{Header, Playback, Reader, Writer};
use std::io::Cursor;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    play(bytes.to_vec());
    // Most inputs fail at the header; behind a good one they reach the blocks.
    let header = Writer::new(Vec::new(), &Header::default()).and_then(Writer::finish);
    if let Ok(mut file) = header {
        file.extend(bytes);
        play(file);
    }
});

fn play(file: Vec<u8>) {
    let Ok(reader) = Reader::new(Cursor::new(file)) else { return };
    let mut playback = Playback::new(reader);
    while let Ok(Some(_)) = playback.next_sample() {}
}
