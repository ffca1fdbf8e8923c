//! fentry and fexit on the functions of nvidia_uvm, beside kprobes on the same load, and what they must not do: keep a
//! module that nobody uses from being unloaded.

use glake::events::{
    event::{Event, What},
    sample::{ProbeState, UvmSpace},
};
use libtest_mimic::{Failed, Trial};

use crate::{
    lab::{Guest, Kernel, Outcome},
    readings::{equal, the_probe},
    uvm_probes::{READS, WRITES, line, lost, moved, of, pid, uvm},
};

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    if !kernel.version.starts_with("6.12.") {
        return Vec::new();
    }
    let guest = Guest::new(kernel, "uvm_fentry.sh", &["--uvm", "550", "--numa"]);
    vec![
        guest.test("nvidia_uvm: every probe takes fentry or fexit where it is asked for", attached),
        guest.test("nvidia_uvm: kprobe = fentry = the driver's own queue = the load", the_same),
        guest.test("nvidia_uvm: by fentry, what the driver's functions were called with", called),
        guest.test("nvidia_uvm: fentry lets go of a module that nobody uses, and comes back", idle),
        guest.test("nvidia_uvm: the module is unloaded under fentry, and watched when it is back", reloaded),
    ]
}

fn number(guest: &Outcome, file: &str) -> Result<u64, Failed> {
    guest.text(file)?.trim().parse().map_err(|e| format!("{file}: {e}").into())
}

/// Details of the events about the probes on nvidia_uvm.
fn said(guest: &Outcome, file: &str) -> Result<Vec<String>, Failed> {
    let events: Vec<Event> = guest.json(file)?;
    let detail = |e: Event| match e.what {
        What::Probe { probe, detail } if probe == "uvm" => Some(detail),
        _ => None,
    };
    Ok(events.into_iter().filter_map(detail).collect())
}

fn attached(guest: &Outcome) -> Result<(), Failed> {
    let sample = guest.sample("before")?;
    let probes: Vec<_> = sample.probes.iter().filter(|p| p.family == "uvm").collect();
    equal("probes", probes.len(), 12)?;
    for probe in probes {
        equal(&format!("{}: {:?}", probe.name, probe.reason), probe.state, ProbeState::On)?;
        let way = if probe.name == "uvm_service_end" {
            "(fexit), as uvm_hooks says"
        } else {
            "(fentry), as uvm_hooks says"
        };
        if !probe.how.contains(way) {
            return Err(probe.how.clone().into());
        }
    }
    let by_kprobe = guest.sample("kprobe")?;
    let how = &the_probe(&by_kprobe, "uvm_faults")?.how;
    if how.contains("(kprobe), as uvm_hooks says") { Ok(()) } else { Err(how.clone().into()) }
}

fn the_same(guest: &Outcome) -> Result<(), Failed> {
    let pid = pid(guest, "known.txt")?;
    for way in ["fentry", "kprobe"] {
        let uvm = uvm(guest, way)?;
        let spaces = of(&uvm, pid);
        let faults =
            spaces.iter().fold([0, 0], |sum, s| [sum[0] + s.cpu_faults[0], sum[1] + s.cpu_faults[1]]);
        equal(&format!("{way}: reads and writes"), faults, [READS, WRITES])?;
        equal(&format!("{way}: migrations"), moved(&spaces, "user", "host"), (8, 8 * (2 << 20)))?;
        equal(&format!("{way}: missed"), lost(&guest.sample(way)?), 0)?;
    }
    let oracle = line(guest, "known.txt", "counts")?;
    equal("the queue's CPU faults", oracle["types"]["1"].as_u64(), Some(READS + WRITES))?;
    equal("the queue's migrations", oracle["types"]["2"].as_u64(), Some(8))?;
    equal("the queue's drops", oracle["dropped"].as_u64(), Some(0))
}

