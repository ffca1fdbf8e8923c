//! Benchmarks of the allocator: the policy on real traces, the hot path, and on a GPU the driver's own costs.
#![allow(clippy::print_stdout, reason = "results go to stdout")]

mod calls;
mod goals;
mod hot;
mod kernels;
mod limits;
mod policy;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use glake::gpu::{Costs, Device, cuda::Cuda};
use glake::standin::gpu::{HostGpu, Settings};
use glake_tests::conformance;

/// Benchmarks of the allocator.
#[derive(Parser)]
struct Args {
    /// Without one: what needs no GPU, for docs/benchmarks.md.
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// Plays traces: reserved memory, driver time and stalls, over settings, run-ahead and scaled sizes.
    Policy(policy::Args),
    /// Nanoseconds of an allocate + free pair without driver calls.
    Hot(hot::Args),
    /// Many random operations, checked at the end.
    Soak {
        /// How many.
        #[arg(long, default_value_t = 100_000_000)]
        operations: u64,
    },
    /// The rules of a GPU and of the heap.
    Conformance {
        /// `host` or `cuda:N`.
        #[arg(long, default_value = "host")]
        device: String,
    },
    /// What the driver's calls cost, on an idle and on a busy GPU.
    Calls {
        /// The GPU.
        #[arg(long, default_value_t = 0)]
        gpu: u32,
    },
    /// Kernels on stitched against contiguous memory.
    Kernels {
        /// The GPU.
        #[arg(long, default_value_t = 0)]
        gpu: u32,
        /// Footprints in GiB.
        #[arg(long, value_delimiter = ',', default_value = "4,32")]
        gib: Vec<u64>,
    },
}

fn main() -> Result<()> {
    let Some(what) = Args::parse().what else { return report() };
    match what {
        What::Policy(args) => policy::run(&args).map(|_| ()),
        What::Hot(args) => hot::run(&args).map(|_| ()),
        What::Soak { operations } => hot::soak(operations),
        What::Conformance { device } => conform(&device),
        What::Calls { gpu } => calls::run(gpu),
        What::Kernels { gpu, gib } => kernels::run(gpu, &gib),
    }
}

/// Everything that runs without a GPU, the soak shortened, and which goals are met.
fn report() -> Result<()> {
    let mut goals = goals::Goals::default();
    policy::report(&mut goals)?;
    println!("\nUnder a limit, at a run-ahead of 50 ms");
    goals.of_limits(&limits::report(&default_traces())?);
    println!("\nA step that repeats: driver calls in each");
    goals.of_steps()?;
    println!("\nAllocate + free without driver calls");
    goals.of_hot_path(&hot::run(&hot::Args::host(&[1, 2, 4, 8], 300_000))?);
    println!("\nSoak");
    hot::soak(2_000_000)?;
    goals.print();
    Ok(())
}

/// The device of a name: `host` or `cuda:N`.
fn device(name: &str) -> Result<Arc<dyn Device>> {
    if name == "host" {
        return Ok(Arc::new(HostGpu::new(Settings { costs: Costs::H200, ..Settings::default() })?));
    }
    let Some(ordinal) = name.strip_prefix("cuda:") else { bail!("device {name}: use host or cuda:N") };
    let ordinal = ordinal.parse().with_context(|| format!("device {name}"))?;
    Ok(Arc::new(Cuda::open(ordinal).map_err(|e| anyhow::anyhow!(e.chain()))?))
}

fn conform(name: &str) -> Result<()> {
    let device = device(name)?;
    let mut broken = conformance::broken(&conformance::device::rules(), &*device);
    broken.extend(conformance::broken(&conformance::heap::rules(), &device));
    let rules = conformance::device::rules().len() + conformance::heap::rules().len();
    println!("{}: {} of {rules} rules kept", device.name(), rules - broken.len());
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(())
}

/// The traces of the repository, where none are named.
fn default_traces() -> Vec<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/snapshots"));
    ["train_recompute.pickle.xz", "train_varlen.pickle.xz"].iter().map(|n| folder.join(n)).collect()
}

/// Snapshots that users have published: of each, one small file.
fn user_snapshots() -> Vec<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/snapshots"));
    ["medium_128_inference.pickle.xz", "medium_256_training.pickle.xz", "memory_forward_fp32_128.pickle"]
        .iter()
        .map(|n| folder.join(n))
        .collect()
}

/// The value below which `share` of the sorted values lie.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
