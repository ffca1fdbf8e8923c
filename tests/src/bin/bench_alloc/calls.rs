//! What the driver's memory calls cost, on an idle GPU and beside saturating streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow};
use glake::gpu::{Device, Handle, cuda::Cuda};
use glake::sys::cuda_kernels::{Kernel, Kernels};
use glake_tests::conformance::heap::Random;

use super::percentile;

const ROUNDS: usize = 12;
/// Bytes mapped in one round.
const BYTES: u64 = 1 << 30;

#[derive(Default)]
struct Costs {
    create: Vec<f64>,
    map: Vec<f64>,
    access: Vec<f64>,
    unmap: Vec<f64>,
    release: Vec<f64>,
}

pub(crate) fn run(ordinal: u32) -> Result<()> {
    let gpu = Arc::new(Cuda::open(ordinal).map_err(|e| anyhow!(e.chain()))?);
    println!("{}, driver {}", gpu.name(), gpu.raw().driver_version()?);
    let kernels = Arc::new(Kernels::load(gpu.raw())?);
    println!(
        "{:>8} {:>7} {:>8} | us per handle, p50 p99: {:>15} {:>15} {:>15} {:>15} {:>15} | {:>22}",
        "launches", "handle", "order", "create", "map", "access", "unmap", "release", "launch us p50 p99 max"
    );
    for threads in [0, 1, 4] {
        for handle in [2_u64 << 20, 16 << 20, 64 << 20, 256 << 20] {
            for shuffled in [false, true] {
                round(&gpu, &kernels, threads, handle, shuffled)?;
            }
        }
    }
    Ok(())
}

fn round(gpu: &Arc<Cuda>, kernels: &Arc<Kernels>, threads: usize, handle: u64, shuffled: bool) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let started = Arc::new(AtomicU64::new(0));
    let load: Vec<_> = (0..threads)
        .map(|_| {
            let (gpu, kernels) = (Arc::clone(gpu), Arc::clone(kernels));
            let (stop, started) = (Arc::clone(&stop), Arc::clone(&started));
            std::thread::spawn(move || launch_all(&gpu, &kernels, &stop, &started))
        })
        .collect();
    while started.load(Ordering::Relaxed) < threads as u64 {
        std::thread::yield_now();
    }
    let mut costs = Costs::default();
    let measured = (0..ROUNDS).try_for_each(|i| measure(gpu, handle, shuffled, i as u64, &mut costs));
    stop.store(true, Ordering::Relaxed);
    let mut launches = Vec::new();
    for thread in load {
        launches.extend(thread.join().map_err(|_| anyhow!("a launching thread panicked"))??);
    }
    measured?;
    print(threads, handle, shuffled, costs, launches);
    Ok(())
}

/// Keeps a stream full; the host time of each launch in microseconds.
fn launch_all(gpu: &Cuda, kernels: &Kernels, stop: &AtomicBool, started: &AtomicU64) -> Result<Vec<f64>> {
    let stream = gpu.create_stream()?;
    let mut times = Vec::new();
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        kernels.launch(gpu.raw(), Kernel::Spin, stream.0, (132, 128), [10_000, 0, 0, 0])?;
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
        count += 1;
        if count == 64 {
            started.fetch_add(1, Ordering::Relaxed);
        }
        // At most 64 kernels queued: the stream stays full without the launch queue blocking.
        if count.is_multiple_of(64) {
            gpu.synchronize(stream)?;
        }
    }
    gpu.destroy_stream(stream)?;
    Ok(times)
}

fn measure(gpu: &Cuda, size: u64, shuffled: bool, seed: u64, costs: &mut Costs) -> Result<()> {
    let count = (BYTES / size).clamp(1, 64);
    let at = gpu.reserve(count * size)?;
    let mut handles = Vec::new();
    for _ in 0..count {
        handles.push(timed(&mut costs.create, 1, || gpu.create(size))?);
    }
    if shuffled {
        shuffle(&mut handles, seed);
    }
    for (i, handle) in handles.iter().enumerate() {
        timed(&mut costs.map, 1, || gpu.map(at + i as u64 * size, size, *handle))?;
    }
    timed(&mut costs.access, count, || gpu.set_access(at, count * size))?;
    timed(&mut costs.unmap, count, || gpu.unmap(at, count * size))?;
    for handle in handles {
        timed(&mut costs.release, 1, || gpu.release(handle))?;
    }
    Ok(gpu.unreserve(at, count * size)?)
}

fn shuffle(handles: &mut [Handle], seed: u64) {
    let mut random = Random(seed + 5);
    for i in (1..handles.len()).rev() {
        handles.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// Microseconds for each of `parts`.
fn timed<T>(into: &mut Vec<f64>, parts: u64, run: impl FnOnce() -> glake::error::Result<T>) -> Result<T> {
    let start = Instant::now();
    let out = run().map_err(|e| anyhow!(e.chain()))?;
    into.push(start.elapsed().as_nanos() as f64 / 1e3 / parts as f64);
    Ok(out)
}

fn print(threads: usize, handle: u64, shuffled: bool, costs: Costs, mut launches: Vec<f64>) {
    let pair = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        format!("{:>7.1} {:>7.1}", percentile(&values, 0.5), percentile(&values, 0.99))
    };
    launches.sort_by(f64::total_cmp);
    let launch = if launches.is_empty() {
        "-".to_owned()
    } else {
        let max = launches.last().copied().unwrap_or(f64::NAN);
        format!("{:.1} {:.1} {max:.0}", percentile(&launches, 0.5), percentile(&launches, 0.99))
    };
    println!(
        "{:>8} {:>4}MiB {:>8} | {:>22} {:>15} {:>15} {:>15} {:>15} {:>15} | {launch:>22}",
        if threads == 0 { "idle".to_owned() } else { format!("{threads} thr") },
        handle >> 20,
        if shuffled { "shuffled" } else { "in order" },
        "",
        pair(costs.create),
        pair(costs.map),
        pair(costs.access),
        pair(costs.unmap),
        pair(costs.release),
    );
}
