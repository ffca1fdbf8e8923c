//! One line of the kernel log about a GPU or NVSwitch. Pure and total.
//!
//! Spellings read from the driver's sources, branch 580: `kernel_rc.c` (Xid, GPU UUID), `osinit.c` and `osapi.c`
//! (fallen off the bus), `common_nvswitch.h` (SXid); older ones from public logs.

use crate::pci;
use serde::{Deserialize, Serialize};

/// An Xid or SXid line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// As sysfs spells it.
    pub pci: String,
    /// An NVSwitch's SXid.
    pub nvswitch: bool,
    /// The code.
    pub code: u32,
    /// The process as the driver names it: the pid in the initial namespace. `None`: not told or `<unknown>`.
    pub pid: Option<u32>,
    /// Its name, at most 15 bytes as the kernel keeps it. `None`: not told or `<unknown>`.
    pub name: Option<String>,
    /// MIG: GPU instance.
    pub gpu_instance: Option<u32>,
    /// MIG: compute instance.
    pub compute_instance: Option<u32>,
    /// An earlier code the driver names as the cause (45 does).
    pub caused_by: Option<u32>,
    /// The rest of the driver's text.
    pub message: String,
}

/// What one line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// An Xid or SXid.
    Report(Report),
    /// The UUID of a GPU, printed once before its first Xid.
    Uuid {
        /// As sysfs spells it.
        pci: String,
        /// `GPU-...`.
        uuid: String,
    },
    /// A GPU fell off the bus; said on one line, without a code.
    FellOff {
        /// As sysfs spells it.
        pci: String,
    },
    /// First of three lines about a GPU that fell off the bus.
    FellOffFirst {
        /// As sysfs spells it.
        pci: String,
    },
    /// Last of the three: it does not say which GPU.
    FellOffLast,
}

/// Reads the text of a kernel log line, with or without a prefix of time and level. `None`: about something else.
pub fn line(text: &str) -> Option<Line> {
    if let Some(rest) = after(text, "NVRM: ") {
        return nvrm(rest.trim_end());
    }
    // "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 12028, Non-fatal, Link 32 ..."
    let switch = after(text, "nvidia-nvswitch")?;
    let (_, rest) = switch.split_once(": ")?;
    report(rest.trim_end(), "SXid (", true).map(Line::Report)
}

fn nvrm(rest: &str) -> Option<Line> {
    if let Some(found) = report(rest, "Xid (", false) {
        return Some(Line::Report(found));
    }
    if let Some(rest) = rest.strip_prefix("GPU at PCI:").or_else(|| rest.strip_prefix("GPU at ")) {
        // "GPU at PCI:0000:3b:00: GPU-5c1e..." or "GPU at 0000:3b:00.0 has fallen off the bus."
        if let Some((address, uuid)) = rest.split_once(": ").filter(|(_, u)| u.starts_with("GPU-")) {
            return Some(Line::Uuid { pci: pci::sysfs(address)?, uuid: uuid.trim().to_owned() });
        }
    }
    if rest.starts_with("fallen off the bus") {
        return Some(Line::FellOffLast);
    }
    if let Some(address) = rest.strip_prefix("The NVIDIA GPU ") {
        let (address, more) = address.split_once(' ').unwrap_or((address, ""));
        let pci = pci::sysfs(address)?;
        // Older drivers print it on one line, and other lines of three begin the same way.
        return Some(if more.contains("fallen off the bus") {
            Line::FellOff { pci }
        } else {
            Line::FellOffFirst { pci }
        });
    }
    if rest.contains("fallen off the bus") {
        let pci = rest.split_whitespace().find_map(|w| pci::sysfs(w.trim_end_matches([':', ',', '.'])))?;
        return Some(Line::FellOff { pci });
    }
    None
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.find(mark).map(|at| &text[at + mark.len()..])
}

fn report(rest: &str, head: &str, nvswitch: bool) -> Option<Report> {
    let rest = rest.strip_prefix(head)?;
    // "PCI:0000:3b:00): 31, ..." or "PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 31, ..."
    let (place, rest) = rest.split_once("):")?;
    let mut words = place.split_whitespace();
    let address = words.next()?;
    let mut found = Report { pci: pci::sysfs(address)?, nvswitch, ..Report::default() };
    for word in words {
        let number = |prefix: &str| word.strip_prefix(prefix).and_then(|n| n.parse().ok());
        found.gpu_instance = number("GPU-I:").or(found.gpu_instance);
        found.compute_instance = number("GPU-CI:").or(found.compute_instance);
    }
    let rest = rest.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    found.code = rest[..digits].parse().ok()?;
    let rest = rest[digits..].trim_start_matches([',', ' ']);
    details(&mut found, rest);
    Some(found)
}

