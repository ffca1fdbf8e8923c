//! Kernels on stitched memory against plain device memory: A, B, B, A, many times.

use anyhow::{Result, anyhow};
use glake::gpu::{Device, Handle, cuda::Cuda};
use glake::sys::cuda_kernels::{Kernel, Kernels};
use glake_tests::conformance::heap::Random;

const TURNS: usize = 20;

/// A range of handles in shuffled order.
struct Stitched {
    at: u64,
    size: u64,
    handles: Vec<Handle>,
}

pub(crate) fn run(ordinal: u32, gib: &[u64]) -> Result<()> {
    let gpu = Cuda::open(ordinal).map_err(|e| anyhow!(e.chain()))?;
    let kernels = Kernels::load(gpu.raw())?;
    println!("{}: stitched against contiguous, mean and 95 % interval of the ratio of times", gpu.name());
    println!("{:>6} {:>8} {:>26} {:>26}", "GiB", "handles", "copy", "random gather");
    for &footprint in gib {
        let size = footprint << 30;
        for handle in [2_u64 << 20, 16 << 20, 64 << 20, 1 << 30] {
            // 2 MiB handles of the largest footprints take longer to make than to measure.
            if size / handle > 20_000 {
                continue;
            }
            let plain = gpu.raw().alloc(size)?;
            let stitched = stitch(&gpu, size, handle)?;
            let copy = compare(&gpu, &kernels, plain, stitched.at, size, copy)?;
            let gather = compare(&gpu, &kernels, plain, stitched.at, size, gather)?;
            println!("{footprint:>6} {:>5}MiB {:>26} {:>26}", handle >> 20, copy, gather);
            unstitch(&gpu, &stitched)?;
            gpu.raw().free(plain)?;
        }
    }
    Ok(())
}

fn stitch(gpu: &Cuda, size: u64, handle: u64) -> Result<Stitched> {
    let at = gpu.reserve(size)?;
    let mut handles = (0..size / handle).map(|_| gpu.create(handle)).collect::<Result<Vec<_>, _>>()?;
    let mut random = Random(7);
    for i in (1..handles.len()).rev() {
        handles.swap(i, random.below(i as u64 + 1) as usize);
    }
    for (i, piece) in handles.iter().enumerate() {
        gpu.map(at + i as u64 * handle, handle, *piece)?;
    }
    gpu.set_access(at, size)?;
    Ok(Stitched { at, size, handles })
}

fn unstitch(gpu: &Cuda, range: &Stitched) -> Result<()> {
    gpu.unmap(range.at, range.size)?;
    for handle in &range.handles {
        gpu.release(*handle)?;
    }
    Ok(gpu.unreserve(range.at, range.size)?)
}

type Run = fn(&Cuda, &Kernels, u64, u64) -> Result<()>;

fn copy(gpu: &Cuda, kernels: &Kernels, at: u64, size: u64) -> Result<()> {
    let half = size / 2;
    Ok(kernels.launch(gpu.raw(), Kernel::Copy, 0, (132 * 16, 512), [at + half, at, half / 16, 0])?)
}

fn gather(gpu: &Cuda, kernels: &Kernels, at: u64, size: u64) -> Result<()> {
    Ok(kernels.launch(gpu.raw(), Kernel::Gather, 0, (132 * 64, 256), [at, size / 16, 12_345, at])?)
}

/// Times in the order A B B A; the ratio B / A of each turn.
fn compare(gpu: &Cuda, kernels: &Kernels, plain: u64, stitched: u64, size: u64, run: Run) -> Result<String> {
    let time = |at: u64| -> Result<f64> {
        let from = gpu.raw().stamp(0)?;
        run(gpu, kernels, at, size)?;
        let to = gpu.raw().stamp(0)?;
        gpu.synchronize(glake::gpu::Stream(0))?;
        Ok(f64::from(gpu.raw().elapsed_ms(from, to)?))
    };
    for at in [plain, stitched, plain, stitched] {
        time(at)?;
    }
    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        let (a, b, c, d) = (time(plain)?, time(stitched)?, time(stitched)?, time(plain)?);
        ratios.push((b + c) / (a + d));
    }
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n;
    let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
    // Student's t for 19 degrees of freedom, two-sided 95 %.
    let half = 2.093 * (variance / n).sqrt();
    Ok(format!("{mean:.4} +- {half:.4}"))
}
