//! `glake explain-oom`: what an out-of-memory message says, and what to try.

use std::io::{IsTerminal, Read, Write};

use serde_json::{Value, json};

use super::{exit, out};
use crate::error::{Error, Kind, Result};
use crate::stitch::oom::{self, Explanation, Peaks, Quantity, Verdict};

/// A log is read up to here; the message is near its end, so the rest is the part that counts.
const MOST_TEXT: usize = 64 << 20;

/// Explains a CUDA or ROCm out-of-memory message of PyTorch: the cause with its arithmetic, and what to try.
///
/// The answer is one of: impossible, not-fragmentation, stitchable, short-even-stitched, cannot-tell. Every printed
/// number counts as known to half of its last digit. Needs no GPU and no privilege.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  glake explain-oom < crash.log\n  \
                  glake explain-oom 'CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...'\n  \
                  glake explain-oom --json - < crash.log")]
pub(super) struct Args {
    /// The message; `-` or nothing: read from standard input, where a whole log may come.
    message: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<u8> {
    let text = match args.message.as_deref() {
        Some(text) if text != "-" => text.to_string(),
        _ => from_stdin()?,
    };
    let found: Vec<Explanation> = oom::parse(&text).iter().map(oom::explain).collect();
    let peaks = if found.is_empty() { oom::peaks(&text) } else { None };
    if found.is_empty() && peaks.is_none() {
        return Err(Error::new(Kind::BadInput, "no out-of-memory message found (\"Tried to allocate ...\")")
            .remedy("pass the whole message of torch.OutOfMemoryError, or the log around it"));
    }
    let text = match (args.json, peaks) {
        (true, None) => pretty(&json_of(&found)),
        (true, Some(peaks)) => pretty(&json_of_peaks(peaks)),
        (false, None) => found.iter().map(screen).collect::<Vec<_>>().join("\n"),
        (false, Some(peaks)) => screen_of_peaks(peaks),
    };
    let mut stdout = out::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}

fn from_stdin() -> Result<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        out::say(format_args!("paste the message, then press Ctrl-D"));
    }
    let mut bytes = Vec::new();
    let mut part = [0u8; 1 << 16];
    let mut input = stdin.lock();
    loop {
        let got = input.read(&mut part).map_err(|e| Error::os("reading standard input", e))?;
        if got == 0 {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend_from_slice(&part[..got]);
        if bytes.len() > MOST_TEXT {
            bytes.drain(..bytes.len() - MOST_TEXT / 2);
        }
    }
}

fn screen(e: &Explanation) -> String {
    let m = &e.message;
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(text.trim_end());
        out.push('\n');
    };
    let times = if m.times > 1 { format!("   (the same message {} times)", m.times) } else { String::new() };
    line(format!("{}   {}{times}", e.verdict.name().to_uppercase(), e.summary));
    for text in arithmetic(e) {
        line(format!("  {text}"));
    }
    line("Try, cheapest first".to_string());
    for (i, remedy) in e.remedies.iter().enumerate() {
        line(format!("  {}. {remedy}", i + 1));
    }
    out
}

