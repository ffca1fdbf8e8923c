//! The probes on nvidia_uvm, on the real module of Debian's package, without a GPU. CPU faults and page migrations are
//! real; expected counts are what the load program did and what the driver's own event queue says. GPU faults and the
//! rest are calls of the driver's functions by a test module, with structures of the driver's own headers.

use glake::events::{
    event::{Event, What},
    sample::{ProbeState, Sample, Uvm, UvmSpace},
};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::lab::{Guest, Kernel, Outcome};
use crate::readings::equal;

/// `migrate 4` also fills and reads back four blocks: four writes and four reads more.
pub const WRITES: u64 = 64 + 4;
pub const READS: u64 = 32 + 4;
/// As the test module writes it: a0, a1, ...
const UUID: &str = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf";

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    // The package that has the driver is built against Debian's 6.12 headers.
    if !kernel.version.starts_with("6.12.") {
        return Vec::new();
    }
    let guest = Guest::new(kernel, "uvm_probes.sh", &["--uvm", "550", "--numa"]);
    vec![
        guest.test("nvidia_uvm: every probe is attached, and says by what", attached),
        guest.test("nvidia_uvm: CPU faults and migrations = the load = the driver's own queue", known),
        guest.test("nvidia_uvm: GPU faults by access, migrations by cause, as called", called),
        guest.test("nvidia_uvm: service, batches, replays, evictions of the GPU, as called", of_the_gpu),
        guest.test("nvidia_uvm: fatal faults are events with address and process", fatal),
        guest.test("nvidia_uvm: a process older than the probes is known by its open file", older),
        guest
            .test("nvidia_uvm: unloaded and loaded again while attached, nothing is lost silently", reloaded),
        guest.test("nvidia_uvm: address spaces without room are counted, each once", full),
        guest.test("nvidia_uvm: what cannot be is counted and ends the watch, with its reason", distrusted),
        guest.test("nvidia_uvm: an unknown release is refused by name", refused),
    ]
}

pub fn uvm(guest: &Outcome, name: &str) -> Result<Uvm, Failed> {
    guest.sample(name)?.uvm.ok_or_else(|| format!("{name}: UVM is not watched").into())
}

/// The JSON line of a load that did this.
pub fn line(guest: &Outcome, file: &str, did: &str) -> Result<Value, Failed> {
    let text = guest.text(file)?;
    let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    lines.into_iter().find(|v| v["did"] == did).ok_or_else(|| format!("{file}: no {did}").into())
}

pub fn pid(guest: &Outcome, file: &str) -> Result<u32, Failed> {
    let pid = line(guest, file, "initialize")?["pid"].as_u64();
    pid.and_then(|p| u32::try_from(p).ok()).ok_or_else(|| "no pid".into())
}

/// The spaces of one process.
pub fn of(uvm: &Uvm, pid: u32) -> Vec<&UvmSpace> {
    uvm.spaces.iter().filter(|s| s.tgid == Some(pid)).collect()
}

pub fn moved(spaces: &[&UvmSpace], cause: &str, direction: &str) -> (u64, u64) {
    let all = spaces.iter().flat_map(|s| &s.moved);
    let those = all.filter(|m| m.cause == cause && m.direction == direction);
    those.fold((0, 0), |(n, bytes), m| (n + m.count, bytes + m.bytes))
}

pub fn lost(sample: &Sample) -> u64 {
    sample.dropped.iter().filter(|d| d.source == "uvm").map(|d| d.count).sum()
}

fn attached(guest: &Outcome) -> Result<(), Failed> {
    let sample = guest.sample("before")?;
    let probes: Vec<_> = sample.probes.iter().filter(|p| p.family == "uvm").collect();
    equal("probes", probes.len(), 12)?;
    for probe in probes {
        equal(&format!("{}: {:?}", probe.name, probe.reason), probe.state, ProbeState::On)?;
        let (why, from) = ("not fentry: it would hold the module", "module BTF, driver 550.");
        if !probe.how.contains(why) || !probe.how.contains(from) {
            return Err(probe.how.clone().into());
        }
    }
    Ok(())
}

