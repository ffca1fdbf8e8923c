//! `glake replay-alloc`: would it help me? A recording played into models of torch's allocators and into GLake's heap.

mod glake;
mod html;
mod json;
mod text;

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;

use super::{exit, out};
use crate::error::{Error, Kind, Result};
use crate::gpu::Costs;
use crate::stitch::model::stranded::{self, Pin, Stranded};
use crate::stitch::model::study::{self, Contestant, Played, Verdict};
use crate::stitch::model::{Caching, Expandable, Model, Region};
use crate::stitch::snapshot::{self, Coverage, DeviceRecording, Limits, Recording, Run};
use crate::stitch::trace::{self, TraceEvent};

/// Replays a recorded allocation trace: PyTorch's default allocator, expandable segments and GLake, side by side.
///
/// Reads PyTorch memory snapshots (pickle protocols 0 to 5), RMM logs, STAlloc traces and MiniMalloc instances: plain,
/// .xz or .zst. Nothing in the file is ever imported or run. Needs no GPU and no privilege.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake replay-alloc snap.pickle\n  \
                  glake replay-alloc snap.pickle.xz --html out.html\n  \
                  glake replay-alloc snap.pickle --device 1 --scale 1.13 --json\n\n\
                  Record one in your program:\n  \
                  torch.cuda.memory._record_memory_history()\n  ...\n  \
                  torch.cuda.memory._dump_snapshot(\"snap.pickle\")")]
pub(super) struct Args {
    /// The recording.
    file: PathBuf,
    /// Which GPU of the recording; without it the one with the most events.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// How far the CPU runs ahead of the GPU, in milliseconds: memory freed on the CPU is still in use for so long.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    run_ahead: u64,
    /// Multiply every size: would a larger batch fit?
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    scale: f64,
    /// Where GLake's heap runs: `host` (modelled costs) or `cuda:N` (the real driver).
    #[arg(long, value_name = "WHERE", default_value = "host")]
    on: String,
    /// Write a page with the curves, the address map at the peak and what stranded what.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Memory for reading, in MiB. A larger file is read as far as that goes.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u64,
}

/// Everything there is to show.
struct Shown<'a> {
    args: &'a Args,
    recording: &'a Recording,
    run: &'a Run,
    played: Vec<Played>,
    /// Why GLake's heap was not played, where it was not.
    without_glake: Option<String>,
    verdict: Verdict,
    /// The default model's layout when it reserved the most.
    peak: Vec<Region>,
    causes: Stranded,
    pins: Vec<Pin>,
    /// What was held when the snapshot was taken.
    state: Option<Stranded>,
    check: Check,
}

/// Our model of the recorded allocator against the recording.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Check {
    /// Modelled and recorded reserved peak.
    Compared { expandable: bool, model: u64, recorded: u64 },
    /// There is nothing to compare with, and why.
    Not(&'static str),
}

impl Check {
    /// Deviation as a share of what was recorded.
    fn deviation(self) -> Option<f64> {
        match self {
            Check::Compared { model, recorded, .. } if recorded > 0 => {
                Some((model as f64 - recorded as f64) / recorded as f64)
            }
            _ => None,
        }
    }
}

pub(super) fn run(args: Args) -> Result<u8> {
    if !(args.scale.is_finite() && args.scale > 0.0 && args.scale <= 1000.0) {
        return Err(Error::new(
            Kind::Misuse,
            format!("--scale {}: expected a number between 0 and 1000", args.scale),
        ));
    }
    let place = glake::Place::parse(&args.on)?;
    let recording = snapshot::read(&args.file, Limits { memory: args.memory.max(16) << 20 })?;
    let device = choose(&recording, args.device, &args)?;
    let run = Run::of(&recording, device);
    let shown = show(&args, place, &recording, device, &run)?;
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&shown))
            .map_err(|e| Error::os(format!("writing {}", path.display()), e))?;
    }
    let text = if args.json { format!("{:#}\n", json::of(&shown)) } else { text::screen(&shown) };
    let mut stdout = out::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(if recording.coverage == Coverage::Whole { exit::OK } else { exit::DEGRADED })
}

fn choose<'a>(recording: &'a Recording, wanted: Option<u32>, args: &Args) -> Result<&'a DeviceRecording> {
    let name = args.file.display();
    let there: Vec<String> = recording.devices.iter().map(|d| d.device.to_string()).collect();
    let found = match wanted {
        Some(n) => recording.devices.iter().find(|d| d.device == n),
        None => recording.devices.iter().max_by_key(|d| (d.entries.len(), d.segments.len())),
    };
    found.ok_or_else(|| match wanted {
        Some(n) if !there.is_empty() => Error::new(Kind::Misuse, format!("{name} has nothing of GPU {n}"))
            .remedy(format!("it has GPU {}", there.join(", "))),
        _ => Error::new(Kind::BadInput, format!("{name} holds no segment and no event"))
            .remedy("call torch.cuda.memory._record_memory_history() before the part that matters"),
    })
}

