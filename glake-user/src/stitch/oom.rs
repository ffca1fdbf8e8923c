//! What an out-of-memory message says, and what follows from its numbers. Pure.
//!
//! Every printed number is known to half of its last digit: a verdict is given only where it holds for every value
//! the digits allow.

mod parse;

#[cfg(test)]
mod tests;

pub use parse::{Conf, Message, Peaks, Vendor, parse, peaks};

/// A number of bytes with what the printed digits leave open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantity {
    /// Bytes, as printed.
    pub bytes: f64,
    /// It may be this much more or less.
    pub half: f64,
}

impl Quantity {
    /// Exactly so many bytes.
    pub const ZERO: Quantity = Quantity { bytes: 0.0, half: 0.0 };

    fn low(self) -> f64 {
        self.bytes - self.half
    }

    fn high(self) -> f64 {
        self.bytes + self.half
    }

    fn plus(self, other: Quantity) -> Quantity {
        Quantity { bytes: self.bytes + other.bytes, half: self.half + other.half }
    }

    fn minus(self, other: Quantity) -> Quantity {
        Quantity { bytes: self.bytes - other.bytes, half: self.half + other.half }
    }

    /// Never below zero.
    fn floored(self) -> Quantity {
        Quantity { bytes: self.bytes.max(0.0), ..self }
    }

    /// Whole bytes, for JSON.
    pub fn whole(self) -> i64 {
        self.bytes.round() as i64
    }
}

/// With two decimals, as torch prints: the digits a reader can find again in the message.
impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.bytes.abs();
        if size >= f64::from(1 << 30) * 0.1 {
            write!(f, "{:.2} GiB", self.bytes / f64::from(1 << 30))
        } else if size >= f64::from(1 << 20) * 0.1 {
            write!(f, "{:.2} MiB", self.bytes / f64::from(1 << 20))
        } else {
            write!(f, "{:.0} bytes", self.bytes)
        }
    }
}

/// The cause, as far as the numbers tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// More than the card, or the process's limit, holds.
    Impossible,
    /// The driver had enough free memory: the allocator's layout is not the cause.
    NotFragmentation,
    /// Enough memory was idle, but not in one piece.
    Stitchable,
    /// All idle memory together would not have been enough.
    ShortEvenStitched,
    /// The printed digits, or the numbers given, do not decide it.
    CannotTell,
}

impl Verdict {
    /// The name in JSON and in text.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Impossible => "impossible",
            Verdict::NotFragmentation => "not-fragmentation",
            Verdict::Stitchable => "stitchable",
            Verdict::ShortEvenStitched => "short-even-stitched",
            Verdict::CannotTell => "cannot-tell",
        }
    }
}

/// A message, explained.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// What was read.
    pub message: Message,
    /// The cause.
    pub verdict: Verdict,
    /// Memory left over if all idle memory could be joined.
    pub spare: Option<Quantity>,
    /// Memory missing even then.
    pub missing: Option<Quantity>,
    /// Memory on the card that is not PyTorch's: contexts and other processes.
    pub other: Option<Quantity>,
    /// Free at the driver for this process: less than the card's where a limit is set.
    pub usable: Option<Quantity>,
    /// The cause in one sentence.
    pub summary: String,
    /// What to try, cheapest first.
    pub remedies: Vec<String>,
}

/// Explains one message.
pub fn explain(message: &Message) -> Explanation {
    let usable = usable(message);
    let idle = message.idle;
    let total = usable.zip(idle).map(|(f, c)| f.plus(c));
    let verdict = judge(message, usable, total);
    let (spare, missing) = balance(message, verdict, usable, total);
    let mut out = Explanation {
        message: message.clone(),
        verdict,
        spare,
        missing,
        other: other(message),
        usable,
        summary: String::new(),
        remedies: Vec::new(),
    };
    out.summary = summary(&out, total);
    out.remedies = remedies(&out);
    out
}