fn known(guest: &Outcome) -> Result<(), Failed> {
    let (before, sample) = (guest.sample("before")?, guest.sample("known")?);
    let uvm = uvm(guest, "known")?;
    let spaces = of(&uvm, pid(guest, "known.txt")?);
    let faults = spaces.iter().fold([0, 0], |sum, s| [sum[0] + s.cpu_faults[0], sum[1] + s.cpu_faults[1]]);
    equal("reads and writes", faults, [READS, WRITES])?;
    equal("migrations", moved(&spaces, "user", "host"), (8, 8 * (2 << 20)))?;
    // The oracle counted what happened after it was made, which is all of it.
    let oracle = line(guest, "known.txt", "counts")?;
    equal("the queue's CPU faults", oracle["types"]["1"].as_u64(), Some(READS + WRITES))?;
    equal("the queue's migrations", oracle["types"]["2"].as_u64(), Some(8))?;
    equal("the queue's drops", oracle["dropped"].as_u64(), Some(0))?;
    equal("comm", spaces.first().map(|s| s.comm.as_str()), Some("uvmload"))?;
    equal("missed", lost(&sample) - lost(&before), 0)
}

fn called(guest: &Outcome) -> Result<(), Failed> {
    let uvm = uvm(guest, "calls")?;
    let spaces = of(&uvm, pid(guest, "calls.txt")?);
    let sum = |f: fn(&UvmSpace) -> u64| spaces.iter().map(|s| f(s)).sum::<u64>();
    // 1000 calls, access in turn: prefetch, read, write, weak and strong atomic; every tenth a duplicate.
    let access = [
        sum(|s| s.gpu_faults.prefetch),
        sum(|s| s.gpu_faults.read),
        sum(|s| s.gpu_faults.write),
        sum(|s| s.gpu_faults.atomic),
    ];
    equal("faults by access", access, [200, 200, 200, 400])?;
    equal("duplicates", sum(|s| s.duplicates), 100)?;
    for (cause, direction, n) in [
        ("on_demand", "to_gpu", 10),
        ("prefetch", "to_gpu", 20),
        ("access_counters", "to_gpu", 3),
        ("eviction", "to_cpu", 5 + 2),
    ] {
        equal(cause, moved(&spaces, cause, direction), (n, n * 65_536))?;
    }
    equal("thrashing", sum(|s| s.thrashing.unwrap_or(0)), 7)?;
    // Each of the four waits 100 us.
    let throttled = sum(|s| s.throttled_ns.unwrap_or(0));
    if throttled < 400_000 { Err(format!("held back for {throttled} ns").into()) } else { Ok(()) }
}

fn of_the_gpu(guest: &Outcome) -> Result<(), Failed> {
    let uvm = uvm(guest, "calls")?;
    let found: Vec<_> = uvm.gpus.iter().map(|g| g.uuid.as_deref()).collect();
    equal("GPUs", found, vec![Some(UUID)])?;
    let gpu = &uvm.gpus[0];
    equal("replays", gpu.replays, Some(9))?;
    equal("evictions", gpu.evictions, Some(3 + 2))?;
    let lost = of(&uvm, pid(guest, "calls.txt")?).iter().map(|s| s.evictions.unwrap_or(0)).sum::<u64>();
    equal("evictions of chunks with pages of this process", lost, 2)?;
    equal("runs of the service", gpu.service.as_ref().map(|h| h.count()), Some(6))?;
    // Batches of 1, 2, ... 40 faults.
    equal("faults in batches", gpu.batched_faults, Some(40 * 41 / 2))?;
    equal("batches by size", gpu.batches.clone(), Some(vec![1, 1, 2, 4, 8, 16, 8]))?;
    // A replay told which number is whose.
    let spaces = of(&uvm, pid(guest, "calls.txt")?);
    let numbered = spaces.iter().filter(|s| s.processor == 1);
    equal("UUID of the faults", numbered.map(|s| s.uuid.as_deref()).collect(), vec![Some(UUID)])
}

fn fatal(guest: &Outcome) -> Result<(), Failed> {
    let uvm = uvm(guest, "calls")?;
    let pid = pid(guest, "calls.txt")?;
    let counted: Vec<_> = of(&uvm, pid).iter().flat_map(|s| s.fatal.clone().unwrap_or_default()).collect();
    equal("counted", counted, vec![("invalid_address".to_owned(), 2)])?;
    let events: Vec<Event> = guest.json("calls_events")?;
    let told: Vec<_> = events
        .iter()
        .filter_map(|e| match &e.what {
            What::UvmFatal { tgid, address, access, reason, .. } => {
                Some((*tgid, *address, access.clone(), reason.clone()))
            }
            _ => None,
        })
        .collect();
    let expected = |page: u64| {
        (Some(pid), 0x7_0000_0000 + page * 4096, Some("write".to_owned()), "invalid_address".to_owned())
    };
    equal("events", told, vec![expected(0), expected(1)])
}