/// The numbers, so that a reader can add them up again.
fn arithmetic(e: &Explanation) -> Vec<String> {
    let m = &e.message;
    let show = |q: Option<Quantity>| q.map_or("unknown".to_string(), |q| q.to_string());
    let gpu = m.gpu.map_or(String::new(), |g| format!("   GPU {g}"));
    let mut out = vec![format!("asked        {}   in one tensor{gpu}", m.requested)];
    let free = if m.limit.is_some() { "free in limit" } else { "driver free " };
    let mut sum = format!("{free} {}", show(e.usable));
    if let (Some(usable), Some(idle)) = (e.usable, m.idle) {
        let total = Quantity { bytes: usable.bytes + idle.bytes, half: usable.half + idle.half };
        let sign = match e.verdict {
            Verdict::ShortEvenStitched => "<",
            Verdict::CannotTell => "~",
            Verdict::Impossible if total.bytes < m.requested.bytes => "<",
            _ => ">=",
        };
        sum.push_str(&format!("   + idle inside PyTorch {idle} = {total}  {sign} {}", m.requested));
    } else {
        sum.push_str(&format!("   + idle inside PyTorch {}", show(m.idle)));
    }
    out.push(sum);
    let mut rest = format!("allocated    {}", show(m.allocated));
    if let Some(private) = m.private {
        rest.push_str(&format!(" (with {private} in private pools)"));
    }
    if let Some(other) = e.other {
        rest.push_str(&format!("   other memory on the card {other}"));
    }
    rest.push_str(&format!("   capacity {}", show(m.capacity)));
    if let Some(limit) = m.limit {
        rest.push_str(&format!("   limit {limit}"));
    }
    out.push(rest);
    if e.verdict == Verdict::Stitchable {
        if let (Some(usable), Some(idle)) = (e.usable, m.idle) {
            let needed = Quantity { bytes: m.requested.bytes - usable.bytes, half: 0.0 };
            out.push(format!("{needed} of the {idle} idle inside PyTorch would have to be joined."));
        }
        out.push(
            "The sum is an upper bound: free parts below 2 MiB and private pools (CUDA graphs) cannot be joined. \
             A snapshot gives the exact answer."
                .to_string(),
        );
    }
    out
}

fn screen_of_peaks(p: Peaks) -> String {
    format!(
        "CANNOT-TELL   Two peaks and no message: reserved {} is {:.1} x allocated {}.\n  \
         Growing sizes do this: every cached block is too small for the next request. Expandable segments or stitching\n  \
         should bring reserved near the allocated peak; the events prove it, two peaks do not.\n\
         Try, cheapest first\n  1. PYTORCH_ALLOC_CONF=expandable_segments:True   (torch < 2.10: PYTORCH_CUDA_ALLOC_CONF)\n  \
         2. Record a snapshot and see: `glake replay-alloc snap.pickle`\n",
        p.reserved,
        p.reserved.bytes / p.allocated.bytes,
        p.allocated
    )
}

fn json_of(found: &[Explanation]) -> Value {
    let all: Vec<Value> = found.iter().map(json_one).collect();
    // The first message is the cause; later ones are retries and other ranks.
    let mut top = all.first().cloned().unwrap_or_default();
    top["messages"] = json!(all);
    top
}

fn json_one(e: &Explanation) -> Value {
    let m = &e.message;
    let bytes = |q: Option<Quantity>| q.map(Quantity::whole);
    let others: Vec<Value> =
        m.others.iter().map(|(pid, q)| json!({"pid": pid, "used_bytes": q.whole()})).collect();
    json!({
        "verdict": e.verdict.name(),
        "spare_bytes": bytes(e.spare),
        "missing_bytes": bytes(e.missing),
        "rounding_bytes": e.spare.or(e.missing).map(|q| q.half.round() as i64),
        "summary": e.summary,
        "remedies": e.remedies,
        "gpu": m.gpu,
        "requested_bytes": m.requested.whole(),
        "capacity_bytes": bytes(m.capacity),
        "free_bytes": bytes(m.free),
        "allocated_bytes": bytes(m.allocated),
        "reserved_unallocated_bytes": bytes(m.idle),
        "private_pool_bytes": bytes(m.private),
        "limit_bytes": bytes(m.limit),
        "other_bytes": bytes(e.other),
        "other_processes": others,
        "times": m.times,
    })
}

fn json_of_peaks(p: Peaks) -> Value {
    json!({
        "verdict": Verdict::CannotTell.name(),
        "spare_bytes": null,
        "missing_bytes": null,
        "summary": "two peaks and no message: record a snapshot",
        "peak_allocated_bytes": p.allocated.whole(),
        "peak_reserved_bytes": p.reserved.whole(),
        "allocated_to_reserved_ratio": p.allocated.bytes / p.reserved.bytes,
        "messages": [],
    })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
