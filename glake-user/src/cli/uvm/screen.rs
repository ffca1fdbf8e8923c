//! What `glake uvm` prints. Pure: a report becomes text.

use crate::events::uvm::entry::{Cause, Processor, kind};
use crate::events::uvm::release::Layout;
use crate::telemetry::uvm_tally::{Direction, Line, Moved, Span, Tally};
use crate::units::{bytes, duration_ns};
use std::fmt::Write;
use std::time::Duration;

/// How much of the process's life was not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Blind {
    /// From our start to the queue being on.
    pub(super) before: Duration,
    /// At most this long after the process opened UVM. `None`: it was open when we came.
    pub(super) late_by: Option<Duration>,
    /// Our start was the process's start.
    pub(super) from_start: bool,
}

/// A GPU of the queue's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) processor: Processor,
    pub(super) uuid: String,
    /// `None`: the driver's list under /proc does not have it (yet).
    pub(super) index: Option<usize>,
    pub(super) pci: Option<String>,
    pub(super) model: Option<String>,
}

/// One process, from attaching to the end.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) pid: i32,
    pub(super) comm: String,
    pub(super) driver: String,
    pub(super) layout: Layout,
    pub(super) mask: u64,
    pub(super) blind: Blind,
    pub(super) watched: Duration,
    /// For so much of that events were on; `None`: all the time.
    pub(super) on: Option<Duration>,
    pub(super) ended: bool,
    /// Flushed and closed without an error.
    pub(super) complete: bool,
    pub(super) tally: Tally,
    pub(super) gpus: Vec<Named>,
    /// By event name, only those above 0.
    pub(super) dropped: Vec<(&'static str, u64)>,
    pub(super) undecoded: u64,
}

impl Default for Report {
    fn default() -> Self {
        Report {
            pid: 0,
            comm: String::new(),
            driver: String::new(),
            layout: Layout::V2,
            mask: 0,
            blind: Blind::default(),
            watched: Duration::ZERO,
            on: None,
            ended: false,
            complete: true,
            tally: Tally::default(),
            gpus: Vec::new(),
            dropped: Vec::new(),
            undecoded: 0,
        }
    }
}

impl Report {
    /// Events known to be missed.
    pub(super) fn dropped_total(&self) -> u64 {
        self.dropped.iter().map(|(_, n)| n).sum::<u64>() + self.undecoded
    }

    /// The share of the time that events were on. `None`: all of it, or no time has passed.
    pub(super) fn share(&self) -> Option<f64> {
        let on = self.on?.as_secs_f64();
        (on > 0.0 && on < self.watched.as_secs_f64()).then(|| on / self.watched.as_secs_f64())
    }

    pub(super) fn watches(&self, kind: u8) -> bool {
        self.mask >> kind & 1 == 1
    }

    pub(super) fn name(&self, processor: Processor) -> String {
        match self.gpus.iter().find(|g| g.processor == processor) {
            _ if processor.is_cpu() => "CPU".to_owned(),
            Some(Named { index: Some(i), .. }) => format!("gpu {i}"),
            Some(named) => named.uuid.clone(),
            None => format!("processor {}", processor.0),
        }
    }
}

/// 12699 as `12,699`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

/// The first line of every screen: nobody shall take paging for an error.
pub(super) const TITLE: &str =
    "UVM page faults = demand paging of managed memory. Normal, not a hardware error.";

/// One interval on one line.
pub(super) fn line(pid: i32, at: Duration, line: &Line, dropped: u64, on: Option<Duration>) -> String {
    let on = on.map_or_else(String::new, |on| format!("in {} ms: ", on.as_millis()));
    format!(
        "{:>8.1}s  {on}pid {pid}  gpu faults {:>9}  batches {:>6}  cpu faults {:>7}  to gpu {:>9}  to cpu {:>9}  \
         on demand {:>9}  prefetch {:>9}  evicted {:>9}  dropped {}",
        at.as_secs_f64(),
        count(line.gpu_faults),
        count(line.batches),
        count(line.cpu_faults),
        bytes(line.to_gpu_bytes),
        bytes(line.to_cpu_bytes),
        bytes(line.on_demand_bytes),
        bytes(line.prefetch_bytes),
        bytes(line.eviction_bytes),
        count(dropped),
    )
}

