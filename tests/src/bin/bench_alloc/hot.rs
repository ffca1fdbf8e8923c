//! The hot path: allocate + free where nothing needs the driver.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use glake::gpu::Stream;
use glake::stitch::{Heap, Options};
use glake_tests::conformance::heap::Random;

use super::{device, percentile};

/// How to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// `host` or `cuda:N`.
    #[arg(long, default_value = "host")]
    device: String,
    /// Numbers of threads; each has a stream of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    threads: Vec<usize>,
    /// Pairs for each thread.
    #[arg(long, default_value_t = 1_000_000)]
    pairs: usize,
}

impl Args {
    /// On the host GPU.
    pub(crate) fn host(threads: &[usize], pairs: usize) -> Args {
        Args { device: "host".to_owned(), threads: threads.to_vec(), pairs }
    }
}

/// Blocks alive while measuring, so that lists and tables have their usual length.
const BLOCKS: usize = 400;

/// What a number of threads reached.
pub(crate) struct Speed {
    pub(crate) threads: usize,
    pub(crate) median_ns: f64,
    pub(crate) p99_ns: f64,
}

pub(crate) fn run(args: &Args) -> Result<Vec<Speed>> {
    let mut speeds = Vec::new();
    println!("{:>7} {:>10} {:>10} {:>10} {:>14}", "threads", "median ns", "p99 ns", "p99.9 ns", "pairs/s");
    for &threads in &args.threads {
        let device = device(&args.device)?;
        let heap = Arc::new(Heap::new(Arc::clone(&device), Options::default())?);
        let barrier = Arc::new(Barrier::new(threads));
        let streams: Vec<Stream> = (0..threads).map(|_| device.create_stream()).collect::<Result<_, _>>()?;
        let workers: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(i, stream)| {
                let (heap, barrier, stream, pairs) =
                    (Arc::clone(&heap), Arc::clone(&barrier), *stream, args.pairs);
                std::thread::spawn(move || worker(&heap, &barrier, stream, i as u64, pairs))
            })
            .collect();
        let mut all = Vec::new();
        let mut rate = 0.0;
        // All of them end before the first error ends the program.
        let ended: Vec<_> = workers.into_iter().map(std::thread::JoinHandle::join).collect();
        for end in ended {
            let (times, seconds) = end.map_err(|_| anyhow!("a worker panicked"))??;
            rate += times.len() as f64 / seconds;
            all.extend(times);
        }
        all.sort_by(f64::total_cmp);
        let speed = Speed { threads, median_ns: percentile(&all, 0.5), p99_ns: percentile(&all, 0.99) };
        println!(
            "{threads:>7} {:>10.0} {:>10.0} {:>10.0} {rate:>14.0}",
            speed.median_ns,
            speed.p99_ns,
            percentile(&all, 0.999),
        );
        speeds.push(speed);
    }
    Ok(speeds)
}

/// Times of single pairs, the cost of reading the clock taken off; and the seconds of a run without the clock.
///
/// Every worker comes to every barrier, also one that failed: the others would wait for it.
fn worker(
    heap: &Heap,
    barrier: &Barrier,
    stream: Stream,
    seed: u64,
    pairs: usize,
) -> Result<(Vec<f64>, f64)> {
    let ready = prepare(heap, stream, seed);
    barrier.wait();
    let calls = heap.stats().foreground_total().calls;
    barrier.wait();
    let timed = ready.and_then(|sizes| Ok((time_each(heap, stream, &sizes, pairs)?, sizes)));
    barrier.wait();
    let done = timed.and_then(|(times, sizes)| {
        let start = Instant::now();
        turn(heap, stream, &sizes, pairs)?;
        Ok((times, start.elapsed().as_secs_f64()))
    });
    barrier.wait();
    let made = heap.stats().foreground_total().calls - calls;
    let done = done?;
    ensure!(made == 0, "the hot path made {made} driver calls");
    Ok(done)
}

/// Fills the heap as a program would, until the sizes to come need no driver call. The sizes.
fn prepare(heap: &Heap, stream: Stream, seed: u64) -> Result<Vec<u64>> {
    let mut random = Random(seed + 77);
    let mut live = Vec::new();
    let size =
        |random: &mut Random| if random.below(3) == 0 { 1 << 20 } else { 512 } * (1 + random.below(32));
    for _ in 0..BLOCKS {
        live.push(heap.allocate(size(&mut random), stream)?.ptr);
    }
    // Every second block is freed: free ranges of many sizes.
    for ptr in live.iter().step_by(2) {
        heap.free(*ptr, stream)?;
    }
    let sizes: Vec<u64> = (0..4096).map(|_| size(&mut random)).collect();
    turn(heap, stream, &sizes, sizes.len())?;
    Ok(sizes)
}

fn turn(heap: &Heap, stream: Stream, sizes: &[u64], pairs: usize) -> Result<()> {
    for i in 0..pairs {
        let block = heap.allocate(sizes[i % sizes.len()], stream)?;
        heap.free(block.ptr, stream)?;
    }
    Ok(())
}

fn time_each(heap: &Heap, stream: Stream, sizes: &[u64], pairs: usize) -> Result<Vec<f64>> {
    let clock = clock_ns();
    let mut times = Vec::with_capacity(pairs);
    for i in 0..pairs {
        let start = Instant::now();
        let block = heap.allocate(sizes[i % sizes.len()], stream)?;
        heap.free(block.ptr, stream)?;
        times.push((start.elapsed().as_nanos() as f64 - clock).max(0.0));
    }
    Ok(times)
}

/// What reading the clock twice costs, the median of many.
fn clock_ns() -> f64 {
    let mut times: Vec<f64> = (0..10_001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.5)
}

/// Random operations over four streams; the books are checked at the end.
pub(crate) fn soak(operations: u64) -> Result<()> {
    let device = device("host")?;
    let options = Options { max_bytes: Some(8 << 30), ..Options::default() };
    let heap = Heap::new(Arc::clone(&device), options)?;
    let streams: Vec<Stream> = (0..4).map(|_| device.create_stream()).collect::<Result<_, _>>()?;
    let mut random = Random(4242);
    let mut live: Vec<(u64, Stream)> = Vec::new();
    let start = Instant::now();
    for turn in 0..operations {
        if live.len() < 500 && random.below(2) == 0 {
            let stream = streams[random.below(4) as usize];
            // Mostly small, as programs do; one in 64 up to 128 MiB.
            let size = 1 << random.below(if turn % 64 == 0 { 27 } else { 20 });
            match heap.allocate(size + random.below(size), stream) {
                Ok(block) => live.push((block.ptr, stream)),
                Err(e) if e.kind() == glake::error::Kind::Exhausted => {}
                Err(e) => return Err(e.into()),
            }
        } else if !live.is_empty() {
            let (ptr, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
            heap.free(ptr, stream)?;
        }
        if turn % 4096 == 0 {
            heap.reclaim(1_000_000)?;
        }
    }
    heap.verify().map_err(|e| anyhow!("after {operations} operations: {e}"))?;
    for (ptr, stream) in live {
        heap.free(ptr, stream)?;
    }
    let stats = heap.stats();
    println!(
        "{operations} operations in {:.1} s, {} blocks made, {} remapped, {} refused; books in order",
        start.elapsed().as_secs_f64(),
        stats.blocks.allocated,
        glake::units::bytes(stats.remapped_bytes),
        stats.ooms,
    );
    Ok(heap.close()?)
}
