//! Any bytes as records of `/dev/kmsg`: framed, parsed, counted.
#![no_main]

use glake::clock::Stamp;
use glake::events::kmsg::{reader::Sequence, tally::Tally, trouble::Troubles};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let now = Stamp { monotonic_ns: 1 << 40, realtime_ns: 1 << 60 };
    let (mut sequence, mut tally) = (Sequence::default(), Tally::default());
    let devices = || vec!["0000:01:00.0".to_owned(), "0001:01:00.0".to_owned()];
    let (mut events, mut troubles) = (0, Troubles::default());
    for record in bytes.split(|b| *b == 0) {
        let framed = [b"6,1,1,-;", record].concat();
        for record in [record, framed.as_slice()] {
            if let Some(line) = sequence.record(record, now, 0) {
                events += tally.line(&line, &devices).len() as u64;
                let found = troubles.line(line.at.monotonic_ns, &line.text);
                assert!(
                    found.is_none_or(|trouble| !trouble.frames.is_empty()),
                    "only with the module in the trace"
                );
            }
        }
    }
    let mut controllers = Vec::new();
    tally.fill(&mut controllers);
    let counted = |c: &glake::events::sample::NvmeController| c.timeouts.unwrap_or(0) + c.resets.unwrap_or(0);
    let nvme: u64 = controllers.iter().map(counted).sum();
    let faults: u64 = tally.faults().iter().map(|f| f.count).sum();
    assert_eq!(nvme + faults, events, "every event is counted once");
});
