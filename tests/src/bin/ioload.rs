//! A load with known counts. The lab's tests take their expected numbers from what this prints, never from a probe.
//!
//! `ioload /dev/nvme0n1 read:100x4096 write:50x65536 flush:3 --depth 4` does the steps one after another, each with
//! `--depth` threads, at addresses that follow each other, and prints one JSON object when it is done.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::Seek;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Direct I/O must lie on the device's blocks in memory too; 4096 fits every SSD.
const ALIGNMENT: usize = 4096;

#[derive(Parser)]
#[command(about = "A load with known counts")]
struct Args {
    /// A block device or a file.
    path: PathBuf,
    /// read:COUNTxBYTES, write:COUNTxBYTES or flush:COUNT, done in this order.
    #[arg(required = true)]
    steps: Vec<Step>,
    /// Threads, each with one request at a time.
    #[arg(long, default_value_t = 1)]
    depth: u64,
    /// Through the page cache instead of O_DIRECT.
    #[arg(long)]
    buffered: bool,
    /// Make the file this large first.
    #[arg(long)]
    create: Option<u64>,
    /// Do it in this cgroup2 folder, made if need be.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Repeat all steps for this long (whole rounds; the printed counts are the sum).
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// A pause of this many ms after each request, so that a live load does not take a whole core.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
}

/// So many requests of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    kind: Kind,
    count: u64,
    bytes: usize,
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Step> {
        let (kind, rest) = text.split_once(':').context("a step is KIND:COUNT or KIND:COUNTxBYTES")?;
        let (count, bytes) = rest.split_once('x').unwrap_or((rest, "0"));
        let kind = match kind {
            "read" => Kind::Read,
            "write" => Kind::Write,
            "flush" => Kind::Flush,
            other => anyhow::bail!("a step reads, writes or flushes, not {other:?}"),
        };
        let step = Step { kind, count: count.parse()?, bytes: bytes.parse()? };
        ensure!(
            (kind == Kind::Flush) == (step.bytes == 0),
            "{text}: reads and writes have a size, flushes have none"
        );
        Ok(step)
    }
}

/// What one step did.
#[derive(Default)]
struct Done {
    ok: AtomicU64,
    failed: AtomicU64,
    /// Time in calls, summed over the threads, and the slowest and fastest call.
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
    min_ns: AtomicU64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let cgroup = args.cgroup.as_deref().map(enter).transpose()?;
    let target = Target::open(&args)?;
    let done: Vec<Done> =
        args.steps.iter().map(|_| Done { min_ns: u64::MAX.into(), ..Done::default() }).collect();
    let end = Instant::now() + Duration::from_secs(args.seconds);
    loop {
        for (step, done) in args.steps.iter().zip(&done) {
            target.run(*step, &args, done)?;
        }
        if Instant::now() >= end {
            break;
        }
    }
    let steps: Vec<Value> = args.steps.iter().zip(&done).map(|(step, done)| report(step, done)).collect();
    let pid = std::process::id();
    println!(
        "{}",
        json!({"path": args.path, "pid": pid, "cgroup": cgroup, "direct": !args.buffered, "steps": steps})
    );
    Ok(())
}

/// The file and its usable length.
struct Target {
    file: File,
    length: u64,
}

impl Target {
    fn open(args: &Args) -> Result<Target> {
        let flags = if args.buffered { 0 } else { libc::O_DIRECT };
        let writes = args.create.is_some() || args.steps.iter().any(|s| s.kind != Kind::Read);
        let mut options = OpenOptions::new();
        options.read(true).write(writes).create(args.create.is_some()).custom_flags(flags);
        let mut file =
            options.open(&args.path).with_context(|| format!("opening {}", args.path.display()))?;
        if let Some(length) = args.create {
            file.set_len(length)?;
        }
        let length = file.seek(std::io::SeekFrom::End(0))?;
        let largest = args.steps.iter().map(|s| s.bytes as u64).max().unwrap_or(0);
        ensure!(length >= largest, "{} has {length} bytes, a request has {largest}", args.path.display());
        Ok(Target { file, length })
    }