fn called(guest: &Outcome) -> Result<(), Failed> {
    let pid = pid(guest, "calls.txt")?;
    for way in ["fentry", "kprobe"] {
        let uvm = uvm(guest, way)?;
        let spaces = of(&uvm, pid);
        let sum = |f: fn(&UvmSpace) -> u64| spaces.iter().map(|s| f(s)).sum::<u64>();
        equal(&format!("{way}: GPU faults"), sum(|s| s.gpu_faults.total()), 1000)?;
        equal(&format!("{way}: on demand"), moved(&spaces, "on_demand", "to_gpu"), (10, 10 * 65_536))?;
        equal(&format!("{way}: evicted"), moved(&spaces, "eviction", "to_cpu"), (5, 5 * 65_536))?;
        equal(&format!("{way}: thrashing"), sum(|s| s.thrashing.unwrap_or(0)), 7)?;
        let fatal: Vec<_> = spaces.iter().flat_map(|s| s.fatal.clone().unwrap_or_default()).collect();
        equal(&format!("{way}: fatal"), fatal, vec![("invalid_address".to_owned(), 2)])?;
        let held_back = sum(|s| s.throttled_ns.unwrap_or(0));
        if held_back < 400_000 {
            return Err(format!("{way}: held back for {held_back} ns").into());
        }
        let gpu = uvm.gpus.first().ok_or("no GPU")?;
        equal(&format!("{way}: replays"), gpu.replays, Some(9))?;
        equal(&format!("{way}: runs of the service"), gpu.service.as_ref().map(|h| h.count()), Some(6))?;
    }
    Ok(())
}

fn idle(guest: &Outcome) -> Result<(), Failed> {
    equal("holders with kprobes", number(guest, "refs_kprobe.txt")?, 0)?;
    if number(guest, "refs_fentry.txt")? == 0 {
        return Err("fentry does not hold the module: letting go of it is for nothing".into());
    }
    let idle = guest.sample("idle")?;
    let faults = the_probe(&idle, "uvm_faults")?;
    equal("state", faults.state, ProbeState::Off)?;
    let why = faults.reason.clone().unwrap_or_default();
    if !why.contains("until a process opens nvidia_uvm") {
        return Err(why.into());
    }
    equal("holders after it let go", number(guest, "refs_idle.txt")?, 0)?;
    equal("still idle", the_probe(&guest.sample("still_idle")?, "uvm_faults")?.state, ProbeState::Off)?;
    let said = said(guest, "idle_events")?;
    if !matches!(said.as_slice(), [one] if one.starts_with("detached: no process uses nvidia_uvm")) {
        return Err(format!("{said:?}").into());
    }
    // What had been counted stays.
    equal("replays", idle.uvm.and_then(|u| u.gpus.first().and_then(|g| g.replays)), Some(9))?;
    // It has been told; after a reading that told nothing it would be taken for new.
    let again =
        guest.sample("woken")?.uvm.map_or(0, |u| u.gpus.iter().filter_map(|g| g.replays).sum::<u64>());
    equal("replays after a reading of nothing", again, 0)?;
    equal("woken", the_probe(&guest.sample("woken")?, "uvm_faults")?.state, ProbeState::On)?;
    let held = uvm(guest, "held")?;
    let writes = of(&held, pid(guest, "hold.txt")?).iter().map(|s| s.cpu_faults[1]).sum::<u64>();
    equal("CPU faults of the process that woke it", writes, 8)
}

fn reloaded(guest: &Outcome) -> Result<(), Failed> {
    equal("unloading", guest.text("unload_status.txt")?.trim(), "0")?;
    let unloaded = guest.sample("unloaded")?;
    let why = the_probe(&unloaded, "uvm_faults")?.reason.clone().unwrap_or_default();
    if !why.contains("not loaded") {
        return Err(why.into());
    }
    let loaded = guest.sample("loaded")?;
    let faults = the_probe(&loaded, "uvm_faults")?;
    equal("after loading", (faults.state, faults.how.contains("(fentry)")), (ProbeState::On, true))?;
    let again = uvm(guest, "again")?;
    let writes = of(&again, pid(guest, "again.txt")?).iter().map(|s| s.cpu_faults[1]).sum::<u64>();
    equal("CPU faults", writes, 16)?;
    let said = said(guest, "again_events")?;
    let begins: Vec<&str> = said.iter().filter_map(|s| s.split(',').next()).collect();
    let words = |s: &str| s.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let told: Vec<String> = begins.into_iter().map(words).collect();
    // For the process, idle again, the module gone (nothing hung on it), and back.
    match told.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["attached: a", "detached: no", .., "attached: nvidia_uvm"] => Ok(()),
        other => Err(format!("{other:?} of {said:?}").into()),
    }
}
