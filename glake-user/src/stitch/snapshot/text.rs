//! Traces that are lines of text: RMM's log, STAlloc's trace, MiniMalloc's instances.

use super::entries::{Action, Entry, NO_SITE};
use super::input::Input;
use super::recording::{Coverage, DeviceRecording, Format, Recording};
use crate::error::{Error, Kind, Result};

/// A line longer than this is not from any of these programs.
const LONGEST_LINE: u64 = 64 << 10;

/// Reads any of the three; which one, its first line says.
pub(super) fn read(input: &mut Input, budget: u64) -> Result<Recording> {
    let mut lines = Lines { input, number: 0, text: String::new(), raw: Vec::new(), start: 0 };
    let mut first = lines.next()?;
    while first && (lines.text.trim().is_empty() || lines.text.starts_with('#')) {
        first = lines.next()?;
    }
    let header = lines.text.to_ascii_lowercase().replace(' ', "");
    if !first {
        return Err(lines.bad("expected a trace, found an empty file"));
    }
    if header.starts_with("thread,time,action,pointer,size,stream") {
        return rmm(lines, budget);
    }
    let columns: Vec<&str> = header.split(',').collect();
    if let Some(layout) = MiniLayout::of(&columns) {
        return minimalloc(lines, &layout, budget);
    }
    if header.starts_with("0") || header.starts_with("1") {
        return stalloc(lines, budget);
    }
    Err(lines.bad(format!(
        "expected a PyTorch snapshot, an RMM log (Thread,Time,Action,Pointer,Size,Stream), a STAlloc trace \
         (`1 pointer size stream`) or a MiniMalloc instance (id,lower,upper,size), found {:?}",
        lines.text.chars().take(60).collect::<String>()
    )))
}

struct Lines<'a> {
    input: &'a mut Input,
    number: u64,
    start: u64,
    text: String,
    raw: Vec<u8>,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<bool> {
        self.start = self.input.offset();
        self.number += 1;
        let more = match self.input.line(LONGEST_LINE, &mut self.raw) {
            Ok(more) => more,
            // A packed file cut short: what came before it counts.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => false,
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                return Err(self.bad("a line of more than 64 KiB"));
            }
            Err(e) => return Err(Error::os("reading the trace", e)),
        };
        self.text.clear();
        self.text.push_str(&String::from_utf8_lossy(&self.raw));
        Ok(more)
    }

    fn bad(&self, problem: impl std::fmt::Display) -> Error {
        Error::new(Kind::BadInput, format!("line {} at byte {}: {problem}", self.number, self.start))
            .remedy("PyTorch snapshots, RMM logs, STAlloc traces and MiniMalloc instances are read")
    }
}

/// `0x7f..`, `7f..`, `(nil)`
fn pointer(text: &str) -> Option<u64> {
    let text = text.trim();
    if text == "(nil)" {
        return Some(0);
    }
    u64::from_str_radix(text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text), 16).ok()
}

/// `HH:MM:SS:microseconds`, also with a dot.
fn clock_us(text: &str) -> Option<u64> {
    let mut parts = text.trim().split([':', '.']).map(str::parse::<u64>);
    let mut part = || parts.next()?.ok();
    let (h, m, s, us) = (part()?, part()?, part()?, part()?);
    h.checked_mul(3600)?
        .checked_add(m.checked_mul(60)?)?
        .checked_add(s)?
        .checked_mul(1_000_000)?
        .checked_add(us)
}

fn push(entries: &mut Vec<Entry>, entry: Entry) {
    if entry.action == Action::FreeCompleted {
        entries.push(Entry { action: Action::FreeRequested, ..entry });
    }
    entries.push(entry);
}

fn full(entries: &[Entry], budget: u64) -> bool {
    size_of_val(entries) as u64 > budget
}

fn finish(format: Format, entries: Vec<Entry>, coverage: Coverage) -> Recording {
    let mut out = Recording::empty(format);
    out.coverage = coverage;
    out.devices = vec![DeviceRecording { device: 0, entries, segments: Vec::new() }];
    out
}

