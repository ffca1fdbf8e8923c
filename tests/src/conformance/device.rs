//! What a GPU must do, whatever it is made of.

use anyhow::{Result, ensure};
use glake::error::{Error, Kind};
use glake::gpu::{Device, Handle, Piece, Stream};
use glake::sys::buffer::Buffer;
use std::os::fd::AsFd;

use super::Rule;

/// Ten seconds, for waits that a healthy device ends at once.
const LONG_NS: u64 = 10_000_000_000;

/// All rules.
pub fn rules() -> Vec<Rule<'static, dyn Device>> {
    vec![
        Rule { says: "bytes written come back", check: &written_bytes_come_back },
        Rule {
            says: "bytes of a registered buffer arrive, and come back into another",
            check: &registered_copies,
        },
        Rule { says: "a copy that cannot begin gives its part back or keeps it", check: &refused_copies },
        Rule { says: "one handle mapped at two places shows the same bytes", check: &two_views },
        Rule { says: "bytes survive being unmapped and mapped elsewhere", check: &bytes_survive },
        Rule { says: "a second mapping is used in stream order while the first is busy", check: &busy_alias },
        Rule { says: "part of a handle cannot be mapped", check: &no_partial_map },
        Rule { says: "nothing is mapped over a mapping", check: &no_overlap },
        Rule { says: "sizes that are no multiple of the granularity are refused", check: &odd_sizes },
        Rule { says: "more than there is, is Exhausted", check: &too_much },
        Rule { says: "memory released and unmapped is free again", check: &free_again },
        Rule { says: "an event is done after its stream's work, and can be used again", check: &events },
        Rule { says: "a stream waits for another's event", check: &stream_wait },
        Rule { says: "an exported handle shows the same bytes where it is imported", check: &export_import },
    ]
}

/// A range with handles in it; taken apart again by `drop_range`.
struct Range {
    at: u64,
    size: u64,
    handles: Vec<Handle>,
}

fn make_range(d: &dyn Device, pieces: usize) -> Result<Range, Error> {
    let piece = d.granularity()?.minimum;
    let size = piece * pieces as u64;
    let at = d.reserve(size)?;
    let handles = (0..pieces).map(|_| d.create(piece)).collect::<Result<Vec<_>, _>>()?;
    for (i, handle) in handles.iter().enumerate() {
        d.map(at + i as u64 * piece, piece, *handle)?;
    }
    d.set_access(at, size)?;
    Ok(Range { at, size, handles })
}

fn drop_range(d: &dyn Device, range: &Range) -> Result<(), Error> {
    d.unmap(range.at, range.size)?;
    for handle in &range.handles {
        d.release(*handle)?;
    }
    d.unreserve(range.at, range.size)
}

fn byte_at(d: &dyn Device, at: u64) -> Result<u8, Error> {
    let mut byte = [0];
    d.read(Stream(0), at, &mut byte)?;
    Ok(byte[0])
}

fn refused(what: Result<(), Error>, kinds: &[Kind]) -> Result<()> {
    match what {
        Ok(()) => anyhow::bail!("it was allowed"),
        Err(e) => ensure!(kinds.contains(&e.kind()), "refused as {:?}: {}", e.kind(), e.chain()),
    }
    Ok(())
}

fn written_bytes_come_back(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 3)?;
    let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    // Across the border of two handles.
    let at = range.at + range.size / 3 - 5000;
    d.write(Stream(0), at, &bytes)?;
    let mut back = vec![0; bytes.len()];
    d.read(Stream(0), at, &mut back)?;
    ensure!(back == bytes, "other bytes came back");
    Ok(drop_range(d, &range)?)
}