fn older(guest: &Outcome) -> Result<(), Failed> {
    let uvm = uvm(guest, "old")?;
    let spaces = of(&uvm, pid(guest, "old.txt")?);
    equal("migrations", moved(&spaces, "on_demand", "to_gpu"), (11, 11 * 65_536))?;
    equal("comm", spaces.first().map(|s| s.comm.as_str()), Some("uvmload"))
}

fn reloaded(guest: &Outcome) -> Result<(), Failed> {
    equal("unloading", guest.text("unload_status.txt")?.trim(), "0")?;
    let unloaded = guest.sample("unloaded")?;
    let state = |s: &Sample| {
        s.probes
            .iter()
            .find(|p| p.name == "uvm_faults")
            .map(|p| (p.state, p.reason.clone().unwrap_or_default()))
    };
    let (off, why) = state(&unloaded).ok_or("no probe")?;
    equal("after unloading", off, ProbeState::Off)?;
    if !why.contains("not loaded") {
        return Err(why.into());
    }
    // What was counted before is told once more, so that the last interval is not lost; totals of the GPU stay.
    equal("replays kept", unloaded.uvm.as_ref().and_then(|u| u.gpus[0].replays), Some(9))?;
    let loaded = guest.sample("loaded")?;
    equal("after loading", state(&loaded).map(|s| s.0), Some(ProbeState::On))?;
    let again = uvm(guest, "again")?;
    let spaces = of(&again, pid(guest, "again.txt")?);
    equal("CPU faults", spaces.iter().map(|s| s.cpu_faults[1]).sum::<u64>(), 16)?;
    equal("replays go on", again.gpus.first().and_then(|g| g.replays), Some(9))?;
    let serial = spaces.first().map_or(0, |s| s.serial);
    let earlier =
        guest.sample("old")?.uvm.map_or(0, |u| u.spaces.iter().map(|s| s.serial).max().unwrap_or(0));
    if serial <= earlier {
        return Err(format!("address space {serial} after {earlier}: a number was used twice").into());
    }
    let events: Vec<Event> = guest.json("again_events")?;
    let said: Vec<_> = events
        .iter()
        .filter_map(|e| match &e.what {
            What::Probe { probe, detail } if probe == "uvm" => Some(detail.as_str()),
            _ => None,
        })
        .collect();
    match said.as_slice() {
        [gone, back] if gone.starts_with("detached: ") && back.starts_with("attached: ") => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// Spaces that are told apart at once.
const ROOM: u64 = 512;

fn missed(sample: &Sample, reason: &str) -> u64 {
    sample.dropped.iter().filter(|d| d.source == "uvm" && d.reason == reason).map(|d| d.count).sum()
}

fn full(guest: &Outcome) -> Result<(), Failed> {
    let made = line(guest, "spaces.txt", "spaces")?["spaces"].as_u64().unwrap_or(0) + 1;
    let (before, after) = (guest.sample("again")?, guest.sample("full")?);
    equal("without room", missed(&after, "map_full") - missed(&before, "map_full"), made - ROOM)
}

fn distrusted(guest: &Outcome) -> Result<(), Failed> {
    let (before, after) = (guest.sample("full")?, guest.sample("garbage")?);
    equal("implausible", missed(&after, "implausible") - missed(&before, "implausible"), 3)?;
    let last = guest.sample("after_garbage")?;
    for probe in last.probes.iter().filter(|p| p.family == "uvm") {
        equal(&probe.name, probe.state, ProbeState::Failed)?;
        let why = probe.reason.clone().unwrap_or_default();
        if !why.starts_with("3 of ") || !why.contains("nothing is counted") {
            return Err(why.into());
        }
    }
    Ok(())
}

fn refused(guest: &Outcome) -> Result<(), Failed> {
    let row = |file: &str| -> Result<Value, Failed> {
        let report: Value = guest.json(file)?;
        let rows = report["coverage"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|r| r["family"] == "uvm").ok_or_else(|| "no row".into())
    };
    equal("known", row("doctor")?["state"].as_str(), Some("yes"))?;
    let unknown = row("unknown")?;
    equal("unknown", unknown["state"].as_str(), Some("no"))?;
    let why = unknown["why"].to_string();
    if why.contains("620.05") && why.contains("newer GLake") { Ok(()) } else { Err(why.into()) }
}
