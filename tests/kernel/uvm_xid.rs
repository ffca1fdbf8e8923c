//! What the agent says of the seconds before an Xid, in a guest where those seconds really happened: pages of managed
//! memory, a drive at its limit. Only the report itself is a line written into the kernel log.

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::{
    lab::{Guest, Kernel, Outcome},
    readings::equal,
    uvm_probes::pid,
};

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    if !kernel.version.starts_with("6.12.") {
        return Vec::new();
    }
    let arguments = ["--uvm", "550", "--numa", "--disk", "serial=slow,size=64,iops=20"];
    let guest = Guest::new(kernel, "uvm_xid.sh", &arguments);
    vec![
        guest.test("Xid: the record names the process of the kernel-log line", who),
        guest.test("Xid: the record tells what that process paged in the seconds before", paged),
        guest.test("Xid: the record tells of a drive that was slower than usual", slow_drive),
        guest.test("Xid: what was looked for and not seen is said", not_seen),
    ]
}

fn record(guest: &Outcome) -> Result<Value, Failed> {
    guest.json("record")
}

/// The facts of one family as text.
fn before(guest: &Outcome, family: &str) -> Result<Vec<String>, Failed> {
    let record = record(guest)?;
    let facts = record["before"].as_array().cloned().unwrap_or_default();
    let of_family = facts.iter().filter(|f| f["family"] == family);
    Ok(of_family.filter_map(|f| f["text"].as_str().map(str::to_owned)).collect())
}

fn who(guest: &Outcome) -> Result<(), Failed> {
    let record = record(guest)?;
    equal("code", record["code"].as_u64(), Some(31))?;
    equal("pid", record["who"]["pid"].as_u64(), Some(pid(guest, "work.txt")?.into()))?;
    equal("name", record["who"]["name"].as_str(), Some("uvmload"))
}

/// The fact that begins with these words, and its number per second in what it is counted in.
fn told(facts: &[String], words: &str) -> Result<(f64, String), Failed> {
    let found = facts.iter().find(|text| text.starts_with(words));
    let text = found.ok_or_else(|| Failed::from(format!("no {words:?} in {facts:?}")))?;
    let rest = text[words.len()..].trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let number = rest[..digits].parse().map_err(|e| format!("{text}: {e}"))?;
    Ok((number, text.clone()))
}

fn paged(guest: &Outcome) -> Result<(), Failed> {
    let facts = before(guest, "uvm")?;
    let (rate, text) = told(&facts, "GPU page faults of uvmload")?;
    // 20,000 in one interval of a second, or in two where the load fell on a border; a slow machine has longer ones.
    if !(2_000.0..=40_000.0).contains(&rate) || !text.contains("/s (usually ") {
        return Err(text.into());
    }
    // 200 and 160 migrations of 64 KiB.
    for words in ["page migration of uvmload", "UVM eviction of uvmload"] {
        let (_, text) = told(&facts, words)?;
        if !text.contains(" MB/s (usually ") {
            return Err(text.into());
        }
    }
    Ok(())
}

fn slow_drive(guest: &Outcome) -> Result<(), Failed> {
    let (record, controller) = (record(guest)?, guest.text("controller.txt")?);
    let facts = record["before"].as_array().cloned().unwrap_or_default();
    let of_drive = |f: &&Value| f["family"] == "nvme" && f["device"] == controller.trim();
    let fact = facts.iter().find(of_drive).ok_or_else(|| Failed::from(format!("no drive in {facts:?}")))?;
    let text = fact["text"].as_str().unwrap_or_default();
    // 20 reads a second and four at a time: 200 ms each.
    if text.starts_with("read p99 ") && text.contains("ms (usually ") { Ok(()) } else { Err(text.into()) }
}

fn not_seen(guest: &Outcome) -> Result<(), Failed> {
    let record = record(guest)?;
    let said = record["not_seen"].to_string();
    if said.contains("PCIe AER reports: none in the 10 s before") && !said.contains("NVMe") {
        Ok(())
    } else {
        Err(said.into())
    }
}
