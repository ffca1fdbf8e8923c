//! `glake bench`: measures this host, and keeps what later decisions need.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::copy::{PeerArgs, engine_for, gpu, show};
use super::{exit, out};
use crate::copy::engine::{self, Wish};
use crate::copy::rates::{Rate, Rates};
use crate::copy::room::Room;
use crate::copy::route::Way;
use crate::copy::{Engine, Source, Span};
use crate::error::{Error, Kind, Result};
use crate::units;

/// Measures what this host can do. Results are kept for later decisions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake bench copy model.safetensors\n  \
                  glake bench copy model.safetensors --device gpu:1 --runs 5 --json")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Copies a file to a GPU over a matrix of ways, threads and sizes; keeps the rates in ~/.cache/glake/routes.json.
    Copy(CopyArgs),
}

#[derive(Debug, clap::Args)]
struct CopyArgs {
    /// A file of some gigabytes, on the disk that weights come from.
    file: PathBuf,
    /// The GPU.
    #[arg(long, value_name = "gpu:N", value_parser = gpu, default_value = "gpu:0")]
    device: u32,
    #[command(flatten)]
    peers: PeerArgs,
    /// Copies of each setting; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=100))]
    runs: u8,
    /// Measure, and keep nothing.
    #[arg(long)]
    dry: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let What::Copy(args) = args.what;
    let source = Arc::new(Source::open(&args.file)?);
    if source.size() == 0 {
        return Err(Error::new(Kind::BadInput, format!("{} is empty", args.file.display())));
    }
    let engine = engine_for(args.device, &args.peers)?;
    let room = Room::new(engine.device(), source.size())?;
    let span = Span { offset: 0, size: source.size(), address: room.address() };
    let facts = engine.facts(&source, source.size());
    let mut measured = Vec::new();
    for (way, lanes, part) in matrix(facts.cpus) {
        if way == Way::Disk && facts.direct.is_err() {
            continue;
        }
        match measure(&engine, &source, span, (way, lanes, part), args.runs) {
            Ok(rate) => {
                out::say(format_args!("{}", line(&rate)));
                measured.push(rate);
            }
            Err(e) => out::say(format_args!("glake: {} {lanes} x {part}: {}", way.label(), e.chain())),
        }
    }
    if let Err(why) = &facts.direct {
        out::say(format_args!("glake: disk staging was not measured: {why}"));
    }
    if measured.is_empty() {
        return Err(Error::new(Kind::Io, "nothing could be measured"));
    }
    if !args.dry {
        keep(&measured)?;
    }
    if args.json {
        return show::print_json(&json!({ "gpu": engine.gpu(), "bytes": source.size(), "rates": measured }));
    }
    print(&measured)
}

/// What is measured: threads and bytes at a time for each way.
fn matrix(cpus: usize) -> Vec<(Way, usize, usize)> {
    let mut all = vec![(Way::Plain, 1, 64 << 20)];
    let fits = |n: &usize| *n <= cpus.max(1);
    for lanes in [1, 2, 4, 8, 12, 16].into_iter().filter(fits) {
        all.extend([1 << 20, 4 << 20, 16 << 20].map(|part| (Way::PageCache, lanes, part)));
    }
    for lanes in [1, 2, 4].into_iter().filter(fits) {
        all.extend([1 << 20, 4 << 20].map(|part| (Way::Disk, lanes, part)));
    }
    all
}

/// The median of some copies, after one that is not counted: it makes the ring, and fills the page cache.
fn measure(
    engine: &Engine,
    source: &Arc<Source>,
    span: Span,
    (way, lanes, part): (Way, usize, usize),
    runs: u8,
) -> Result<Rate> {
    let wish = Wish { way: Some(way), setting: Some((lanes, part)), ..Wish::default() };
    let mut rates = Vec::new();
    for run in 0..=runs {
        if way == Way::Disk {
            source.drop_cache()?;
        }
        let (decision, moved) = engine.read(source, &[span], &wish, &mut |_| {})?;
        if run > 0 {
            rates.push(engine::rate(engine, source, &decision, &moved));
        }
    }
    rates.sort_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
    let middle = rates.len() / 2;
    Ok(rates.swap_remove(middle))
}

/// Takes the measurements into the file of rates.
fn keep(measured: &[Rate]) -> Result<()> {
    let Some(path) = engine::rates_file() else {
        out::say(format_args!("glake: neither XDG_CACHE_HOME nor HOME is set: the rates are not kept"));
        return Ok(());
    };
    let (mut rates, _) = Rates::load(&path);
    rates.add(measured.to_vec());
    rates.save(&path)?;
    out::say(format_args!("glake: kept in {} (delete it to forget)", path.display()));
    Ok(())
}

fn line(rate: &Rate) -> String {
    format!(
        " {:<20} {:>2} x {:>4} KiB  {:>11}   CPU {:.2} s a GB",
        rate.way.label(),
        rate.lanes,
        rate.part_bytes >> 10,
        units::bytes_per_second(rate.bytes_per_second),
        rate.cpu_seconds_per_gb
    )
}

fn print(measured: &[Rate]) -> Result<u8> {
    let mut out = out::stdout();
    let mut write = || {
        for way in [Way::PageCache, Way::Disk, Way::Plain] {
            let mine = measured.iter().filter(|r| r.way == way);
            if let Some(best) = mine.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second)) {
                writeln!(out, "best{}", line(best))?;
            }
        }
        out.flush()
    };
    write().map_err(out::failed)?;
    Ok(exit::OK)
}