/// Free memory this process may take: a limit (`set_per_process_memory_fraction`) counts before the card's own.
fn usable(m: &Message) -> Option<Quantity> {
    let Some(limit) = m.limit else { return m.free };
    let held = m.allocated?.plus(m.idle?);
    let below = limit.minus(held).floored();
    match m.free {
        Some(free) if free.bytes < below.bytes => Some(free),
        _ => Some(below),
    }
}

fn judge(m: &Message, usable: Option<Quantity>, total: Option<Quantity>) -> Verdict {
    let asked = m.requested;
    let most = [m.capacity, m.limit].into_iter().flatten();
    if most.map(Quantity::high).any(|c| asked.low() > c) {
        return Verdict::Impossible;
    }
    let Some(free) = usable else { return Verdict::CannotTell };
    if asked.high() <= free.low() {
        return Verdict::NotFragmentation;
    }
    let Some(total) = total else { return Verdict::CannotTell };
    if asked.low() > total.high() {
        return Verdict::ShortEvenStitched;
    }
    if asked.low() > free.high() && asked.high() <= total.low() {
        return Verdict::Stitchable;
    }
    Verdict::CannotTell
}

fn balance(
    m: &Message,
    verdict: Verdict,
    usable: Option<Quantity>,
    total: Option<Quantity>,
) -> (Option<Quantity>, Option<Quantity>) {
    match verdict {
        Verdict::Impossible => {
            let most = [m.capacity, m.limit].into_iter().flatten().min_by(|a, b| a.bytes.total_cmp(&b.bytes));
            (None, most.map(|c| m.requested.minus(c)))
        }
        Verdict::NotFragmentation => (usable.map(|f| f.minus(m.requested)), None),
        Verdict::Stitchable => (total.map(|t| t.minus(m.requested)), None),
        Verdict::ShortEvenStitched => (None, total.map(|t| m.requested.minus(t))),
        Verdict::CannotTell => (None, None),
    }
}

fn other(m: &Message) -> Option<Quantity> {
    let pytorch = m.allocated?.plus(m.idle?);
    Some(m.capacity?.minus(m.free?).minus(pytorch).floored())
}

fn summary(e: &Explanation, total: Option<Quantity>) -> String {
    let m = &e.message;
    match e.verdict {
        Verdict::Impossible => {
            let limited = m.limit.is_some_and(|l| m.capacity.is_none_or(|c| l.bytes < c.bytes));
            let what = if limited { "this process may use" } else { "the card has" };
            format!("One tensor asks for more than {what}. No allocator can do that.")
        }
        Verdict::NotFragmentation => {
            "The driver had enough free memory. The allocator's layout is not the cause; stitching cannot help."
                .to_string()
        }
        Verdict::Stitchable => match e.spare {
            Some(spare) => format!("The memory was there, but in pieces. Up to {spare} to spare."),
            None => "The memory was there, but in pieces.".to_string(),
        },
        Verdict::ShortEvenStitched => match e.missing {
            Some(missing) => format!("All idle memory joined would still be {missing} short."),
            None => "All idle memory joined would still be too little.".to_string(),
        },
        Verdict::CannotTell => undecided(e, total),
    }
}

fn undecided(e: &Explanation, total: Option<Quantity>) -> String {
    let m = &e.message;
    let Some(total) = total else {
        let mut lacks = Vec::new();
        if e.usable.is_none() {
            lacks.push("how much the driver had free");
        }
        if m.idle.is_none() {
            lacks.push("how much PyTorch held idle");
        }
        return format!("The message does not say {}.", lacks.join(" and "));
    };
    let gap = total.minus(m.requested);
    let (size, side) =
        (Quantity { bytes: gap.bytes.abs(), ..gap }, if gap.bytes < 0.0 { "short" } else { "spare" });
    let rounding = Quantity { bytes: gap.half, half: 0.0 };
    match e.usable {
        Some(free) if m.requested.low() <= free.high() => format!(
            "Asked and free are equal to the printed digits: {} and {free}. Either could be larger.",
            m.requested
        ),
        _ => format!("{size} {side}, which is inside the rounding of the printed numbers (+-{rounding})."),
    }
}