/// Takes process and cause out of the text after the code. Also of use on the trace point's text, which has neither.
pub fn details(found: &mut Report, text: &str) {
    let mut rest = text;
    if let Some(value) = rest.strip_prefix("pid=") {
        let (pid, more) = value.split_once(',').unwrap_or((value, ""));
        found.pid = pid.trim_matches(['\'', ' ']).parse().ok().filter(|p| *p > 0);
        rest = more.trim_start();
    }
    if let Some(value) = rest.strip_prefix("name=") {
        // A name may hold commas itself; the driver puts ", " after it.
        let (name, more) = value.split_once(", ").unwrap_or((value, ""));
        let name = name.trim_matches('\'').trim();
        found.name = (!matches!(name, "" | "<unknown>")).then(|| name.to_owned());
        rest = more;
    }
    if let Some(code) = after(rest, "caused by previous Xid ") {
        let digits = code.find(|c: char| !c.is_ascii_digit()).unwrap_or(code.len());
        found.caused_by = code[..digits].parse().ok();
    }
    rest.trim().clone_into(&mut found.message);
}

/// What the text of an Xid 31 says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MmuFault {
    /// The faulting address.
    pub address: Option<u64>,
    /// `GRAPHICS GPC3 GPCCLIENT_T1_4`: engine and client in the driver's words.
    pub engine: Option<String>,
    /// `FAULT_PDE`.
    pub fault: Option<String>,
    /// `read`, `write`, `atomic`, `prefetch`, or the driver's word.
    pub access: Option<String>,
}

/// Stands at the end of a text that was cut, so that its last word is not taken for a whole one.
pub const CUT: char = '\u{2026}';

/// Reads an MMU fault's text. `None`: the text is about something else.
pub fn mmu_fault(message: &str) -> Option<MmuFault> {
    let rest = after(message, "MMU Fault: ENGINE ").or_else(|| after(message, "MMU fault: ENGINE "))?;
    let mut found = MmuFault::default();
    let (engine, rest) = rest.split_once(" faulted @ ").unwrap_or((rest, ""));
    found.engine = (!engine.is_empty()).then(|| engine.trim().to_owned());
    // "0x7f3a_1c200000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ": high part, underscore, 8 low digits.
    let end = rest.find(['.', ' ', ',', CUT]).unwrap_or(rest.len());
    found.address = address(&rest[..end]);
    if let Some(kind) = after(rest, "Fault is of type ") {
        let mut words = kind.split_whitespace().filter(|w| !w.ends_with(CUT));
        found.fault = words.next().map(|w| w.trim_end_matches(['.', ',']).to_owned());
        found.access = words.next().map(access);
    }
    Some(found)
}

fn address(text: &str) -> Option<u64> {
    let text = text.strip_prefix("0x")?;
    let joined = match text.split_once('_') {
        Some((high, low)) => format!("{high}{low:0>8}"),
        None => text.to_owned(),
    };
    let plain = joined.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(&joined, 16).ok())?
}

fn access(word: &str) -> String {
    let word = word.trim_end_matches(['.', ',']);
    let short = word.strip_prefix("ACCESS_TYPE_").unwrap_or(word);
    let short = short.strip_prefix("VIRT_").or_else(|| short.strip_prefix("PHYS_")).unwrap_or(short);
    match short {
        "READ" => "read".to_owned(),
        "WRITE" => "write".to_owned(),
        "PREFETCH" => "prefetch".to_owned(),
        s if s.starts_with("ATOMIC") => "atomic".to_owned(),
        _ => word.to_owned(),
    }
}

/// An exception of one SM, as a 13 tells it: `Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmException {
    /// `GPC 9, TPC 1, SM 1`.
    pub place: String,
    /// `Out Of Range Address`.
    pub words: String,
    /// Of a warp; the SM as a whole only says that there were several.
    pub of_a_warp: bool,
}

/// The SM exception in a message. `None`: it tells none.
pub fn sm_exception(message: &str) -> Option<SmException> {
    let (head, rest) = after(message, "Graphics SM ")?.split_once(" Exception on (")?;
    let (place, words) = rest.split_once("): ")?;
    let short = |text: &str| text.chars().take(60).collect::<String>();
    Some(SmException { place: short(place), words: short(words.trim()), of_a_warp: head == "Warp" })
}

/// The place in memory that a memory error's text names: `FBPA 9 subpartition 1`, `partition 9, subpartition 1`. Of the same
/// spelling for every code, so that places can be compared. `None`: not told.
pub fn memory_site(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let number = |mark: &str| {
        let at = lower.match_indices(mark).map(|(at, _)| at);
        // "subpartition" ends in "partition" too.
        let at = at.into_iter().find(|at| !lower[..*at].ends_with("sub"))?;
        let rest = lower[at + mark.len()..].trim_start_matches([' ', ':', '=', '(']);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse::<u32>().ok()
    };
    let partition = number("fbpa").or_else(|| number("partition"))?;
    let sub = number("subpartition").map_or(String::new(), |sub| format!(" subpartition {sub}"));
    Some(format!("FBPA {partition}{sub}"))
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