/// The terminal's other page, cursor hidden; and back.
pub(super) const ENTER: &str = "\x1b[?1049h\x1b[?25l";
pub(super) const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The live view: the newest interval, and the report so far, cut to a terminal of so many columns and rows.
pub(super) fn frame(r: &Report, now: &Line, (columns, rows): (u16, u16)) -> String {
    let text = format!(
        "NOW   GPU faults {} in {} batches   CPU faults {}   Ctrl-C ends\n      to the GPU {}  back {}   on demand {}  \
         prefetch {}  evicted {}\n{}",
        count(now.gpu_faults),
        count(now.batches),
        count(now.cpu_faults),
        bytes(now.to_gpu_bytes),
        bytes(now.to_cpu_bytes),
        bytes(now.on_demand_bytes),
        bytes(now.prefetch_bytes),
        bytes(now.eviction_bytes),
        summary(r)
    );
    let cut = |line: &str| line.chars().take(usize::from(columns)).collect::<String>();
    let lines: Vec<String> = text.lines().take(usize::from(rows.saturating_sub(1))).map(cut).collect();
    // Each line over the old one and then the rest away: nothing flickers.
    let end = "\x1b[K\r\n";
    format!("\x1b[H{}{end}\x1b[J", lines.join(end))
}

/// What was and was not watched of the beginning.
pub(super) fn blind_words(blind: &Blind) -> String {
    let ns = |d: Duration| duration_ns(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    match (blind.late_by, blind.from_start) {
        (Some(late), true) => {
            format!(
                "not watched: its first {}, of which at most {} with UVM open",
                ns(blind.before),
                ns(late)
            )
        }
        (Some(late), false) => format!("attached at most {} after it opened UVM", ns(late)),
        (None, true) => {
            format!(
                "not watched: its first {}; for how long UVM was open then is not known",
                ns(blind.before)
            )
        }
        (None, false) => "UVM was open already: what happened before is not counted".to_owned(),
    }
}

/// The whole report as text.
pub(super) fn summary(r: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_summary(&mut out, r);
    out
}

fn write_summary(out: &mut String, r: &Report) -> std::fmt::Result {
    let t = &r.tally;
    writeln!(out, "{TITLE}")?;
    let seen = t.entries + r.dropped_total();
    let layout = if r.layout == Layout::V2 { "V2" } else { "V1" };
    writeln!(
        out,
        "pid {}  {}   source: driver event queue {layout} (driver {})   dropped {} of {}",
        r.pid,
        r.comm,
        r.driver,
        count(r.dropped_total()),
        count(seen)
    )?;
    let state = if r.ended { "the process ended" } else { "the process goes on" };
    writeln!(out, "watched {:.1} s, {state}; {}", r.watched.as_secs_f64(), blind_words(&r.blind))?;
    if let (Some(on), Some(share)) = (r.on, r.share()) {
        writeln!(
            out,
            "SAMPLED  events were on for {:.2} s of it ({:.1} %). Below is what came then; x {:.0} is a low estimate of the \
             whole, since the program pages more slowly while they are on. All of it, at a cost: --exact",
            on.as_secs_f64(),
            share * 100.0,
            1.0 / share
        )?;
    }
    for g in r.gpus.iter().filter(|g| t.gpus.contains_key(&g.processor)) {
        let model = g.model.as_deref().unwrap_or("model unknown");
        let pci = g.pci.as_deref().unwrap_or("PCI address unknown");
        writeln!(out, " {}  {model}  {pci}  {}", r.name(g.processor), g.uuid)?;
    }
    faults(out, r)?;
    moves(out, r)?;
    rare(out, r)?;
    heat(out, &t.heat.spans(3, 48))?;
    writeln!(
        out,
        " time in fault service   cannot tell from this source (it needs eBPF on nvidia_uvm)\n \
         evictions               bytes above; how many: cannot tell, this driver sends no eviction event"
    )?;
    if !r.complete {
        writeln!(
            out,
            " INCOMPLETE  the driver did not flush at the end: the newest migrations may be missing"
        )?;
    }
    for (name, n) in &r.dropped {
        writeln!(out, " DROPPED  {} {name} events: the queue was full. A larger one: --entries", count(*n))?;
    }
    if r.undecoded > 0 {
        writeln!(out, " DROPPED  {} entries of no known type", count(r.undecoded))?;
    }
    for hint in hints(r) {
        writeln!(out, "HINT  {hint}")?;
    }
    Ok(())
}

fn faults(out: &mut String, r: &Report) -> std::fmt::Result {
    let t = &r.tally;
    if r.watches(kind::GPU_FAULT) {
        let per = t.gpu_total().checked_div(t.batches()).unwrap_or(0);
        writeln!(
            out,
            " GPU page faults   {:>10}   in {} batches ({per} per batch), those the driver merged counted too",
            count(t.gpu_total()),
            count(t.batches()),
        )?;
        for (gpu, g) in &t.gpus {
            let access: Vec<String> =
                g.faults.iter().map(|(a, n)| format!("{} {}", a.word(), count(*n))).collect();
            writeln!(out, "   {:<15} {:>10}   {}", r.name(*gpu), count(g.total()), access.join(", "))?;
        }
    } else {
        writeln!(
            out,
            " GPU page faults   not watched one by one (--events): {} batches",
            count(t.batches())
        )?;
    }
    if r.watches(kind::CPU_FAULT) {
        let access: Vec<String> =
            t.cpu_faults.iter().map(|(a, n)| format!("{} {}", a.word(), count(*n))).collect();
        let line = format!(" CPU page faults   {:>10}   {}", count(t.cpu_total()), access.join(", "));
        writeln!(out, "{}", line.trim_end())?;
    }
    let fatal = if r.watches(kind::FATAL) { count(t.fatal_total()) } else { "not watched".to_owned() };
    writeln!(out, " replays           {:>10}   fatal {fatal}", count(t.replays()))
}

fn moves(out: &mut String, r: &Report) -> std::fmt::Result {
    if !r.watches(kind::MIGRATION) {
        return writeln!(out, " moved             not watched (--events)");
    }
    let total = r.tally.moved_total();
    let way = r.tally.by_direction();
    let parts: Vec<String> = [
        (Direction::ToGpu, "to the GPU"),
        (Direction::ToCpu, "back"),
        (Direction::Peer, "between GPUs"),
        (Direction::Host, "between NUMA nodes"),
    ]
    .iter()
    .filter_map(|(d, words)| way.get(d).map(|m| format!("{} {words}", bytes(m.bytes))))
    .collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" = {}", parts.join(" + ")) };
    let migrations = count(total.count);
    writeln!(out, " moved             {:>10}{parts}   {migrations} migrations", bytes(total.bytes))?;
    let causes = r.tally.by_cause();
    let always = [Cause::OnDemand, Cause::Prefetch, Cause::Eviction];
    let others = causes.keys().copied().filter(|c| !always.contains(c));
    for cause in always.into_iter().chain(others) {
        let moved = causes.get(&cause).copied().unwrap_or_default();
        writeln!(out, "{}", cause_line(cause, moved, total.bytes, r.on.is_some()))?;
    }
    Ok(())
}

