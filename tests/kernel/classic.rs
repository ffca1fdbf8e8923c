//! The ways that are taken where the kernel says less: classic trace points, no multipath. Then losses on purpose, and
//! the same checks with one probe taken away, which must fail: a check that holds without its probe checks nothing.

use glake::events::event::{Event, What};
use glake::events::sample::{Operation, ProbeState, Sample};
use libtest_mimic::{Failed, Trial};

use crate::lab::{Guest, Kernel, Outcome};
use crate::readings::*;

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    let guest = Guest::new(kernel, "classic.sh", &["--nvme-multipath", "n"]);
    let mut tests = vec![
        guest.test("multipath off, classic trace points: block requests and bytes are exact", block_is_exact),
        guest.test("multipath off: NVMe commands and bytes are exact", nvme_is_exact),
        guest.test("without BTF every probe says which trace point it reads", says_how),
        guest.test("a ring that overflows loses only events, and counts each", ring_overflow),
    ];
    for (probe, check) in MUTATIONS {
        let title = format!("without the probe {probe} its numbers are missed, not made up");
        tests.push(guest.test(&title, move |outcome| mutation(outcome, probe, *check)));
    }
    tests
}

/// Whether a reading pair tells the load of 20 reads and 10 writes.
type Check = fn(&Sample, &Sample, &str) -> bool;

/// Each probe with the check that must notice that it is gone.
const MUTATIONS: &[(&str, Check)] = &[
    ("block_start", |a, b, d| owned_between(a, b, d, Operation::Read, is_task) == 20 * 4096),
    ("block_complete", |a, b, d| block_between(a, b, d, Operation::Read) == (20, 20 * 4096)),
    // The kernel may keep a program from seeing an event while it runs already: that is counted, see counts.rs.
    ("nvme_setup", |a, b, _| nvme_all(a, b, 2).0 >= 18 && nvme_all(a, b, 2).1 >= 18 * 4096),
    ("nvme_complete", |a, b, _| nvme_all(a, b, 2).0 >= 18),
    ("nvme_sq", |a, b, _| queued(b) - queued(a) >= 27),
    ("iommu_map", |a, b, _| maps(b).0 - maps(a).0 >= 27),
    ("iommu_unmap", |a, b, _| maps(b).1 - maps(a).1 >= 27),
];

fn mutation(guest: &Outcome, missing: &str, check: Check) -> Result<(), Failed> {
    let device = &guest.names()?[0];
    let pair = |probe: &str| -> Result<(Sample, Sample), Failed> {
        Ok((guest.sample(&format!("without_{probe}_start"))?, guest.sample(&format!("without_{probe}_end"))?))
    };
    let (from, to) = pair(missing)?;
    if probe(&to, missing).is_none_or(|p| p.state != ProbeState::Off) {
        return Err(format!("{missing} was told to stay off and did not: {:?}", probe(&to, missing)).into());
    }
    if check(&from, &to, device) {
        return Err(format!("the check holds without {missing}").into());
    }
    // With another probe gone the same check holds, so it was this one that it missed.
    let other = if missing == "nvme_sq" { "iommu_map" } else { "nvme_sq" };
    let (from, to) = pair(other)?;
    if !check(&from, &to, device) {
        return Err(format!("the check fails without {other} too").into());
    }
    Ok(())
}

/// All controllers: only one SSD is under load.
fn nvme_all(from: &Sample, to: &Sample, opcode: u8) -> (u64, u64) {
    let controllers = to.nvme.iter().flatten().map(|c| c.controller.as_str());
    controllers.map(|c| nvme_between(from, to, c, opcode)).fold((0, 0), |s, n| (s.0 + n.0, s.1 + n.1))
}

fn queued(sample: &Sample) -> u64 {
    let queues = sample.nvme.iter().flatten().flat_map(|c| c.queues.iter().flatten());
    queues.filter(|q| q.queue > 0).map(|q| q.completed).sum()
}

fn maps(sample: &Sample) -> (u64, u64) {
    sample.iommu.as_ref().map_or((0, 0), |i| (i.maps, i.unmaps))
}

fn block_is_exact(guest: &Outcome) -> Result<(), Failed> {
    let (from, to) = (guest.sample("start")?, guest.sample("end")?);
    let (load, flushes, device) = (guest.load("mixed")?, guest.load("flushes")?, &guest.names()?[0]);
    for (name, operation, load) in [
        ("read", Operation::Read, &load),
        ("write", Operation::Write, &load),
        ("flush", Operation::Flush, &flushes),
    ] {
        let expected = (load.sum(name, "completed"), load.sum(name, "bytes"));
        let got = block_between(&from, &to, device, operation);
        if got != expected {
            return Err(format!("{name}: counted {got:?}, expected {expected:?}").into());
        }
    }
    Ok(())
}

fn nvme_is_exact(guest: &Outcome) -> Result<(), Failed> {
    let (from, to) = (guest.sample("start")?, guest.sample("end")?);
    let load = guest.load("mixed")?;
    let lost = dropped(&to, "nvme", "recursion") - dropped(&from, "nvme", "recursion");
    for (name, opcode) in [("read", 2), ("write", 1)] {
        let expected = (load.sum(name, "completed"), load.sum(name, "bytes"));
        let got = nvme_all(&from, &to, opcode);
        if got.0 > expected.0 || got.0 + lost < expected.0 || (lost == 0 && got != expected) || lost > 5 {
            return Err(
                format!("{name}: counted {got:?}, expected {expected:?}, {lost} counted as lost").into()
            );
        }
    }
    Ok(())
}

/// Case I09: each way says which hook it counts by, and the exact counts above show that none counts twice.
fn says_how(guest: &Outcome) -> Result<(), Failed> {
    let sample = guest.sample("end")?;
    for probe in sample.probes.iter().filter(|p| p.family == "block" && p.state == ProbeState::On) {
        if probe.how.contains("BTF") || !probe.how.contains("block:") {
            return Err(format!("{} is on by {}", probe.name, probe.how).into());
        }
    }
    match probe(&sample, "block_complete") {
        Some(p) if p.state == ProbeState::On => Ok(()),
        other => Err(format!("block_complete: {other:?}").into()),
    }
}

/// Case I11.
fn ring_overflow(guest: &Outcome) -> Result<(), Failed> {
    let (from, to) = (guest.sample("ring_start")?, guest.sample("ring_end")?);
    let events: Vec<Event> = guest.json("ring_events")?;
    let slow = events.iter().filter(|e| matches!(e.what, What::SlowIo { .. })).count() as u64;
    let lost = dropped(&to, "ring", "ring_full") - dropped(&from, "ring", "ring_full");
    let done = guest.load("flood")?.sum("read", "completed");
    if lost == 0 || slow == 0 || slow + lost != done {
        return Err(format!("{done} slow requests: {slow} events came, {lost} were counted as lost").into());
    }
    // What is counted in maps is not touched by the ring.
    let counted = block_between(&from, &to, &guest.names()?[0], Operation::Read).0;
    if counted != done { Err(format!("{counted} of {done} requests counted").into()) } else { Ok(()) }
}
