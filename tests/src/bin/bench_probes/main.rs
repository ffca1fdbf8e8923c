//! `cargo xtask bench probes`: what the probes cost, beside no probes and beside `biolatency` of libbpf-tools.
//!
//! Each round does the three in turn, the first one another each time, once with one request at a time and once with 32:
//! direct reads of 4 KiB at random places. A round's three are compared with each other, so that a machine which slows
//! down does not speak for anyone. The kernel measures every program all the time (BPF_ENABLE_STATS), which costs both
//! sides some ns a run. The watchdog is off: it would take a probe off in a load made to be all I/O.
//!
//! `--owners 10000` measures something else: an agent that saw that many processes.

mod load;
mod observers;
mod owners;
mod stats;

use anyhow::{Result, ensure};
use clap::Parser;
use load::{Load, Measured};
use observers::{Observer, Program};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

#[derive(Parser)]
#[command(about = "What the probes cost")]
struct Args {
    /// Rounds; 20 or more for a result that may be quoted.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Length of each measurement in ms.
    #[arg(long, default_value_t = 2000)]
    millis: u64,
    /// A block device to read; without one, a file of 256 MiB in --folder.
    #[arg(long)]
    device: Option<PathBuf>,
    /// Where the file is made. Not in memory.
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// Requests at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    depths: Vec<usize>,
    /// biolatency; else the one in GLAKE_LIBBPF_TOOLS, else in PATH. Without it, it is left out.
    #[arg(long)]
    biolatency: Option<PathBuf>,
    /// Measure an agent after so many processes did I/O instead.
    #[arg(long)]
    owners: Option<u32>,
    /// Read one block of this file and end: how --owners makes its processes.
    #[arg(long, hide = true)]
    read_once: Option<PathBuf>,
}

/// Who watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    None,
    Glake,
    Biolatency,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::None => "none",
            Who::Glake => "glake (light)",
            Who::Biolatency => "biolatency",
        }
    }
}

/// All measurements of one depth and watcher, a round each, and the programs' sums.
#[derive(Default)]
struct Series {
    runs: Vec<Measured>,
    programs: BTreeMap<String, (u64, u64)>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(path) = &args.read_once {
        return load::read_once(path);
    }
    ensure!(rustix::process::geteuid().is_root(), "needs root: it attaches programs");
    let load = Load::open(args.device.as_deref(), &args.folder)?;
    if let Some(owners) = args.owners {
        return owners::measure(&load, owners);
    }
    let biolatency = observers::find_biolatency(args.biolatency.as_deref());
    let mut who = vec![Who::None, Who::Glake];
    match &biolatency {
        Some(path) => {
            eprintln!("biolatency: {}", path.display());
            who.push(Who::Biolatency);
        }
        None => eprintln!("no biolatency: give --biolatency PATH, or install Debian's libbpf-tools"),
    }
    let mut found: BTreeMap<(usize, Who), Series> = BTreeMap::new();
    for round in 0..args.rounds {
        for depth in &args.depths {
            for turn in 0..who.len() {
                let who = who[(round + turn) % who.len()];
                let (measured, programs) = measure(who, &load, *depth, &args, biolatency.as_deref())?;
                let series = found.entry((*depth, who)).or_default();
                series.runs.push(measured);
                for p in programs {
                    let sum = series.programs.entry(p.name).or_default();
                    (sum.0, sum.1) = (sum.0 + p.runs, sum.1 + p.run_time_ns);
                }
            }
        }
        eprintln!("round {} of {}", round + 1, args.rounds);
    }
    print(&args, &found);
    Ok(())
}

fn measure(
    who: Who,
    load: &Load,
    depth: usize,
    args: &Args,
    biolatency: Option<&std::path::Path>,
) -> Result<(Measured, Vec<Program>)> {
    let _measuring = aya::sys::enable_stats(aya::sys::Stats::RunTime)?;
    let observer = match (who, biolatency) {
        (Who::Glake, _) => Some(Observer::glake()?),
        (Who::Biolatency, Some(path)) => Some(Observer::biolatency(path)?),
        _ => None,
    };
    // Caches, frequency, and the observer's first readings.
    load.run(depth, Duration::from_millis(args.millis / 10))?;
    let before = observer.as_ref().map(Observer::programs).transpose()?.unwrap_or_default();
    let measured = load.run(depth, Duration::from_millis(args.millis))?;
    let after = observer.as_ref().map(Observer::programs).transpose()?.unwrap_or_default();
    Ok((measured, observers::between(&before, &after)))
}

fn print(args: &Args, found: &BTreeMap<(usize, Who), Series>) {
    println!("{} rounds of {} ms; median [95 % interval of the median]\n", args.rounds, args.millis);
    println!(
        "{:>5}  {:<14} {:>30} {:>27} {:>30} {:>10}",
        "depth", "watched by", "reads/s", "throughput, none = 1", "CPU ns per read", "BPF ns/read"
    );
    let mut rows: Vec<Value> = Vec::new();
    for ((depth, who), series) in found {
        let none = &found[&(*depth, Who::None)].runs;
        let rate = stats::median(series.runs.iter().map(Measured::per_second));
        let ratio = stats::median(series.runs.iter().zip(none).map(|(a, b)| a.per_second() / b.per_second()));
        let cpu = stats::median(series.runs.iter().map(Measured::cpu_ns_per_read));
        let reads: u64 = series.runs.iter().map(|m| m.reads).sum();
        let bpf: u64 = series.programs.values().map(|p| p.1).sum();
        println!(
            "{depth:>5}  {:<14} {:>30} {:>27} {:>30} {:>10.0}",
            who.name(),
            rate.show(0),
            ratio.show(3),
            cpu.show(0),
            bpf as f64 / reads as f64
        );
        rows.push(json!({"depth": depth, "watched_by": who.name(), "reads_per_second": rate.json(),
            "throughput_ratio": ratio.json(), "cpu_ns_per_read": cpu.json(), "reads": reads,
            "bpf_ns_per_read": bpf as f64 / reads as f64, "programs": programs(series, reads)}));
    }
    println!(
        "\n{:>5}  {:<14} {:<24} {:>10} {:>11} {:>10}",
        "depth", "watched by", "program", "ns/run", "runs/read", "runs"
    );
    for ((depth, who), series) in found {
        let reads: u64 = series.runs.iter().map(|m| m.reads).sum();
        for (name, (runs, ns)) in series.programs.iter().filter(|(_, p)| p.0 > 0) {
            let (each, per_read) = (*ns as f64 / *runs as f64, *runs as f64 / reads as f64);
            println!("{depth:>5}  {:<14} {name:<24} {each:>10.0} {per_read:>11.3} {runs:>10}", who.name());
        }
    }
    println!("\n{}", json!({"rounds": args.rounds, "millis": args.millis, "results": rows}));
}

fn programs(series: &Series, reads: u64) -> Vec<Value> {
    let one = |(name, (runs, ns)): (&String, &(u64, u64))| json!({"name": name, "run_cnt": runs, "run_time_ns": ns, "runs_per_read": *runs as f64 / reads as f64});
    series.programs.iter().map(one).collect()
}
