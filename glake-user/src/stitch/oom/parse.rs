//! Out-of-memory messages as PyTorch has spelled them from 1.0 to 2.11, for CUDA, ROCm and XPU.

use super::Quantity;

/// Whose GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA
    Cuda,
    /// AMD
    Hip,
    /// Intel
    Xpu,
}

/// The name of the settings variable that the message itself uses; it tells the age of torch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conf {
    /// `PYTORCH_ALLOC_CONF`: torch 2.10 and later.
    New,
    /// `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_HIP_ALLOC_CONF`.
    Old,
    /// The message names none.
    Unknown,
}

impl Conf {
    /// The variable to set.
    pub fn name(self, vendor: Vendor) -> &'static str {
        match (self, vendor) {
            (Conf::Old, Vendor::Hip) => "PYTORCH_HIP_ALLOC_CONF",
            (Conf::Old, _) => "PYTORCH_CUDA_ALLOC_CONF",
            _ => "PYTORCH_ALLOC_CONF",
        }
    }
}

/// One message, as numbers. What it does not say is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Bytes asked for.
    pub requested: Quantity,
    /// The card's memory.
    pub capacity: Option<Quantity>,
    /// Free at the driver.
    pub free: Option<Quantity>,
    /// Allocated by PyTorch.
    pub allocated: Option<Quantity>,
    /// Held by PyTorch but not allocated.
    pub idle: Option<Quantity>,
    /// Of the allocated, in private pools (CUDA graphs).
    pub private: Option<Quantity>,
    /// What this process may use.
    pub limit: Option<Quantity>,
    /// In use by this process, with its context.
    pub own: Option<Quantity>,
    /// Other processes on the card.
    pub others: Vec<(u64, Quantity)>,
    /// The GPU's number.
    pub gpu: Option<u32>,
    /// Whose GPU.
    pub vendor: Vendor,
    /// The settings variable the message names.
    pub conf: Conf,
    /// The log shows expandable segments as set.
    pub expandable_on: bool,
    /// How often the same message came.
    pub times: u32,
}

/// Two peaks from `max_memory_allocated` and `max_memory_reserved`, where there is no message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Allocated.
    pub allocated: Quantity,
    /// Reserved.
    pub reserved: Quantity,
}

const START: &str = "tried to allocate";
/// A message is never longer; what follows belongs to something else.
const LONGEST: usize = 4096;

/// Every message in a text: one line, a log, or many logs.
pub fn parse(text: &str) -> Vec<Message> {
    let text = plain(text);
    let lower = text.to_ascii_lowercase();
    let starts: Vec<usize> = lower.match_indices(START).map(|(at, _)| at).collect();
    let expandable_on = set_in_text(&lower);
    let mut out: Vec<Message> = Vec::new();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(lower.len()).min(start.saturating_add(LONGEST));
        let before = &lower[floor(&lower, start.saturating_sub(64))..start];
        let Some(mut message) = one(before, &lower[start..floor(&lower, end)]) else { continue };
        message.expandable_on = expandable_on;
        match out.iter_mut().find(|m| Message { times: message.times, ..(*m).clone() } == message) {
            Some(same) => same.times += 1,
            None => out.push(message),
        }
    }
    out
}