fn show<'a>(
    args: &'a Args,
    place: glake::Place,
    recording: &'a Recording,
    device: &'a DeviceRecording,
    run: &'a Run,
) -> Result<Shown<'a>> {
    let scaled = (args.scale - 1.0).abs() > 1e-9;
    let events: Cow<'_, [TraceEvent]> =
        if scaled { trace::scaled(&run.events, args.scale).into() } else { run.events.as_slice().into() };
    let has_trace = run.events.len() > run.prelude;
    let stretch = study::Stretch { prelude: run.prelude, span_ns: run.span_ns(), timed: run.timed };
    let mut without_glake = None;
    let mut played = Vec::new();
    if has_trace {
        for contestant in torch_models(recording, run, &events, scaled) {
            played.push(study::play(&contestant, &events, stretch)?);
        }
        let contestant = glake::contestant(place, args.run_ahead, &recording.settings, &events);
        match study::play(&contestant, &events, stretch) {
            Ok(one) => played.push(one),
            // The answer about torch's own allocators stands without it.
            Err(e) => without_glake = Some(e.chain()),
        }
    }
    let reserved = |name: &str| played.iter().find(|p| p.name == name).map(|p| p.outcome.peak_reserved);
    let verdict = match (reserved("default"), reserved("expandable_segments")) {
        (Some(default), Some(expandable)) => study::judge(default, expandable, reserved("glake")),
        _ => Verdict::NoTrace,
    };
    let state = (!device.segments.is_empty()).then(|| Stranded::of(&stranded::regions_of(device)));
    let peak = match played.first() {
        Some(default) => layout_at(default.peak_event, recording, run, &events, scaled)?,
        None => stranded::regions_of(device),
    };
    let check = check(recording, run, &played, has_trace, scaled);
    let (causes, pins) = (Stranded::of(&peak), stranded::pins(&peak, run));
    Ok(Shown { args, recording, run, played, without_glake, verdict, peak, causes, pins, state, check })
}

/// The default allocator as it stood before the first event: exact where sizes are as recorded.
fn default_model(recording: &Recording, run: &Run, scaled: bool, capacity: u64) -> Caching {
    if scaled {
        Caching::new(&recording.settings, capacity)
    } else {
        Caching::at_start_of(run, &recording.settings, capacity)
    }
}

fn torch_models<'a>(
    recording: &'a Recording,
    run: &'a Run,
    events: &'a [TraceEvent],
    scaled: bool,
) -> [Contestant<'a>; 2] {
    [
        Contestant {
            name: "default",
            play: Box::new(move |capacity, observe| {
                trace::play(events, &mut default_model(recording, run, scaled, capacity), observe)
            }),
        },
        Contestant {
            name: "expandable_segments",
            play: Box::new(move |capacity, observe| {
                let mut model = Expandable::new(&recording.settings, Costs::H200, capacity);
                trace::play(events, &mut model, observe)
            }),
        },
    ]
}

fn layout_at(
    event: usize,
    recording: &Recording,
    run: &Run,
    events: &[TraceEvent],
    scaled: bool,
) -> Result<Vec<Region>> {
    let mut model = default_model(recording, run, scaled, u64::MAX);
    trace::play(&events[..(event + 1).min(events.len())], &mut model, &mut |_, _| {})?;
    Ok(model.layout())
}

fn check(recording: &Recording, run: &Run, played: &[Played], has_trace: bool, scaled: bool) -> Check {
    if !has_trace {
        return Check::Not("the file holds no events, only the state at one moment");
    }
    if scaled {
        return Check::Not("sizes were scaled");
    }
    if recording.coverage != Coverage::Whole {
        return Check::Not("only a part of the file was read");
    }
    let Some(recorded) = run.recorded.peak else {
        return Check::Not("this format does not record what was held from the driver");
    };
    let expandable = recording.settings.expandable_segments == Some(true) || run.recorded.mapped > 0;
    let name = if expandable { "expandable_segments" } else { "default" };
    match played.iter().find(|p| p.name == name) {
        Some(p) => Check::Compared { expandable, model: p.outcome.peak_reserved, recorded },
        None => Check::Not("the model was not played"),
    }
}
