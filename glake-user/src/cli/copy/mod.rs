//! `glake copy`: a file to a GPU, and which way it goes and why.

pub(super) mod show;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::out;
use super::values;
use crate::copy::room::Room;
use crate::copy::route::Way;
use crate::copy::{Engine, Source, Span, Wish, engine};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Stream};

/// Copies a file to a GPU and says how fast, or with --explain which way it would go and why not another.
///
/// The GPU memory is this command's own and is given back at its end: the command measures and proves the way. To load
/// weights into a program, use `glake.load_safetensors` of the Python package.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake copy --explain model.safetensors gpu:0\n  \
                  glake copy model.safetensors gpu:0 --verify\n  \
                  glake copy /dev/nvme0n1p3 gpu:1 --route disk --json\n\n\
                  Rates come from `glake bench copy`, which keeps them in ~/.cache/glake/routes.json.")]
pub(super) struct Args {
    /// The file, or a block device.
    source: PathBuf,
    /// Where to: `gpu:N`.
    #[arg(value_parser = gpu)]
    to: u32,
    /// Say which way it would go and why not another; copy nothing.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    peers: PeerArgs,
    /// Read the bytes back from the GPU and compare them with the file.
    #[arg(long, conflicts_with = "explain")]
    verify: bool,
    /// Give up after this long.
    #[arg(long, value_name = "TIME", value_parser = values::duration, default_value = "10m")]
    limit: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How, where the choice is not left to GLake.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct WayArgs {
    /// The way: auto, page_cache, disk, or plain (the reference).
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = way)]
    route: Chosen,
    /// With --route disk: poll for completions instead of being interrupted. For raw NVMe devices with nvme.poll_queues.
    #[arg(long)]
    poll: bool,
    /// Threads that read.
    #[arg(long, value_name = "N", requires = "part", value_parser = clap::value_parser!(u16).range(1..=256))]
    lanes: Option<u16>,
    /// Bytes that a thread reads at a time, a power of two from 64KiB to 1GiB.
    #[arg(long, value_name = "SIZE", requires = "lanes", value_parser = part)]
    part: Option<usize>,
}

/// Other GPUs that help.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PeerArgs {
    /// Let this GPU's link carry parts too, on to the target over NVLink or PCIe. May be repeated. It costs that GPU a context (some
    /// hundred MB) and some parts' worth of memory.
    #[arg(long, value_name = "gpu:N", value_parser = gpu)]
    relay: Vec<u32>,
    /// Parts that each of them carries at a time.
    #[arg(long, value_name = "N", requires = "relay", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    channels: u8,
}

/// A way, or the choice left to GLake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen(Option<Way>);

impl WayArgs {
    pub(super) fn wish(self, limit: Option<Duration>) -> Wish {
        let setting = self.lanes.map(usize::from).zip(self.part);
        Wish { way: self.route.0, setting, polled: self.poll, limit, after: None }
    }
}

/// The number of `gpu:N`.
pub(super) fn gpu(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("gpu:").and_then(|n| n.parse().ok());
    number.ok_or_else(|| "a GPU is written gpu:0, gpu:1, ...; only GPUs can be copied to".to_owned())
}

fn way(text: &str) -> Result<Chosen, String> {
    let known = [Way::PageCache, Way::Disk, Way::Plain];
    match known.into_iter().find(|w| w.name() == text) {
        Some(way) => Ok(Chosen(Some(way))),
        None if text == "auto" => Ok(Chosen(None)),
        None => Err("a route is auto, page_cache, disk or plain".to_owned()),
    }
}

fn part(text: &str) -> Result<usize, String> {
    let size = values::size(text)?;
    let fits = size.is_power_of_two() && (64 << 10..=1 << 30).contains(&size);
    if fits { Ok(size as usize) } else { Err("a part is a power of two from 64KiB to 1GiB".to_owned()) }
}

/// The engine for GPU `ordinal`, with this host's rates.
pub(super) fn engine_for(ordinal: u32, peers: &PeerArgs) -> Result<Engine> {
    let mut relays = peers.relay.clone();
    relays.sort_unstable();
    relays.dedup();
    if relays.contains(&ordinal) {
        let what = format!("--relay gpu:{ordinal} is the GPU that is copied to");
        return Err(Error::new(Kind::BadInput, what).remedy("name another GPU of this host"));
    }
    let device = crate::standin::device(ordinal)?;
    let mut engine = Engine::new(device, engine::rates_file().as_deref());
    let relays = relays.into_iter().map(crate::standin::device).collect::<Result<_>>()?;
    engine.relay_over(relays, peers.channels.into())?;
    crate::embed::tell();
    if let Some(note) = engine.note() {
        out::say(format_args!("glake: {note}"));
    }
    Ok(engine)
}

pub(super) fn run(args: Args) -> Result<u8> {
    let source = Arc::new(Source::open(&args.source)?);
    let engine = engine_for(args.to, &args.peers)?;
    let wish = args.way.wish(Some(args.limit));
    if args.explain {
        let facts = engine.facts(&source, source.size());
        let decision = engine.decide(&facts, &wish);
        let shown = show::Explained { engine: &engine, source: &source, facts: &facts, decision: &decision };
        return if args.json { show::print_json(&shown.json()) } else { shown.print() };
    }
    if source.size() == 0 {
        return Err(Error::new(Kind::BadInput, format!("{} is empty", args.source.display())));
    }
    let room = Room::new(engine.device(), source.size())?;
    let bar = show::bar(source.size());
    let span = Span { offset: 0, size: source.size(), address: room.address() };
    let (decision, moved) = engine.read(&source, &[span], &wish, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    let verified =
        if args.verify { Some(verify(&**engine.device(), &source, room.address())?) } else { None };
    for note in &moved.notes {
        out::say(format_args!("glake: {note}"));
    }
    let shown =
        show::Copied { engine: &engine, source: &source, decision: &decision, moved: &moved, verified };
    if args.json { show::print_json(&shown.json()) } else { shown.print() }
}

/// Compares device memory with the file. The bytes compared; `BadInput` at the first byte that differs.
fn verify(device: &dyn Device, source: &Source, address: u64) -> Result<u64> {
    const STEP: u64 = 16 << 20;
    let mut there = vec![0; STEP as usize];
    let mut here = vec![0; STEP as usize];
    for at in (0..source.size()).step_by(STEP as usize) {
        let size = (source.size() - at).min(STEP) as usize;
        device.read(Stream(0), address + at, &mut there[..size])?;
        let mut got = 0;
        while got < size {
            match rustix::io::pread(source.cached(), &mut here[got..size], at + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) => return Err(Error::os(format!("reading {}", source.path().display()), e.into())),
            }
        }
        if let Some(wrong) = (0..size).find(|i| there[*i] != here[*i] || *i >= got) {
            let what =
                format!("byte {} on the GPU is not that of {}", at + wrong as u64, source.path().display());
            return Err(Error::new(Kind::Device, what)
                .remedy("do not trust this machine's memory or links; report it"));
        }
    }
    Ok(source.size())
}