fn registered_copies(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 2)?;
    let buffer = Buffer::new(4 << 20, None)?;
    d.register(&buffer)?;
    let mut parts = buffer.split(1 << 20);
    let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let (mut out, back) = (parts.remove(0), parts.remove(0));
    out.put(11, &bytes)?;
    // Across the border of two handles.
    let at = range.at + range.size / 2 - 5000;
    let piece = |at, size, address| [Piece { at, size, address }];
    let up = d.upload(Stream(0), out, &piece(11, bytes.len(), at)).map_err(|r| r.error)?;
    let down = d.download(Stream(0), back, &piece(3, bytes.len(), at)).map_err(|r| r.error)?;
    let back = d.collect(down, LONG_NS).map_err(|l| l.error)?;
    d.collect(up, LONG_NS).map_err(|l| l.error)?;
    let mut seen = vec![0; bytes.len()];
    back.get(3, &mut seen)?;
    ensure!(seen == bytes, "other bytes came back");
    drop_range(d, &range)?;
    Ok(())
}

fn refused_copies(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 1)?;
    let part = Buffer::new(4096, None)?.split(4096).remove(0);
    let outside = Piece { at: 4000, size: 100, address: range.at };
    let Err(refused) = d.upload(Stream(0), part, &[outside]).map(|f| d.collect(f, LONG_NS)) else {
        anyhow::bail!("100 bytes from 4000 of a part of 4096 were copied");
    };
    ensure!(refused.error.kind() == Kind::Misuse, "refused as {:?}", refused.error.kind());
    drop_range(d, &range)?;
    Ok(())
}

fn two_views(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 1)?;
    let second = d.reserve(range.size)?;
    d.map(second, range.size, range.handles[0])?;
    d.set_access(second, range.size)?;
    d.fill(Stream(0), range.at, range.size, 7)?;
    ensure!(byte_at(d, second + range.size - 1)? == 7, "the second view shows another byte");
    d.unmap(second, range.size)?;
    d.unreserve(second, range.size)?;
    Ok(drop_range(d, &range)?)
}

fn bytes_survive(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 2)?;
    let piece = range.size / 2;
    d.fill(Stream(0), range.at, piece, 1)?;
    d.fill(Stream(0), range.at + piece, piece, 2)?;
    d.synchronize(Stream(0))?;
    d.unmap(range.at, range.size)?;
    // The other way round.
    d.map(range.at, piece, range.handles[1])?;
    d.map(range.at + piece, piece, range.handles[0])?;
    d.set_access(range.at, range.size)?;
    let seen = (byte_at(d, range.at)?, byte_at(d, range.at + piece)?);
    ensure!(seen == (2, 1), "saw {seen:?}");
    Ok(drop_range(d, &range)?)
}

