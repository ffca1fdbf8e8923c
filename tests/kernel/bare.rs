//! Hosts that show little: each probe finds its way or says what is in the way, and what works goes on.

use glake::events::sample::{Operation, ProbeState, Sample};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::lab::{Guest, Kernel, Outcome};
use crate::readings::*;

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    let guest = Guest::new(kernel, "bare.sh", &[]);
    vec![
        guest.test("without tracefs block and NVMe I/O is counted all the same", without_tracefs),
        guest.test("a host without tracefs keeps none: GLake mounts it for itself alone", private_tracefs),
        guest.test("a trace point in use keeps nvme_core loaded, and no longer", held),
        guest.test("a driver that is loaded late is watched from then on", late),
        guest.test(
            "what the kernel's log says of memory corrupted by nvidia_uvm is a finding that pages",
            hurt,
        ),
        guest.test("under lockdown=confidentiality a probe counts in full or names the lockdown", locked),
    ]
}

/// The known load: 50 reads of 4 KiB, 10 writes of 64 KiB.
fn is_counted(guest: &Outcome, from: &str, to: &str, names: &str) -> Result<(), Failed> {
    let (from, to, names) = (guest.sample(from)?, guest.sample(to)?, guest.text(names)?);
    let names: Vec<&str> = names.split_whitespace().collect();
    let block = block_between(&from, &to, names[0], Operation::Read);
    let (reads, writes) = (nvme_between(&from, &to, names[1], 2), nvme_between(&from, &to, names[1], 1));
    let lost = dropped(&to, "nvme", "recursion");
    let near = |(commands, bytes): (u64, u64), n: u64, size: u64| {
        commands <= n && commands + lost >= n && bytes == commands * size
    };
    if block != (50, 50 * 4096) || !near(reads, 50, 4096) || !near(writes, 10, 65536) || lost > 8 {
        return Err(
            format!("block reads {block:?}, NVMe {reads:?} {writes:?}, {lost} counted as lost").into()
        );
    }
    Ok(())
}

fn without_tracefs(guest: &Outcome) -> Result<(), Failed> {
    let sample = guest.sample("end")?;
    for name in ["nvme_setup", "nvme_complete", "nvme_sq", "nvme_async"] {
        let probe = probe(&sample, name);
        if probe.is_none_or(|p| p.state != ProbeState::On || !p.how.contains("raw trace point")) {
            return Err(format!("{name}: {probe:?}").into());
        }
    }
    is_counted(guest, "start", "end", "names.txt")
}

/// A line of the doctor's facts.
fn fact(doctor: &Value, name: &str) -> Value {
    let facts = doctor["facts"].as_array().into_iter().flatten();
    facts.clone().find(|f| f["name"] == name).cloned().unwrap_or_default()
}

fn private_tracefs(guest: &Outcome) -> Result<(), Failed> {
    let doctor: Value = guest.json("no_tracefs")?;
    let tracefs = fact(&doctor, "tracefs");
    if !tracefs["detail"].as_str().unwrap_or_default().contains("for itself alone") {
        return Err(format!("tracefs: {tracefs}").into());
    }
    // Map calls have no other way than a classic trace point.
    let coverage = doctor["coverage"].as_array().into_iter().flatten();
    let iommu = coverage.clone().find(|c| c["family"] == "iommu").ok_or("no line for the IOMMU")?;
    if iommu["state"] != "yes" {
        return Err(format!("IOMMU: {iommu}").into());
    }
    let seen = guest.text("tracing.txt")?;
    if seen.trim().is_empty() { Ok(()) } else { Err(format!("the host's folder holds {seen}").into()) }
}

fn held(guest: &Outcome) -> Result<(), Failed> {
    let held = guest.text("held.txt")?;
    if held.contains("busy") || held.contains("temporarily unavailable") || held.contains("in use") {
        Ok(())
    } else {
        Err(format!("nvme_core under watch: {held:?}").into())
    }
}

fn late(guest: &Outcome) -> Result<(), Failed> {
    let before = guest.sample("without_module")?;
    let waiting = probe(&before, "nvme_complete");
    if waiting.is_none_or(|p| p.state != ProbeState::Off) {
        return Err(format!("before the driver came: {waiting:?}").into());
    }
    is_counted(guest, "late_start", "late_end", "late.txt")
}

/// Case G09, from the kernel's own log to the agent's state.
fn hurt(guest: &Outcome) -> Result<(), Failed> {
    let text = guest.text("hurt.jsonl")?;
    let last = text.lines().last().ok_or("no state was printed")?;
    let state: Value = serde_json::from_str(last)?;
    let found = state["findings"].as_array().cloned().unwrap_or_default();
    let [finding] = found.as_slice() else {
        return Err(format!("findings: {found:?}; the agent said {}", guest.text("hurt.log")?).into());
    };
    let evidence = finding["evidence"].to_string();
    let told = finding["rule"] == "uvm_kernel_memory_corrupted"
        && finding["severity"] == "page"
        && evidence.contains("uvm_hmm_devmem_free in the trace of python3 (pid 41873)");
    if told { Ok(()) } else { Err(format!("{finding}").into()) }
}

/// Case I01: root with every capability.
fn locked(guest: &Outcome) -> Result<(), Failed> {
    let doctor: Value = guest.json("confidentiality")?;
    let lockdown = fact(&doctor, "lockdown");
    if !lockdown.to_string().contains("confidentiality") {
        return Err(format!("lockdown: {lockdown}").into());
    }
    let (from, to) = (guest.sample("locked_start")?, guest.sample("locked_end")?);
    // The way that these need, bpf_probe_read_kernel, is what confidentiality forbids.
    for name in ["nvme_setup", "nvme_complete"] {
        let probe = probe(&to, name).ok_or("no such probe")?;
        let remedy = probe.remedy.as_deref().unwrap_or_default();
        let blamed = remedy.contains("CAP_") || remedy.contains("as root");
        if probe.state != ProbeState::Failed || !remedy.contains("lockdown=integrity") || blamed {
            return Err(format!("{probe:?}").into());
        }
    }
    if to.nvme.is_some() {
        return Err("NVMe numbers without probes".into());
    }
    // Loads through typed pointers are no such way: what is on, counts.
    let on = |s: &Sample| probe(s, "block_complete").is_some_and(|p| p.state == ProbeState::On);
    match (on(&to), &to.block) {
        (false, None) => Ok(()),
        (true, Some(_)) => {
            let names = guest.text("late.txt")?;
            let device = names.split_whitespace().next().unwrap_or_default();
            let counted = block_between(&from, &to, device, Operation::Read);
            if counted == (50, 50 * 4096) { Ok(()) } else { Err(format!("block reads {counted:?}").into()) }
        }
        (on, block) => Err(format!("block_complete on: {on}, block: {block:?}").into()),
    }
}