fn cause_line(cause: Cause, moved: Moved, total: u64, sampled: bool) -> String {
    let share = if total == 0 { 0.0 } else { moved.bytes as f64 / total as f64 };
    let words = match cause {
        Cause::OnDemand => "on demand",
        Cause::Prefetch => "driver prefetch",
        Cause::Eviction => "UVM eviction",
        Cause::User => "asked by program",
        Cause::AccessCounters => "access counters",
        Cause::Other(_) => "other",
    };
    if cause == Cause::Eviction && moved.bytes == 0 {
        let what = if sampled { "none while events were on" } else { "GPU memory was never short" };
        return format!("   {words:<16} {:>9}         {what}", "0 B");
    }
    let bar = "#".repeat((share * 34.0).round() as usize);
    format!("   {words:<16} {:>9}  {:>3.0} %  {bar}", bytes(moved.bytes), share * 100.0).trim_end().to_owned()
}

fn rare(out: &mut String, r: &Report) -> std::fmt::Result {
    let t = &r.tally;
    if t.thrashing > 0 || t.throttled.0 > 0 {
        writeln!(
            out,
            " thrashing         {:>10}   ranges marked; processors held back {} times, {} in all",
            count(t.thrashing),
            count(t.throttled.0),
            duration_ns(t.throttled.1)
        )?;
    }
    if t.mapped_remote.count > 0 {
        let (n, b) = (count(t.mapped_remote.count), bytes(t.mapped_remote.bytes));
        writeln!(out, " mapped from afar  {n:>10}   ranges, {b}")?;
    }
    if t.read_duplicated.count > 0 {
        let (n, b) = (count(t.read_duplicated.count), bytes(t.read_duplicated.bytes));
        writeln!(out, " read-duplicated   {n:>10}   ranges, {b}")?;
    }
    for ((processor, reason), n) in &t.fatal {
        writeln!(out, " FATAL             {:>10}   on {}: {}", count(*n), r.name(*processor), reason.word())?;
    }
    if let Some(f) = &t.last_fatal {
        writeln!(
            out,
            "   newest: {} at 0x{:x} by {}. The driver ends the channel; look for the Xid: glake events",
            f.access.word(),
            f.address,
            r.name(f.processor)
        )?;
    }
    Ok(())
}