fn rmm(mut lines: Lines<'_>, budget: u64) -> Result<Recording> {
    let mut entries = Vec::new();
    let mut failures = 0u64;
    let mut coverage = Coverage::Whole;
    let mut day = 0;
    let mut last = 0;
    while lines.next()? {
        if lines.text.trim().is_empty() {
            continue;
        }
        if full(&entries, budget) {
            coverage = Coverage::OverBudget(lines.start);
            break;
        }
        let fields: Vec<&str> = lines.text.split(',').collect();
        let [_, time, action, ptr, size, stream] = fields[..] else {
            return Err(lines.bad(format!("expected 6 fields, found {}", fields.len())));
        };
        let action = match action.trim().trim_matches('"') {
            "allocate" => Action::Alloc,
            "free" | "deallocate" => Action::FreeCompleted,
            "allocate failure" => {
                failures += 1;
                continue;
            }
            other => return Err(lines.bad(format!("expected allocate or free, found {other:?}"))),
        };
        let (Some(addr), Ok(size), Some(stream)) = (pointer(ptr), size.trim().parse(), pointer(stream))
        else {
            return Err(lines.bad("expected a pointer, a size and a stream"));
        };
        // The log has the time of day only.
        let time_us = clock_us(time).unwrap_or(last);
        if time_us + day + 43_200_000_000 < last {
            day += 86_400_000_000;
        }
        last = last.max(time_us + day);
        push(&mut entries, Entry { action, addr, size, stream, time_us: last, site: NO_SITE });
    }
    let mut out = finish(Format::Rmm, entries, coverage);
    if failures > 0 {
        out.notes.push(format!("{failures} failed allocations in the log: they are not replayed"));
    }
    Ok(out)
}

fn stalloc(mut lines: Lines<'_>, budget: u64) -> Result<Recording> {
    let mut entries = Vec::new();
    let mut coverage = Coverage::Whole;
    let mut other = 0u64;
    let mut more = true;
    while more {
        if full(&entries, budget) {
            coverage = Coverage::OverBudget(lines.start);
            break;
        }
        let fields: Vec<&str> = lines.text.split_whitespace().collect();
        match fields[..] {
            [kind @ ("0" | "1"), ptr, size, stream] => {
                let (Some(addr), Ok(size), Some(stream)) = (pointer(ptr), size.parse(), pointer(stream))
                else {
                    return Err(lines.bad("expected a pointer, a size and a stream"));
                };
                let action = if kind == "1" { Action::Alloc } else { Action::FreeCompleted };
                push(&mut entries, Entry { action, addr, size, stream, time_us: 0, site: NO_SITE });
            }
            [] => {}
            _ if entries.is_empty() => return Err(lines.bad("expected `1 pointer size stream`")),
            _ => other += 1,
        }
        more = lines.next()?;
    }
    let mut out = finish(Format::Stalloc, entries, coverage);
    if other > 0 {
        out.notes.push(format!("{other} lines that are no allocation or free were passed over"));
    }
    Ok(out)
}

/// Which column is which.
struct MiniLayout {
    lower: usize,
    upper: usize,
    size: usize,
}

impl MiniLayout {
    fn of(columns: &[&str]) -> Option<MiniLayout> {
        let at = |names: [&str; 2]| columns.iter().position(|c| names.contains(c));
        Some(MiniLayout {
            lower: at(["lower", "start"])?,
            upper: at(["upper", "end"])?,
            size: at(["size", "size"])?,
        })
    }
}

fn minimalloc(mut lines: Lines<'_>, layout: &MiniLayout, budget: u64) -> Result<Recording> {
    // (time, 0 for free and 1 for alloc, id, size): at the same time frees come first, `upper` is exclusive.
    let mut moments: Vec<(u64, u8, u64, u64)> = Vec::new();
    let mut coverage = Coverage::Whole;
    let mut id = 0;
    while lines.next()? {
        if lines.text.trim().is_empty() {
            continue;
        }
        if (moments.len() * size_of::<Entry>() * 2) as u64 > budget {
            coverage = Coverage::OverBudget(lines.start);
            break;
        }
        let fields: Vec<&str> = lines.text.split(',').map(str::trim).collect();
        let number = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok());
        let (Some(lower), Some(upper), Some(size)) =
            (number(layout.lower), number(layout.upper), number(layout.size))
        else {
            return Err(lines.bad("expected numbers for lower, upper and size"));
        };
        if lower >= upper {
            return Err(lines.bad(format!("expected lower < upper, found {lower} and {upper}")));
        }
        moments.push((lower, 1, id, size));
        moments.push((upper, 0, id, size));
        id += 1;
    }
    moments.sort_unstable();
    let mut entries = Vec::with_capacity(moments.len());
    for (time_us, kind, id, size) in moments {
        let action = if kind == 1 { Action::Alloc } else { Action::FreeCompleted };
        push(&mut entries, Entry { action, addr: id + 1, size, stream: 0, time_us, site: NO_SITE });
    }
    Ok(finish(Format::Minimalloc, entries, coverage))
}
