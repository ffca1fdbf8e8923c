//! A record as people read it: what to do first.

use super::record::{Fact, Record, Who};
use crate::clock::Stamp;
use crate::events::xid::catalogue::{self, Entry};
use crate::units::duration_ns;
use std::fmt::Write;

/// Unix time in ns as `2026-11-30T02:11:37.204Z`.
pub fn time(realtime_ns: u64) -> String {
    let seconds = realtime_ns / 1_000_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days to date: Howard Hinnant's "civil from days", for days since 1970 and so never negative.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", realtime_ns / 1_000_000 % 1000)
}

/// When, in UTC; or as a saved log spells it, where that does not tell its zone, its year or when the host was started.
pub fn when(at: Stamp, log_time: Option<&str>) -> String {
    match log_time {
        _ if at.realtime_ns > 0 => time(at.realtime_ns),
        Some(spelt) => spelt.to_owned(),
        None => "time not told".to_owned(),
    }
}

/// The name of the code: `Xid 31`, `SXid 12028`, or words where the driver gave none.
pub fn code_name(record: &Record) -> String {
    match (record.nvswitch, record.code_told) {
        (true, _) => format!("SXid {}", record.code),
        (false, true) => format!("Xid {}", record.code),
        (false, false) => format!("no code (as Xid {})", record.code),
    }
}

/// A code of the catalogue, on one line or whole.
pub fn entry(entry: &Entry, whole: bool) -> String {
    let head = format!("Xid {:<4} {:<15}  {}", entry.code, entry.action.label(), entry.meaning);
    if !whole {
        return head;
    }
    let mut lines = vec![head, format!("DO NOW     {}", entry.action.sentence())];
    if !entry.note.is_empty() {
        lines.push(format!("NOTE       {}", entry.note));
    }
    if entry.follows == catalogue::ANY {
        lines.push("FOLLOWS    any other code: look at that one".to_owned());
    } else if !entry.follows.is_empty() {
        let codes: Vec<String> = entry.follows.iter().map(u32::to_string).collect();
        lines.push(format!("FOLLOWS    {}: where one of them came before, look at that", codes.join(", ")));
    }
    lines.join("\n")
}

/// One line for a list.
pub fn line(record: &Record) -> String {
    let gpu =
        record.gpu.map_or_else(|| record.pci.clone().unwrap_or_else(|| "?".into()), |g| format!("gpu {g}"));
    let who = record.who.as_ref().map_or_else(|| "-".to_owned(), who_short);
    let n: u64 = record.codes.get(&record.code).map_or(0, |s| s.count());
    let folded: Vec<String> = record.folded().map(|(c, n)| format!("{c} x{n}")).collect();
    let folded = if folded.is_empty() { String::new() } else { format!("  (+ {})", folded.join(", ")) };
    format!(
        "{}  {gpu:<14}  {:<9} x{n:<4}  {:<15}  {who:<28}  {}{folded}",
        when(record.at, record.log_time.as_deref()),
        code_name(record),
        record.action,
        record.meaning
    )
}

fn who_short(who: &Who) -> String {
    let name = who.workload.clone().or_else(|| who.name.clone()).unwrap_or_else(|| "process".into());
    who.pid.map_or(name.clone(), |pid| format!("{name} (pid {pid})"))
}

/// The whole record.
pub fn show(record: &Record) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, record);
    out
}

fn write(out: &mut String, r: &Record) -> std::fmt::Result {
    let gpu = r
        .gpu
        .map_or_else(|| if r.nvswitch { "nvswitch".into() } else { "gpu ?".into() }, |g| format!("gpu {g}"));
    let place = r.pci_bus_id.as_deref().unwrap_or("PCI address not told");
    let uuid = r.uuid.as_deref().unwrap_or("unknown");
    let mig = r.gpu_instance.map_or(String::new(), |i| format!("  GPU instance {i}"));
    writeln!(
        out,
        "{}  {}  {gpu}  UUID {uuid}  {place}{mig}   {}: {}",
        when(r.at, r.log_time.as_deref()),
        r.host,
        code_name(r),
        r.meaning
    )?;
    item(out, "DO NOW", &r.do_now)?;
    item(out, "WHO", &who(r.who.as_ref()))?;
    for (i, text) in what(r).iter().enumerate() {
        item(out, if i == 0 { "WHAT" } else { "" }, text)?;
    }
    let mut before: Vec<String> = r.before.iter().map(|f| fact(f, r)).collect();
    before.push(format!("-0.0 s  {}", reports(r)));
    for (i, text) in before.iter().enumerate() {
        item(out, if i == 0 { "BEFORE" } else { "" }, text)?;
    }
    if !r.history.is_empty() {
        let codes: Vec<String> = r.history.iter().map(|(c, n)| format!("Xid {c} x{n}")).collect();
        item(out, "HISTORY", &format!("this device in the 30 days before: {}", codes.join(", ")))?;
    }
    if let Some(condition) = &r.condition {
        item(out, "HEALTH", &condition.line(r.condition_before.as_ref(), r.at))?;
    }
    list(out, "NOT SEEN", &r.not_seen)?;
    list(out, "CAN'T TELL", &r.cannot_tell)?;
    item(out, "COUNTS", &counts(r))?;
    if let Some(uuid) = &r.uuid {
        let code = r.code;
        item(
            out,
            "JOIN",
            &format!(
                "DCGM_FI_DEV_XID_ERRORS{{UUID=\"{uuid}\"}}   glake_gpu_xid_errors_total{{UUID=\"{uuid}\",xid=\"{code}\"}}"
            ),
        )?;
    }
    Ok(())
}

