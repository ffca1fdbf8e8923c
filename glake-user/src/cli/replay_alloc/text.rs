//! The screen.

use super::{Check, Shown};
use crate::stitch::model::stranded::Stranded;
use crate::stitch::model::study::{GPU_SIZES, OVERHEAD, Played, Verdict, clearly_less};
use crate::stitch::snapshot::{Coverage, NO_SITE};
use crate::units;

/// Causes below this share are not worth a line.
const SMALL_CAUSE: f64 = 0.02;

pub(super) fn screen(s: &Shown<'_>) -> String {
    let mut out = String::new();
    for line in lines(s) {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn lines(s: &Shown<'_>) -> Vec<String> {
    let mut out = vec![headline(s)];
    out.extend(cut_short(s));
    out.push(format!("CHECK    {}", check(s)));
    if !s.played.is_empty() {
        out.push(
            "                     peak allocated  peak reserved  allocated/reserved  driver calls  driver time  waited for       runs on a GPU of"
                .to_string(),
        );
        out.extend(s.played.iter().map(|p| row(s, p)));
        if let Some(why) = &s.without_glake {
            out.push(format!(" glake                not played: {why}"));
        }
    }
    out.push(format!("VERDICT  {}", verdict(s)));
    out.push(format!("WHY      {}", why(s)));
    if let Some(state) = &s.state {
        out.push(format!("AT END   {}", at_end(state)));
    }
    for (i, limit) in limits(s).iter().enumerate() {
        out.push(format!("{} {limit}", if i == 0 { "LIMITS  " } else { "        " }));
    }
    if let Some(path) = &s.args.html {
        out.push(format!("PAGE     {}", path.display()));
    }
    out
}

pub(super) fn headline(s: &Shown<'_>) -> String {
    let name = s.args.file.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    let mut parts = vec![
        s.recording.format.name().to_string(),
        format!("GPU {}", s.run.device),
        counted(s.run.used, "event"),
    ];
    if s.run.steps > 0 {
        parts.push(counted(s.run.steps as u64, "step"));
    }
    if s.run.timed && s.run.span_ns() > 0 {
        parts.push(units::duration_ns(s.run.span_ns()));
    }
    match s.recording.settings.expandable_segments {
        Some(on) => parts.push(format!("expandable_segments {}", if on { "on" } else { "off" })),
        None if s.run.recorded.mapped > 0 => parts.push("expandable_segments on".to_string()),
        None => {}
    }
    let complete = if s.run.complete { "yes" } else { "no" };
    format!("{name}: {};   complete from process start: {complete}", parts.join(", "))
}

fn cut_short(s: &Shown<'_>) -> Option<String> {
    let used = grouped(s.run.used);
    match s.recording.coverage {
        Coverage::Whole => None,
        Coverage::Truncated(at) => Some(format!(
            "PARTIAL  the file ends early, at byte {}: {used} events were used; the end of the run is missing",
            grouped(at)
        )),
        Coverage::OverBudget(at) => Some(format!(
            "PARTIAL  {used} events were used, up to byte {}: more needs more memory than --memory {} MiB",
            grouped(at),
            s.args.memory
        )),
    }
}

pub(super) fn check(s: &Shown<'_>) -> String {
    let Check::Compared { expandable, model, recorded } = s.check else {
        let Check::Not(why) = s.check else { return String::new() };
        return format!("cannot check our model of the default allocator: {why}");
    };
    let name = if expandable { "expandable segments" } else { "the default allocator" };
    let both = format!(
        "our model of {name} peaks at {}; the snapshot itself recorded {}",
        gib(model),
        gib(recorded)
    );
    match s.check.deviation() {
        _ if model == recorded => format!("{both}: equal to the byte"),
        Some(d) if d.abs() <= 0.02 => format!("{both}: agrees ({:+.1} %)", d * 100.0),
        Some(d) => format!("{both}: DIFFERS by {:+.1} %; read the rows below with that in mind", d * 100.0),
        None => both,
    }
}

fn row(s: &Shown<'_>, p: &Played) -> String {
    let o = &p.outcome;
    let ratio = o.allocated_to_reserved_ratio().map_or("-".to_string(), |r| format!("{:.1} %", r * 100.0));
    let mut waited = units::duration_ns(p.foreground_ns());
    if s.run.timed && s.run.span_ns() > 0 {
        waited.push_str(&format!("  {}", percent(p.foreground_ns() as f64 / s.run.span_ns() as f64)));
    }
    format!(
        " {:<19} {:>14} {:>14} {:>19} {:>13} {:>12}  {:<16} {}",
        p.name,
        gib(o.peak_requested),
        gib(o.peak_reserved),
        ratio,
        grouped(p.driver_calls()),
        units::duration_ns(p.driver_ns()),
        waited,
        fits(p)
    )
}

/// The smallest size it fits, and the largest it does not.
fn fits(p: &Played) -> String {
    if p.outcome.failed.is_some() {
        return "did not complete".to_string();
    }
    let yes = smallest(p);
    let no = GPU_SIZES.iter().rev().find(|g| p.fits(**g) == Some(false));
    let needs = p.needs.map_or(String::new(), |n| format!("   (needs {})", gib(n)));
    match (yes, no) {
        (Some(yes), Some(no)) => format!("{yes} GiB: yes  {no}: no{needs}"),
        (Some(yes), None) => format!("{yes} GiB: yes{needs}"),
        (None, _) => format!("none up to {} GiB{needs}", GPU_SIZES[GPU_SIZES.len() - 1]),
    }
}

pub(super) fn verdict(s: &Shown<'_>) -> String {
    let of = |name: &str| s.played.iter().find(|p| p.name == name);
    let (Some(default), Some(expandable)) = (of("default"), of("expandable_segments")) else {
        return no_trace(s);
    };
    let reserved = |p: &Played| p.outcome.peak_reserved;
    let saved = |p: &Played| gib(reserved(default).saturating_sub(reserved(p)));
    match (s.verdict, of("glake")) {
        (Verdict::Helps, Some(glake)) => {
            let mut text = format!(
                "Helps. {} less than default, {} less than expandable_segments.",
                saved(glake),
                gib(reserved(expandable).saturating_sub(reserved(glake)))
            );
            text.push_str(&in_gpus(default, expandable, glake).unwrap_or_default());
            text
        }
        (Verdict::ExpandableIsEnough, glake) => {
            let mut text = format!("expandable_segments is enough: {} less than default.", saved(expandable));
            if let Some(glake) = glake {
                let more = reserved(expandable).saturating_sub(reserved(glake));
                text.push_str(&format!(" GLake would save {} more.", gib(more)));
            }
            text
        }
        _ => nothing_helps(s, default),
    }
}

fn nothing_helps(s: &Shown<'_>, default: &Played) -> String {
    let o = &default.outcome;
    let ratio = o.allocated_to_reserved_ratio().unwrap_or(1.0) * 100.0;
    let best = s.played.iter().map(|p| p.outcome.peak_reserved).min().unwrap_or(o.peak_reserved);
    let gain = o.peak_reserved.saturating_sub(best);
    let mut text = if ratio >= 90.0 {
        format!(
            "Nothing to gain: at its peak the default allocator already uses {ratio:.1} % of what it holds."
        )
    } else {
        format!("Nothing to gain: at most {} of {} could be saved.", gib(gain), gib(o.peak_reserved))
    };
    let free = s.state.as_ref().map_or(0, |state| state.whole_free);
    let held = s.state.as_ref().map_or(0, |state| state.reserved);
    let joinable = s.state.as_ref().map_or(0, |state| state.holes);
    if held > 0 && clearly_less(held - free, held) {
        text.push_str(&format!(
            " Between peaks torch.cuda.empty_cache() gives {} back ({:.0} %); stitching would use {} ({:.1} %).",
            gib(free),
            free as f64 / held as f64 * 100.0,
            gib(joinable),
            joinable as f64 / held as f64 * 100.0
        ));
    }
    text
}

fn no_trace(s: &Shown<'_>) -> String {
    let Some(state) = &s.state else { return "Cannot tell: nothing recorded.".to_string() };
    let share = |bytes: u64| bytes as f64 / state.reserved.max(1) as f64 * 100.0;
    format!(
        "Cannot tell over time: no events. At this moment remapping could use {} ({:.1} %), empty_cache() gives back {} ({:.0} %).",
        gib(state.holes),
        share(state.holes),
        gib(state.whole_free),
        share(state.whole_free)
    )
}

/// The smallest GPU sold that the run completes on.
pub(super) fn smallest(p: &Played) -> Option<u64> {
    GPU_SIZES.iter().copied().find(|g| p.fits(*g) == Some(true))
}

/// What the smaller peak is worth in GPUs: nobody buys a GPU by the GiB.
fn in_gpus(default: &Played, expandable: &Played, glake: &Played) -> Option<String> {
    let (e, g) = (smallest(expandable)?, smallest(glake)?);
    if g >= e {
        return Some(format!(" Both would run on a GPU of {e} GiB."));
    }
    let better = smallest(default).is_none_or(|d| e < d);
    better.then(|| format!(" If you only need to fit {e} GiB, expandable_segments is enough."))
}

pub(super) fn why(s: &Shown<'_>) -> String {
    let gap = s.causes.gap();
    let when = if s.played.is_empty() { "at the snapshot" } else { "at the default's peak" };
    let mut parts: Vec<String> = Vec::new();
    for (cause, bytes) in s.causes.causes() {
        let share = bytes as f64 / gap.max(1) as f64;
        if share >= SMALL_CAUSE {
            parts.push(format!("{:.0} % {cause}", share * 100.0));
        }
    }
    if gap == 0 || parts.is_empty() {
        return format!("{when} everything held is in use.");
    }
    let mut text = format!("{} idle {when}: {}.", gib(gap), parts.join("; "));
    let named = s.pins.iter().any(|p| p.site != NO_SITE);
    if named && s.args.html.is_none() {
        text.push_str(" Top call sites: --html OUT");
    }
    text
}

fn at_end(state: &Stranded) -> String {
    let share = |bytes: u64| format!("{:.1} %", bytes as f64 / state.reserved.max(1) as f64 * 100.0);
    format!(
        "{}, {} held, {} asked for; wholly free {} ({}), free inside segments {} ({}), of that stitchable {} ({})",
        counted(state.segments as u64, "segment"),
        gib(state.reserved),
        gib(state.requested),
        gib(state.whole_free),
        share(state.whole_free),
        gib(state.holes + state.slivers),
        share(state.holes + state.slivers),
        gib(state.holes),
        share(state.holes)
    )
}

pub(super) fn limits(s: &Shown<'_>) -> Vec<String> {
    let mut out = Vec::new();
    if !s.played.is_empty() {
        let real = s.args.on != "host";
        let glake = if real {
            format!("; glake ran on {}", s.args.on)
        } else {
            "; `--on cuda:0` replays for real".to_string()
        };
        out.push(format!(
            "driver time is modelled on the H200's call costs{glake}. CPU ahead of the GPU by {} ms. A GPU counts as its \
             size less {}; near its limit torch empties its cache and retries, which is slow.",
            s.args.run_ahead,
            gib(OVERHEAD)
        ));
        out.push("cudaMallocAsync is not modelled.".to_string());
    }
    if !s.run.timed && !s.played.is_empty() {
        out.push("the file has no times: run-ahead and shares of time cannot be told.".to_string());
    }
    out.extend(settings(s));
    if s.run.private_peak > 0 {
        out.push(format!(
            "private pools (CUDA graphs, MemPool) hold up to {}: not stitchable, counted as they are.",
            gib(s.run.private_peak)
        ));
    }
    if !s.run.complete && s.recording.coverage == Coverage::Whole && !s.played.is_empty() {
        out.push(start_missing(s));
    }
    if s.run.recorded.ooms > 0 {
        let failed = counted(s.run.recorded.ooms, "allocation");
        out.push(format!(
            "{failed} failed in the recorded run: a run that fits would have gone on differently."
        ));
    }
    if s.recording.devices.len() > 1 {
        let others: Vec<String> = s
            .recording
            .devices
            .iter()
            .filter(|d| d.device != s.run.device)
            .map(|d| format!("--device {}", d.device))
            .collect();
        out.push(format!("other GPUs in the file: {}.", others.join(", ")));
    }
    out.extend(s.run.notes.iter().chain(&s.recording.notes).map(|n| format!("{n}.")));
    out
}

/// The recording began late, or torch's ring buffer forgot the beginning.
fn start_missing(s: &Shown<'_>) -> String {
    let held = gib(s.run.recorded.start);
    let entries = s.run.used;
    let ring = entries >= 1000 && (entries.is_multiple_of(1000) || entries.is_power_of_two());
    let cause = if ring {
        format!("exactly {} events: max_entries probably cut the beginning", grouped(entries))
    } else {
        "recording began after the process had allocated".to_string()
    };
    format!(
        "{cause}. {held} were held before the first event; that layout is taken as given for default, packed afresh for \
         the others."
    )
}

fn settings(s: &Shown<'_>) -> Vec<String> {
    let set = &s.recording.settings;
    let mut out = Vec::new();
    if let Some(max) = set.max_split_size {
        out.push(format!("max_split_size {} is honoured in the default's row.", gib(max)));
        if set.expandable_segments == Some(true) {
            out.push(
                "max_split_size_mb together with expandable_segments is a known trap (reserved memory grows without \
                 need on torch 2.12 and later): use one of them."
                    .to_string(),
            );
        }
    }
    if set.garbage_collection_threshold > 0.0 {
        out.push(format!(
            "garbage_collection_threshold {} is not modelled: it needs the memory fraction, which the file does not hold.",
            set.garbage_collection_threshold
        ));
    }
    out
}

/// Two decimals, as torch prints; smaller units where a GiB is too coarse.
pub(super) fn gib(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        0..=1023 => format!("{bytes} B"),
        n if n < 1 << 20 => format!("{:.1} KiB", b / 1024.0),
        n if n < 1 << 29 => format!("{:.1} MiB", b / 1_048_576.0),
        _ => format!("{:.2} GiB", b / 1_073_741_824.0),
    }
}

fn percent(share: f64) -> String {
    let p = share * 100.0;
    if p >= 1.0 { format!("{p:.1} %") } else { format!("{p:.2} %") }
}

/// `1 step`, `20 steps`
fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// `236,754`
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}
