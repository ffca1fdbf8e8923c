//! Copies from real NVMe controllers to the host GPU.

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::lab::{Guest, Kernel, Outcome};

/// Bytes of each SSD.
const SIZE: u64 = 64 << 20;

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    let config = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/bad_read.conf");
    let bad = format!("serial=bad,size=64,blkdebug={}", config.display());
    let disks = ["--disk", "serial=good,size=64", "--disk", &bad, "--disk", "serial=slow,size=64,iops=25"];
    let guest = Guest::new(kernel, "copy.sh", &disks);
    vec![
        guest.test("io_uring with registered buffers brings every byte from an NVMe SSD", |g| {
            whole(g, "direct")
        }),
        guest.test("the page cache brings every byte from an NVMe SSD", |g| whole(g, "cached")),
        guest.test("polled completions bring every byte, or the kernel's refusal is said", polled),
        guest.test("a bad sector ends the copy with the place and the kernel's word", broken),
        guest.test("a slow SSD ends the copy at its limit, not later", late),
        guest.test("where io_uring is off the copy goes by pread and says so", without),
    ]
}

/// The answer of a copy that succeeded.
fn answer(guest: &Outcome, name: &str) -> Result<Value, Failed> {
    let code = guest.text(&format!("{name}.code"))?;
    if code.trim() != "0" {
        return Err(format!("exit code {code}: {}", guest.text(&format!("{name}.txt"))?).into());
    }
    guest.json(name)
}

fn whole(guest: &Outcome, name: &str) -> Result<(), Failed> {
    let copied = answer(guest, name)?;
    if copied["bytes"] != SIZE || copied["verified_bytes"] != SIZE {
        return Err(format!("{copied}").into());
    }
    // A copy that quietly went another way would prove nothing.
    let notes = copied["notes"].as_array().map_or(1, Vec::len);
    if notes > 0 { Err(format!("it says: {}", copied["notes"]).into()) } else { Ok(()) }
}

fn polled(guest: &Outcome) -> Result<(), Failed> {
    let polls = guest.text("io_poll.txt")?.trim() == "1";
    if polls {
        return whole(guest, "polled");
    }
    let said = guest.text("polled.txt")?;
    if said.contains("reading 4194304 bytes at") {
        Ok(())
    } else {
        Err(format!("no poll queue, and: {said}").into())
    }
}

fn refused(guest: &Outcome, name: &str, words: &[&str]) -> Result<(), Failed> {
    let (code, said) = (guest.text(&format!("{name}.code"))?, guest.text(&format!("{name}.txt"))?);
    match words.iter().find(|w| !said.contains(**w)) {
        None if code.trim() == "1" => Ok(()),
        missing => Err(format!("exit code {code}, {missing:?} missing in: {said}").into()),
    }
}

fn broken(guest: &Outcome) -> Result<(), Failed> {
    refused(guest, "broken", &["reading", "of /dev/nvme", "-> the disk reports an error: see the kernel log"])
}

fn late(guest: &Outcome) -> Result<(), Failed> {
    refused(guest, "late", &["the time is over"])
}

fn without(guest: &Outcome) -> Result<(), Failed> {
    let copied = answer(guest, "without")?;
    let notes = copied["notes"].to_string();
    if copied["verified_bytes"] != SIZE || !notes.contains("io_uring") || !notes.contains("pread instead") {
        return Err(format!("{copied}").into());
    }
    let explained: Value = guest.json("explained")?;
    let rows = explained["decision"]["rows"].as_array().cloned().unwrap_or_default();
    let disk = rows.iter().find(|r| r["way"] == "disk staging");
    match disk {
        Some(row)
            if row["state"] == "unavailable"
                && row["why"].as_str().is_some_and(|w| w.contains("io_uring")) =>
        {
            Ok(())
        }
        _ => Err(format!("{rows:?}").into()),
    }
}