fn remedies(e: &Explanation) -> Vec<String> {
    let m = &e.message;
    let mut out = match e.verdict {
        Verdict::Impossible => vec![
            "Make the tensor smaller: memory-efficient attention (scaled_dot_product_attention), a smaller batch \
             or sequence, chunking."
                .to_string(),
        ],
        Verdict::NotFragmentation => not_fragmentation(),
        Verdict::Stitchable => stitchable(e),
        Verdict::ShortEvenStitched => {
            vec![
                "Hold less: a smaller batch or sequence, activation checkpointing, offload, a smaller dtype."
                    .to_string(),
            ]
        }
        Verdict::CannotTell => vec![
            "Record a snapshot: torch.cuda.memory._record_memory_history(), after the error \
             torch.cuda.memory._dump_snapshot(\"snap.pickle\"), then `glake replay-alloc snap.pickle`."
                .to_string(),
        ],
    };
    if let (Some(limit), Verdict::Impossible | Verdict::ShortEvenStitched) = (m.limit, e.verdict) {
        out.insert(0, format!("Raise the limit of {limit} (torch.cuda.set_per_process_memory_fraction)."));
    }
    if let Some(tenants) = tenants(e) {
        let front = e.verdict != Verdict::Stitchable && e.verdict != Verdict::NotFragmentation;
        out.insert(if front { 0 } else { out.len() }, tenants);
    }
    out
}

/// Other processes on the card, where they hold enough to matter.
fn tenants(e: &Explanation) -> Option<String> {
    let list: Vec<String> =
        e.message.others.iter().map(|(pid, held)| format!("process {pid} {held}")).collect();
    if !list.is_empty() {
        return Some(format!("Free the card: also on it are {}.", list.join(", ")));
    }
    // Under a limit it is the limit that is short, not the card.
    if e.message.limit.is_some() {
        return None;
    }
    // A context takes about half a GiB; twice that is somebody else.
    let other = e.other.filter(|o| o.low() > f64::from(1 << 30))?;
    Some(format!(
        "Look for other processes on the card (nvidia-smi): {other} on it is not PyTorch's of this process."
    ))
}

fn not_fragmentation() -> Vec<String> {
    [
        "Look for another allocation in the same instant: a second process or thread took the memory and gave it back.",
        "Look for a limit around the process: a container's GPU-memory limiter (LD_PRELOAD), a MIG slice, \
         set_per_process_memory_fraction, the commit limit of Windows or WSL.",
        "Run once with CUDA_LAUNCH_BLOCKING=1: a CUDA call that failed earlier may be reported here, late.",
    ]
    .map(str::to_string)
    .to_vec()
}

fn stitchable(e: &Explanation) -> Vec<String> {
    let m = &e.message;
    let empty = if m.allocated.is_some_and(|a| a.high() <= f64::from(1 << 20)) {
        "torch.cuda.empty_cache() before the big allocation: nothing is allocated, so it returns nearly all of it."
    } else {
        "torch.cuda.empty_cache() before the big allocation: returns only segments that are wholly free."
    };
    let name = m.conf.name(m.vendor);
    let expandable = if m.expandable_on {
        "expandable_segments is already on; it gives memory back by 20 MiB handles only.".to_string()
    } else {
        let spelling = match (m.vendor, m.conf) {
            (Vendor::Hip, _) => "   (if your ROCm build supports it)",
            (_, Conf::Unknown) => "   (torch < 2.10: PYTORCH_CUDA_ALLOC_CONF)",
            _ => "",
        };
        format!("{name}=expandable_segments:True{spelling}. Not with vLLM sleep mode or custom all-reduce.")
    };
    let mut out = vec![expandable, empty.to_string()];
    if m.allocated.is_some_and(|a| a.high() <= f64::from(1 << 20)) {
        out.swap(0, 1);
    }
    if m.vendor == Vendor::Cuda {
        out.push(
            "GLake: `glake exec -- <your command>`. First see if it would help: `glake replay-alloc snap.pickle`."
                .to_string(),
        );
    }
    out
}
