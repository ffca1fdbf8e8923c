//! `glake load`: a model's weights to a GPU, every file of them, and how fast.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::copy::{PeerArgs, WayArgs, engine_for, gpu, show};
use super::{exit, out, values};
use crate::copy::engine::Wish;
use crate::copy::room::Room;
use crate::copy::route::{Decision, Way};
use crate::copy::safetensors::checkpoint::Shard;
use crate::copy::safetensors::{Checkpoint, Placed};
use crate::copy::{Engine, Moved};
use crate::error::{Error, Kind, Result};

/// Loads safetensors weights to a GPU as a program would: headers checked, every tensor aligned to 512 bytes.
///
/// The GPU memory is this command's own and is given back at its end; in a program, `glake.load_safetensors` gives torch
/// tensors. A folder or an index is loaded as one checkpoint.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake load model.safetensors\n  \
                  glake load Qwen2.5-7B/ --device gpu:1\n  \
                  glake load model.safetensors.index.json --bench")]
pub(super) struct Args {
    /// A safetensors file, an index, or a folder with either.
    path: PathBuf,
    /// The GPU.
    #[arg(long, value_name = "gpu:N", value_parser = gpu, default_value = "gpu:0")]
    device: u32,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    peers: PeerArgs,
    /// Load it several times, in turn with a plain copy, and compare.
    #[arg(long)]
    bench: bool,
    /// Loads of each kind with --bench.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=100))]
    runs: u8,
    /// Give up after this long.
    #[arg(long, value_name = "TIME", value_parser = values::duration, default_value = "10m")]
    limit: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One load of the whole checkpoint.
struct Loaded {
    decision: Decision,
    moved: Moved,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let checkpoint = Checkpoint::open(&args.path)?;
    let (places, size) = checkpoint.places();
    if checkpoint.size() == 0 {
        let what = format!("{} holds no bytes of weights", args.path.display());
        return Err(Error::new(Kind::BadInput, what));
    }
    let engine = engine_for(args.device, &args.peers)?;
    let room = Room::new(engine.device(), size)?;
    let wish = args.way.wish(Some(args.limit));
    let once = |wish: &Wish| load(&engine, &checkpoint, &places, room.address(), wish);
    let mut ours = vec![once(&wish)?];
    let mut plain = Vec::new();
    if args.bench {
        // In turn, so that both meet the same state of the machine.
        for _ in 0..args.runs {
            plain.push(once(&Wish { way: Some(Way::Plain), ..wish })?);
            ours.push(once(&wish)?);
        }
    }
    for note in &ours[0].moved.notes {
        out::say(format_args!("glake: {note}"));
    }
    if args.json {
        return show::print_json(&json(&checkpoint, &ours, &plain));
    }
    let mut out = out::stdout();
    print(&mut out, &checkpoint, &places, &ours, &plain).and_then(|()| out.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}

fn load(engine: &Engine, all: &Checkpoint, places: &[Placed], base: u64, wish: &Wish) -> Result<Loaded> {
    let bar = show::bar(all.size());
    let mut whole =
        Moved { bytes: 0, elapsed: Duration::ZERO, cpu: Duration::ZERO, relayed: 0, notes: Vec::new() };
    let mut decided = None;
    for (index, shard) in all.shards.iter().enumerate() {
        let spans = Shard::spans(places, index, base);
        let before = whole.bytes;
        let (decision, moved) =
            engine.read(&shard.source, &spans, wish, &mut |done| bar.set_position(before + done))?;
        whole.bytes += moved.bytes;
        whole.elapsed += moved.elapsed;
        whole.cpu += moved.cpu;
        whole.relayed += moved.relayed;
        for note in moved.notes {
            if !whole.notes.contains(&note) {
                whole.notes.push(note);
            }
        }
        decided = Some(decision);
    }
    bar.finish_and_clear();
    let decision = decided.ok_or_else(|| Error::new(Kind::Missing, "a checkpoint without files"))?;
    Ok(Loaded { decision, moved: whole })
}

/// The middle one by rate.
fn median(all: &[Loaded]) -> Option<&Loaded> {
    let mut sorted: Vec<&Loaded> = all.iter().collect();
    sorted.sort_by(|a, b| show::rate(&a.moved).total_cmp(&show::rate(&b.moved)));
    sorted.get(sorted.len() / 2).copied()
}

fn print(
    out: &mut impl Write,
    all: &Checkpoint,
    places: &[Placed],
    ours: &[Loaded],
    plain: &[Loaded],
) -> std::io::Result<()> {
    let first = &ours[0];
    let (files, tensors) = (all.shards.len(), places.len());
    let way = format!("{}, {}", first.decision.way.label(), show::setting(&first.decision));
    writeln!(out, "{tensors} tensors in {files} files   {}   {way}", show::line(&first.moved))?;
    let (Some(ours), Some(plain)) = (median(&ours[1..]), median(plain)) else { return Ok(()) };
    writeln!(out, "glake       median {}", show::line(&ours.moved))?;
    writeln!(out, "plain copy  median {}", show::line(&plain.moved))?;
    writeln!(out, "ratio       {:.2}", show::rate(&ours.moved) / show::rate(&plain.moved).max(1e-9))
}

fn json(all: &Checkpoint, ours: &[Loaded], plain: &[Loaded]) -> serde_json::Value {
    let run = |l: &Loaded| {
        json!({
            "route": l.decision.way,
            "lanes": l.decision.lanes,
            "part_bytes": l.decision.part_bytes,
            "bytes": l.moved.bytes,
            "seconds": l.moved.elapsed.as_secs_f64(),
            "bytes_per_second": show::rate(&l.moved),
            "cpu_seconds": l.moved.cpu.as_secs_f64(),
        })
    };
    let tensors: usize = all.shards.iter().map(|s| s.header.tensors.len()).sum();
    json!({
        "files": all.shards.len(),
        "tensors": tensors,
        "bytes": all.size(),
        "first": run(&ours[0]),
        "runs": ours[1..].iter().map(run).collect::<Vec<_>>(),
        "plain_runs": plain.iter().map(run).collect::<Vec<_>>(),
        "notes": ours[0].moved.notes,
    })
}