fn busy_alias(d: &(dyn Device + 'static)) -> Result<()> {
    let stream = d.create_stream()?;
    let range = make_range(d, 4)?;
    let second = d.reserve(range.size)?;
    for round in 0..20_u8 {
        for _ in 0..20 {
            d.fill(stream, range.at, range.size, round)?;
        }
        for (i, handle) in range.handles.iter().enumerate() {
            let piece = range.size / 4;
            d.map(second + i as u64 * piece, piece, *handle)?;
        }
        d.set_access(second, range.size)?;
        // Ordered behind the fills: the last quarter becomes what the first was filled with, plus nothing else.
        d.fill(stream, second, range.size / 2, round + 100)?;
        let done = d.record(stream)?;
        d.wait(done, LONG_NS)?;
        d.recycle(done);
        let seen = (byte_at(d, range.at)?, byte_at(d, range.at + range.size - 1)?);
        ensure!(seen == (round + 100, round), "round {round}: saw {seen:?}");
        d.unmap(second, range.size)?;
    }
    d.unreserve(second, range.size)?;
    drop_range(d, &range)?;
    Ok(d.destroy_stream(stream)?)
}

fn no_partial_map(d: &(dyn Device + 'static)) -> Result<()> {
    let piece = d.granularity()?.minimum;
    let handle = d.create(2 * piece)?;
    let at = d.reserve(2 * piece)?;
    refused(d.map(at, piece, handle), &[Kind::Unsupported, Kind::Misuse])?;
    d.map(at, 2 * piece, handle)?;
    d.unmap(at, 2 * piece)?;
    d.release(handle)?;
    Ok(d.unreserve(at, 2 * piece)?)
}

fn no_overlap(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 1)?;
    let handle = d.create(range.size)?;
    refused(d.map(range.at, range.size, handle), &[Kind::Misuse, Kind::Device])?;
    d.release(handle)?;
    Ok(drop_range(d, &range)?)
}

fn odd_sizes(d: &(dyn Device + 'static)) -> Result<()> {
    let piece = d.granularity()?.minimum;
    refused(d.create(piece + 512).map(|_| ()), &[Kind::Misuse])?;
    refused(d.create(piece / 2).map(|_| ()), &[Kind::Misuse])
}

fn too_much(d: &(dyn Device + 'static)) -> Result<()> {
    let total = d.memory()?.total.next_multiple_of(d.granularity()?.minimum);
    refused(d.create(total * 2).map(|_| ()), &[Kind::Exhausted])
}

fn free_again(d: &(dyn Device + 'static)) -> Result<()> {
    let before = d.memory()?.free;
    for _ in 0..3 {
        let range = make_range(d, 8)?;
        // A released handle lives on while it is mapped.
        d.release(range.handles[0])?;
        d.fill(Stream(0), range.at, range.size, 3)?;
        ensure!(byte_at(d, range.at)? == 3, "the memory of a released but mapped handle is gone");
        d.unmap(range.at, range.size)?;
        for handle in &range.handles[1..] {
            d.release(*handle)?;
        }
        d.unreserve(range.at, range.size)?;
    }
    // Other programs may use the GPU too: only a loss as large as what was used counts.
    let lost = before.saturating_sub(d.memory()?.free);
    ensure!(lost < 8 * d.granularity()?.minimum, "{lost} bytes did not come back");
    Ok(())
}

fn events(d: &(dyn Device + 'static)) -> Result<()> {
    let stream = d.create_stream()?;
    let range = make_range(d, 1)?;
    for round in 0..50_u8 {
        d.fill(stream, range.at, range.size, round)?;
        let event = d.record(stream)?;
        d.wait(event, LONG_NS)?;
        ensure!(d.is_done(event)?, "waited for, but not done");
        d.recycle(event);
        ensure!(byte_at(d, range.at + 1)? == round, "the event came before the work");
    }
    ensure!(!d.is_capturing(stream)?, "it says that it is captured");
    drop_range(d, &range)?;
    Ok(d.destroy_stream(stream)?)
}

fn stream_wait(d: &(dyn Device + 'static)) -> Result<()> {
    let (first, second) = (d.create_stream()?, d.create_stream()?);
    let range = make_range(d, 8)?;
    for round in 0..50_u8 {
        d.fill(first, range.at, range.size, round)?;
        let event = d.record(first)?;
        d.stream_wait(second, event)?;
        d.copy(second, range.at, range.at + range.size / 2, range.size / 2)?;
        d.synchronize(second)?;
        d.recycle(event);
        ensure!(byte_at(d, range.at)? == round, "the copy ran before the fill");
    }
    drop_range(d, &range)?;
    d.destroy_stream(first)?;
    Ok(d.destroy_stream(second)?)
}

fn export_import(d: &(dyn Device + 'static)) -> Result<()> {
    let range = make_range(d, 1)?;
    d.fill(Stream(0), range.at, range.size, 11)?;
    d.synchronize(Stream(0))?;
    let fd = d.export(range.handles[0])?;
    let other = d.import(fd.as_fd(), range.size)?;
    let at = d.reserve(range.size)?;
    d.map(at, range.size, other)?;
    d.set_access(at, range.size)?;
    ensure!(byte_at(d, at + 77)? == 11, "the importer sees other bytes");
    d.fill(Stream(0), at, range.size, 12)?;
    ensure!(byte_at(d, range.at + 77)? == 12, "the exporter does not see what the importer wrote");
    d.unmap(at, range.size)?;
    d.release(other)?;
    d.unreserve(at, range.size)?;
    Ok(drop_range(d, &range)?)
}