    /// All requests of a step, by `depth` threads. A request that fails is counted and the step goes on.
    fn run(&self, step: Step, args: &Args, done: &Done) -> Result<()> {
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let worker = || {
                let mut buffer = Aligned::new(step.bytes);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= step.count {
                        break;
                    }
                    let start = Instant::now();
                    let result = self.one(step, index, buffer.bytes());
                    done.add(result.is_ok(), start.elapsed());
                    if args.pause_ms > 0 {
                        std::thread::sleep(Duration::from_millis(args.pause_ms));
                    }
                }
            };
            let threads: Vec<_> = (0..args.depth.max(1)).map(|_| scope.spawn(worker)).collect();
            threads.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a worker panicked")))
        })
    }

    fn one(&self, step: Step, index: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        // Whole requests only: the last, short one of the device is never used.
        let slots = self.length.checked_div(step.bytes as u64).unwrap_or(1);
        let offset = index % slots * step.bytes as u64;
        match step.kind {
            Kind::Read => self.file.read_exact_at(buffer, offset),
            Kind::Write => {
                buffer.fill(index as u8);
                self.file.write_all_at(buffer, offset)
            }
            Kind::Flush => self.file.sync_data(),
        }
    }
}

impl Done {
    fn add(&self, ok: bool, took: Duration) {
        let ns = took.as_nanos() as u64;
        if ok { &self.ok } else { &self.failed }.fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        self.min_ns.fetch_min(ns, Ordering::Relaxed);
    }
}

fn report(step: &Step, done: &Done) -> Value {
    let [ok, failed, sum_ns, max_ns, min_ns] =
        [&done.ok, &done.failed, &done.sum_ns, &done.max_ns, &done.min_ns].map(|v| v.load(Ordering::Relaxed));
    let operation = format!("{:?}", step.kind).to_lowercase();
    json!({"operation": operation, "size": step.bytes, "completed": ok, "failed": failed, "bytes": ok * step.bytes as u64,
        "sum_ns": sum_ns, "max_ns": max_ns, "min_ns": min_ns})
}

/// A buffer whose bytes begin on a multiple of [`ALIGNMENT`].
struct Aligned {
    bytes: Vec<u8>,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Aligned {
        Aligned { bytes: vec![0; length + ALIGNMENT], length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let skip = self.bytes.as_ptr().align_offset(ALIGNMENT);
        &mut self.bytes[skip..skip + self.length]
    }
}

/// Moves this process into a cgroup2 folder; its path and id (the folder's inode).
fn enter(folder: &Path) -> Result<Value> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let procs = folder.join("cgroup.procs");
    std::fs::write(&procs, "0").with_context(|| format!("writing {}", procs.display()))?;
    Ok(json!({"path": folder, "id": std::fs::metadata(folder)?.ino()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_what_how_often_and_how_large() {
        let step: Step = "read:100x4096".parse().unwrap();
        assert_eq!(step, Step { kind: Kind::Read, count: 100, bytes: 4096 });
        assert_eq!("flush:3".parse::<Step>().unwrap().count, 3);
        for wrong in ["read:5", "flush:3x4096", "erase:1x1", "read", "write:x4096"] {
            assert!(wrong.parse::<Step>().is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn the_printed_counts_are_what_was_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let args = Args::parse_from([
            "ioload",
            path.to_str().unwrap(),
            "write:10x8192",
            "read:7x4096",
            "--buffered",
            "--create",
            "65536",
        ]);
        let target = Target::open(&args).unwrap();
        let done = Done::default();
        target.run(args.steps[0], &args, &done).unwrap();
        assert_eq!(report(&args.steps[0], &done)["bytes"], 81920);
        let written = std::fs::read(&path).unwrap();
        // Ten requests over eight slots: the last two came round again.
        assert_eq!((written[0], written[8192], written[2 * 8192]), (8, 9, 2));
    }
}
