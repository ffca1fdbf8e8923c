//! What the heap must do on any GPU: contents are the caller's alone, through remaps and with work in flight.

use std::sync::Arc;

use anyhow::{Result, ensure};
use glake::gpu::{Device, Stream};
use glake::stitch::{Heap, Options};

use super::Rule;

/// All rules; each makes its own heap on the device.
pub fn rules() -> Vec<Rule<'static, Arc<dyn Device>>> {
    vec![
        Rule { says: "blocks do not overlap, whatever was remapped", check: &blocks_keep_their_bytes },
        Rule { says: "a block that fits in no free range is stitched from several", check: &stitches },
        Rule { says: "everything freed can be given back to the device", check: &gives_all_back },
        Rule { says: "two streams share the memory", check: &two_streams },
    ]
}

fn heap(device: &Arc<dyn Device>, max_bytes: u64) -> Result<Heap> {
    let options = Options { max_bytes: Some(max_bytes), handle_bytes: 4 << 20, ..Options::default() };
    Ok(Heap::new(Arc::clone(device), options)?)
}

/// A small generator: the suite also runs where no test library is.
pub struct Random(pub u64);

impl Random {
    /// The next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // xorshift64*: Vigna, 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % end
    }
}

fn blocks_keep_their_bytes(device: &Arc<dyn Device>) -> Result<()> {
    let heap = heap(device, 256 << 20)?;
    let stream = device.create_stream()?;
    let mut random = Random(99);
    let mut live: Vec<(u64, u64, u8)> = Vec::new();
    for turn in 0..600_u32 {
        let mark = (turn % 251) as u8;
        let size = 1 + random.below(if turn % 3 == 0 { 60 << 20 } else { 3 << 20 });
        match heap.allocate(size, stream) {
            Ok(block) => {
                device.fill(stream, block.ptr, block.size, mark)?;
                live.push((block.ptr, block.size, mark));
            }
            Err(e) if e.kind() == glake::error::Kind::Exhausted => {}
            Err(e) => return Err(e.into()),
        }
        while live.len() > 12 || (live.len() > 2 && random.below(2) == 0) {
            let (ptr, size, mark) = live.swap_remove(random.below(live.len() as u64) as usize);
            if turn % 8 == 0 {
                check(device, stream, ptr, size, mark)?;
            }
            heap.free(ptr, stream)?;
        }
        if turn % 16 == 0 {
            heap.reclaim(1_000_000)?;
        }
    }
    for (ptr, size, mark) in live {
        check(device, stream, ptr, size, mark)?;
        heap.free(ptr, stream)?;
    }
    let stats = heap.stats();
    ensure!(stats.remapped_bytes > 0, "the test never remapped: it proves nothing");
    heap.close()?;
    Ok(device.destroy_stream(stream)?)
}

fn check(device: &Arc<dyn Device>, stream: Stream, ptr: u64, size: u64, mark: u8) -> Result<()> {
    for at in [ptr, ptr + size / 2, ptr + size - 1] {
        let mut byte = [0];
        device.read(stream, at, &mut byte)?;
        ensure!(byte[0] == mark, "{at:#x} holds {} instead of {mark}", byte[0]);
    }
    Ok(())
}

fn stitches(device: &Arc<dyn Device>) -> Result<()> {
    let heap = heap(device, 64 << 20)?;
    let stream = device.create_stream()?;
    let blocks: Vec<_> = (0..16).map(|_| heap.allocate(4 << 20, stream)).collect::<Result<_, _>>()?;
    for block in blocks.iter().step_by(2) {
        heap.free(block.ptr, stream)?;
    }
    // 32 MiB are free, none of it in one piece.
    let large = heap.allocate(32 << 20, stream)?;
    device.fill(stream, large.ptr, large.size, 5)?;
    check(device, stream, large.ptr, large.size, 5)?;
    ensure!(heap.stats().reserved.current == 64 << 20, "it took new memory");
    heap.free(large.ptr, stream)?;
    for block in blocks.iter().skip(1).step_by(2) {
        heap.free(block.ptr, stream)?;
    }
    heap.close()?;
    Ok(device.destroy_stream(stream)?)
}

fn gives_all_back(device: &Arc<dyn Device>) -> Result<()> {
    let heap = heap(device, 64 << 20)?;
    let block = heap.allocate(50 << 20, Stream(0))?;
    heap.free(block.ptr, Stream(0))?;
    ensure!(heap.reserved() >= 50 << 20, "idle memory is kept");
    heap.trim()?;
    ensure!(heap.reserved() == 0, "{} bytes are still held", heap.reserved());
    let again = heap.allocate(50 << 20, Stream(0))?;
    heap.free(again.ptr, Stream(0))?;
    Ok(heap.close()?)
}

fn two_streams(device: &Arc<dyn Device>) -> Result<()> {
    let heap = heap(device, 64 << 20)?;
    let (a, b) = (device.create_stream()?, device.create_stream()?);
    for round in 0..20_u8 {
        for stream in [a, b] {
            let block = heap.allocate(60 << 20, stream)?;
            device.fill(stream, block.ptr, block.size, round)?;
            check(device, stream, block.ptr, block.size, round)?;
            heap.free(block.ptr, stream)?;
        }
    }
    heap.close()?;
    device.destroy_stream(a)?;
    Ok(device.destroy_stream(b)?)
}