fn item(out: &mut String, head: &str, text: &str) -> std::fmt::Result {
    writeln!(out, "{head:<11}{text}")
}

fn list(out: &mut String, head: &str, lines: &[String]) -> std::fmt::Result {
    lines.iter().enumerate().try_for_each(|(i, text)| item(out, if i == 0 { head } else { "" }, text))
}

fn who(who: Option<&Who>) -> String {
    let Some(w) = who else { return "unknown: no source names a process".into() };
    let mut parts = Vec::new();
    parts.extend(w.workload.clone());
    parts.extend(w.labels.get("container").map(|c| format!("container {c}")));
    parts.extend(w.pid.map(|p| format!("pid {p} (host)")));
    parts.extend(w.name.as_ref().map(|n| format!("comm {n}")));
    parts.extend(w.cgroup.as_ref().map(|c| format!("cgroup {c}")));
    format!("{}    from: {}, {} later", parts.join(", "), w.source, duration_ns(w.lag_ns))
}

fn what(r: &Record) -> Vec<String> {
    let source = if r.message_source.is_empty() { "the driver" } else { r.message_source.as_str() };
    let mut lines = Vec::new();
    if let Some(m) = &r.mmu {
        let address = m.address.map_or_else(|| "an address not told".into(), |a| format!("0x{a:x}"));
        let access = m.access.as_deref().unwrap_or("access of unknown kind").to_uppercase();
        let rest: Vec<&str> = [m.fault.as_deref(), m.engine.as_deref()].into_iter().flatten().collect();
        lines.push(format!("{access} at {address}, {}    from: {source}", rest.join(", engine ")));
    } else if let Some(sm) = &r.sm {
        let on = match sm.places.len() {
            1 => sm.places.iter().next().cloned().unwrap_or_default(),
            many => format!("{many} SMs"),
        };
        lines.push(format!("{} on {on}    from: {source}", sm.words));
    } else if r.message.is_empty() {
        lines.push(format!("no text    from: {source}"));
    } else {
        lines.push(format!("{}    from: {source}", r.message));
    }
    lines
}

fn reports(r: &Record) -> String {
    let root = r.codes.get(&r.code).map_or(0, |s| s.count());
    let folded: Vec<String> = r.folded().map(|(c, n)| format!("Xid {c} x{n}")).collect();
    let mut text = format!("{} x{root}", code_name(r));
    if !folded.is_empty() {
        text.push_str(&format!("; folded in, they only follow or belong to it: {}", folded.join(", ")));
    }
    let span = r.last.monotonic_ns.saturating_sub(r.at.monotonic_ns);
    if span > 0 {
        text.push_str(&format!("; all within {}", duration_ns(span)));
    }
    text
}

fn fact(f: &Fact, r: &Record) -> String {
    let behind = r.at.monotonic_ns as f64 - f.at.monotonic_ns as f64;
    let sign = if behind >= 0.0 { '-' } else { '+' };
    let device = f.device.as_deref().map_or(String::new(), |d| format!("{d} "));
    let count = if f.count > 1 { format!(" x{}", f.count) } else { String::new() };
    format!("{sign}{:.1} s  {} {device}{}{count}    from: {}", behind.abs() / 1e9, f.family, f.text, f.source)
}

fn counts(r: &Record) -> String {
    let dropped = format!("{} events dropped in this window", r.dropped);
    if r.exact() {
        return format!("exact (trace point). {dropped}");
    }
    let log_only: Vec<String> = r
        .codes
        .iter()
        .filter(|(_, s)| s.exact < s.log || s.exact == 0)
        .map(|(c, s)| format!("{c}: {} in the log, {} by the trace point", s.log, s.exact))
        .collect();
    format!("lower bound: the kernel log is rate-limited ({}). {dropped}", log_only.join("; "))
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