fn heat(out: &mut String, spans: &[Span]) -> std::fmt::Result {
    let hottest = spans.iter().flat_map(|s| s.faults.iter()).max().copied().unwrap_or(0);
    if hottest == 0 {
        return Ok(());
    }
    for (i, span) in spans.iter().enumerate() {
        let cells: String = span.faults.iter().map(|n| heat_cell(*n, hottest)).collect();
        let end = span.start.saturating_add(span.cell.saturating_mul(span.faults.len() as u64));
        let head = if i == 0 { " address heat " } else { "              " };
        writeln!(out, "{head} 0x{:x} {cells} 0x{end:x}   (cell {})", span.start, bytes(span.cell))?;
    }
    let half = count(hottest.div_ceil(2));
    writeln!(
        out,
        "               # at least {half} faults in a cell, + at least {}, . fewer, space none",
        count(hottest.div_ceil(8))
    )
}

fn heat_cell(n: u64, hottest: u64) -> char {
    match n {
        0 => ' ',
        n if n >= hottest.div_ceil(2) => '#',
        n if n >= hottest.div_ceil(8) => '+',
        _ => '.',
    }
}

/// Advice that follows from the numbers alone. No effect is promised: none was measured here.
pub(super) fn hints(r: &Report) -> Vec<String> {
    let t = &r.tally;
    let total = t.moved_total().bytes;
    let way = t.by_direction();
    let moved = |d| way.get(&d).copied().unwrap_or_default().bytes;
    let causes = t.by_cause();
    let cause = |c| causes.get(&c).copied().unwrap_or_default().bytes;
    let mut out = Vec::new();
    if total == 0 {
        return out;
    }
    let share = |n: u64| n as f64 / total as f64 * 100.0;
    if cause(Cause::Eviction) > 0 {
        out.push(format!(
            "{:.0} % was pushed out of GPU memory: the managed memory in use does not fit. Touch it in order and \
             prefetch, or set cudaMemAdviseSetPreferredLocation for what is touched at random.",
            share(cause(Cause::Eviction))
        ));
    } else if moved(Direction::ToGpu) > 0 && moved(Direction::ToCpu) * 4 > moved(Direction::ToGpu) {
        out.push(
            "the same memory goes to the GPU and back while GPU memory is not short: CPU and GPU take turns on it. \
             Explicit copies, or one side working on it, avoid that."
                .to_owned(),
        );
    }
    let guessed = share(cause(Cause::Prefetch));
    if t.gpu_total() > 0 && guessed >= 50.0 {
        out.push(format!(
            "{guessed:.0} % came by the driver's own prefetch and {:.0} % still faulted: cudaMemPrefetchAsync before \
             the kernel is worth a try (its effect is not measured here).",
            share(cause(Cause::OnDemand))
        ));
    }
    out
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