/// The largest char boundary not above `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// Without colours, and every run of white space as one space: log viewers wrap lines.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else if c.is_whitespace() {
            if !out.ends_with(' ') {
                out.push(' ');
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The variable is shown with a value; the advice inside the message ("try setting ...") does not count.
fn set_in_text(lower: &str) -> bool {
    lower.match_indices("expandable_segments:true").any(|(at, _)| {
        let before = &lower[floor(lower, at.saturating_sub(80))..at];
        before.contains("alloc_conf=") && !before.contains("try setting")
    })
}

fn one(before: &str, text: &str) -> Option<Message> {
    let numbers = quantities(text);
    let requested = numbers.first().filter(|n| n.start <= START.len() + 2)?.value;
    let vendor = match before {
        b if b.contains("hip out of memory") => Vendor::Hip,
        b if b.contains("xpu out of memory") => Vendor::Xpu,
        _ => Vendor::Cuda,
    };
    let mut m = Message {
        requested,
        capacity: None,
        free: None,
        allocated: None,
        idle: None,
        private: None,
        limit: None,
        own: None,
        others: Vec::new(),
        gpu: number_after(text, "gpu "),
        vendor,
        conf: conf(text),
        expandable_on: false,
        times: 1,
    };
    let mut reserved = None;
    for (i, number) in numbers.iter().enumerate().skip(1) {
        let from = numbers[i - 1].end;
        let to = numbers.get(i + 1).map_or(text.len(), |n| n.start);
        let (before, after) = (text[from..number.start].trim_end(), text[number.end..to].trim_start());
        classify(&mut m, &mut reserved, number.value, before, after);
    }
    if m.idle.is_none() {
        m.idle = reserved.zip(m.allocated).map(|(r, a): (Quantity, Quantity)| r.minus(a).floored());
    }
    Some(m)
}

/// Which number it is, by the words around it.
fn classify(m: &mut Message, reserved: &mut Option<Quantity>, q: Quantity, before: &str, after: &str) {
    let next = |words: &[&str]| words.iter().any(|w| after.starts_with(w));
    // "capacty" is how PyTorch 2.0 and 2.1 spelled it.
    let capacity = ["capacity of", "capacty of", "capacity", "capacty"].iter().any(|w| before.ends_with(w));
    if capacity || next(&["total capac"]) {
        m.capacity.get_or_insert(q);
    } else if next(&["allowed"]) {
        m.limit.get_or_insert(q);
    } else if next(&["is free", "free"]) {
        m.free.get_or_insert(q);
    } else if next(&["allocated in private pools"]) {
        m.private.get_or_insert(q);
    } else if next(&["already allocated", "is allocated by pytorch", "allocated by pytorch"]) {
        m.allocated.get_or_insert(q);
    } else if next(&["reserved in total"]) {
        reserved.get_or_insert(q);
    } else if next(&[
        "is reserved by pytorch but",
        "reserved by pytorch but",
        "is reserved but",
        "reserved but",
        "cached",
    ]) {
        m.idle.get_or_insert(q);
    } else if next(&["memory in use", "in use"]) {
        process(m, q, before);
    }
}

/// `Process 41 has`, `Including non-PyTorch memory, this process has`.
fn process(m: &mut Message, q: Quantity, before: &str) {
    if before.ends_with("this process has") {
        m.own = Some(q);
        return;
    }
    let clause = before.rsplit(['.', ';']).next().unwrap_or(before);
    match number_after(clause, "process ") {
        Some(pid) => m.others.push((pid.into(), q)),
        None => m.own = m.own.or(Some(q)),
    }
}

fn number_after(text: &str, word: &str) -> Option<u32> {
    let rest = &text[text.find(word)? + word.len()..];
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits].parse().ok()
}

fn conf(text: &str) -> Conf {
    if text.contains("pytorch_alloc_conf") {
        Conf::New
    } else if text.contains("pytorch_cuda_alloc_conf") || text.contains("pytorch_hip_alloc_conf") {
        Conf::Old
    } else {
        Conf::Unknown
    }
}

struct Found {
    value: Quantity,
    start: usize,
    end: usize,
}

/// Every number with a unit of bytes.
fn quantities(text: &str) -> Vec<Found> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && (bytes[at].is_ascii_digit() || matches!(bytes[at], b'.' | b',')) {
            at += 1;
        }
        let digits = text[start..at].trim_end_matches(['.', ',']);
        let attached = start > 0 && (bytes[start - 1].is_ascii_alphanumeric() || bytes[start - 1] == b'_');
        if attached {
            continue;
        }
        if let Some((value, unit)) = quantity(digits, &text[start + digits.len()..]) {
            at = start + digits.len() + unit;
            out.push(Found { value, start, end: at });
        }
    }
    out
}

/// The value, and how many bytes of `rest` its unit takes.
fn quantity(digits: &str, rest: &str) -> Option<(Quantity, usize)> {
    const UNITS: [(&str, f64); 11] = [
        ("bytes", 1.0),
        ("byte", 1.0),
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("tib", 1_099_511_627_776.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("pib", 1_125_899_906_842_624.0),
    ];
    let gap = usize::from(rest.starts_with(' '));
    let word = &rest[gap..];
    let (name, unit) = UNITS.iter().find(|(name, _)| {
        word.strip_prefix(name).is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric()))
    })?;
    let digits = digits.replace(',', "");
    let number: f64 = digits.parse().ok()?;
    let decimals = digits.split_once('.').map_or(0, |(_, d)| d.len());
    let half = if *unit == 1.0 { 0.0 } else { 0.5 * 10f64.powi(-(decimals.min(12) as i32)) * unit };
    number.is_finite().then_some((Quantity { bytes: number * unit, half }, gap + name.len()))
}

/// The peaks `allocated` and `reserved`, where a text names both but holds no message.
pub fn peaks(text: &str) -> Option<Peaks> {
    let text = plain(text).to_ascii_lowercase();
    let found = quantities(&text);
    let mut allocated = None;
    let mut reserved = None;
    for (i, number) in found.iter().enumerate() {
        let from = if i == 0 { 0 } else { found[i - 1].end };
        let before = &text[from..number.start];
        let (a, r) = (before.rfind("allocated"), before.rfind("reserved"));
        match (a, r) {
            (Some(a), r) if r.is_none_or(|r| r < a) => allocated = allocated.or(Some(number.value)),
            (_, Some(_)) => reserved = reserved.or(Some(number.value)),
            _ => {}
        }
    }
    let (allocated, reserved) = (allocated?, reserved?);
    (allocated.bytes > 0.0).then_some(Peaks { allocated, reserved })
}
