//! Hardware that misbehaves: slow, broken, pulled out, writing where it must not.

use glake::events::event::{Event, What};
use glake::events::sample::{NvmeErrors, Operation, Sample};
use libtest_mimic::{Failed, Trial};

use crate::lab::{Guest, Kernel, Outcome};
use crate::readings::*;

/// Reads per second that QEMU lets through, so that one read takes 40 ms.
const DELAY_NS: u64 = 40_000_000;
/// Status code type 2, media and data integrity errors: Write Fault and Unrecovered Read Error (NVM Express base
/// specification, "Media and Data Integrity Error Status Definitions").
const WRITE_FAULT: (u8, u8) = (2, 0x80);
const READ_ERROR: (u8, u8) = (2, 0x81);

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    let config = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/bad.conf");
    let bad = format!("serial=bad,blkdebug={}", config.display());
    let disks = ["--disk", "serial=slow,iops=25", "--disk", &bad, "--disk", "serial=gone,at=root"];
    let guest = Guest::new(kernel, "odd.sh", &[&disks[..], &["--qemu", "-device edu"]].concat());
    vec![
        guest.test("reads that QEMU holds back 40 ms are in the histogram's slots around 40 ms", delayed),
        guest.test(
            "a read error that heals and a write error that stays are counted by status",
            errors_by_status,
        ),
        guest.test("a write that fails for good is one block error", block_errors),
        guest.test(
            "each DMA to an address that is not mapped is a fault, as many as the kernel's interrupts",
            faults,
        ),
        guest.test(
            "commands that time out and resets are counted as often as the kernel's log tells them",
            timeouts,
        ),
        guest.test("an SSD that is pulled out takes nothing else along", pulled_out),
    ]
}

fn delayed(guest: &Outcome) -> Result<(), Failed> {
    let (from, to) = (guest.sample("slow_start")?, guest.sample("slow_end")?);
    let (load, names) = (guest.load("slow")?, guest.names()?);
    let slots =
        |s: &Sample| block(s, &names[0], Operation::Read).and_then(|o| o.device.clone()).unwrap_or_default();
    let (before, after) = (slots(&from), slots(&to));
    let added = |i: usize| after.slots.get(i).unwrap_or(&0) - before.slots.get(i).unwrap_or(&0);
    let all: u64 = (0..after.slots.len()).map(added).sum();
    // The slot of 40 ms is 32.8 to 49.2 ms. QEMU lets a few reads through at once when none came for a while, as between
    // two loads; and when a busy machine delays one, the next is early.
    let centre = glake_common::hist::slot(DELAY_NS);
    let near: u64 = (centre - 1..=centre + 1).map(added).sum();
    let expected = load.sum("read", "completed");
    if all != expected || added(centre) * 2 < expected || near * 10 < expected * 6 {
        return Err(format!(
            "{expected} reads: {all} counted, {} in the slot of 40 ms, {near} with its neighbours",
            added(centre)
        )
        .into());
    }
    let (ours, seen) = (after.sum_ns - before.sum_ns, load.sum("read", "sum_ns"));
    if ours > seen || ours * 10 < seen * 8 {
        return Err(format!("the device took {ours} ns of the {seen} ns that the caller waited").into());
    }
    Ok(())
}

fn status(sample: &Sample, controller: &str, status: (u8, u8)) -> u64 {
    let found = sample.nvme.iter().flatten().find(|c| c.controller == controller);
    let errors = found.into_iter().flat_map(|c| &c.errors);
    errors.filter(|e: &&NvmeErrors| (e.sct, e.sc) == status).map(|e| e.count).sum()
}

fn errors_by_status(guest: &Outcome) -> Result<(), Failed> {
    let (end, controller) = (guest.sample("bad_end")?, &guest.names()?[4]);
    let read = status(&end, controller, READ_ERROR);
    let write = status(&end, controller, WRITE_FAULT);
    // The kernel tries a command six times: once and nvme_core's max_retries, 5 by default.
    if (read, write) != (1, 6) {
        return Err(format!("{read} read errors and {write} write errors, expected 1 and 6").into());
    }
    let retries = end.nvme.iter().flatten().find(|c| c.controller == *controller).and_then(|c| c.retries);
    if retries.is_none_or(|r| r < 2) { Err(format!("retries: {retries:?}").into()) } else { Ok(()) }
}

fn block_errors(guest: &Outcome) -> Result<(), Failed> {
    let (end, load, names) = (guest.sample("bad_end")?, guest.load("bad")?, guest.names()?);
    for (name, operation) in [("read", Operation::Read), ("write", Operation::Write)] {
        let errors = block(&end, &names[1], operation).map_or(0, |o| o.errors);
        if errors != load.sum(name, "failed") {
            return Err(
                format!("{name}: {errors} errors, the caller saw {}", load.sum(name, "failed")).into()
            );
        }
    }
    let events: Vec<Event> = guest.json("bad_events")?;
    let told = events.iter().any(|e| matches!(&e.what, What::IoError { .. }));
    if load.sum("write", "failed") != 1 || !told {
        return Err(format!("{} writes failed; events: {events:#?}", load.sum("write", "failed")).into());
    }
    Ok(())
}

fn faults(guest: &Outcome) -> Result<(), Failed> {
    let number = |name: &str| -> Result<u64, Failed> { Ok(guest.text(name)?.trim().parse()?) };
    let interrupts = number("dmar_after.txt")? - number("dmar_before.txt")?;
    let (before, after) = (guest.sample("bad_end")?, guest.sample("fault_end")?);
    let counted = iommu_faults(&after, "kprobe").0 - iommu_faults(&before, "kprobe").0;
    if interrupts == 0 || counted != interrupts {
        return Err(format!("{interrupts} fault interrupts, {counted} faults counted").into());
    }
    // The kernel's log is rate-limited, but it alone says which device it was.
    let (logged, devices) = iommu_faults(&after, "kmsg");
    let wild = guest.text("edu.txt")?.trim().to_owned();
    if logged == 0 || logged > interrupts || devices != [wild.clone()] {
        return Err(
            format!("the log told {logged} of {interrupts} faults, by {devices:?}; it was {wild}").into()
        );
    }
    Ok(())
}

fn timeouts(guest: &Outcome) -> Result<(), Failed> {
    let (end, controller, log) = (guest.sample("late_end")?, &guest.names()?[3], guest.text("timeouts.txt")?);
    let told = |words: &str| log.lines().filter(|l| l.contains(words)).count() as u64;
    let (lines, resets) = (told("timeout"), told("reset controller"));
    let found = end.nvme.iter().flatten().find(|c| c.controller == *controller).ok_or("no controller")?;
    if lines == 0 || (found.timeouts, found.resets) != (Some(lines), Some(resets)) {
        return Err(format!("counted {:?} and {:?}; the log:\n{log}", found.timeouts, found.resets).into());
    }
    let events: Vec<Event> = guest.json("late_events")?;
    let of_slow = |e: &&Event| matches!(&e.what, What::NvmeTimeout { controller: c, .. } if c == controller);
    let count = events.iter().filter(of_slow).count() as u64;
    if count == lines { Ok(()) } else { Err(format!("{count} events for {lines} lines: {events:#?}").into()) }
}

fn pulled_out(guest: &Outcome) -> Result<(), Failed> {
    let (gone, end, names) = (guest.sample("gone")?, guest.sample("end")?, guest.names()?);
    let (reads, _) = block_between(&gone, &end, &names[0], Operation::Read);
    let asked = guest.load("after_gone")?.sum("read", "completed");
    if reads != asked {
        return Err(format!("{reads} of {asked} reads counted on another SSD afterwards").into());
    }
    let drops: Vec<_> = end
        .dropped
        .iter()
        .filter(|d| d.count > 0 && d.reason != "unmatched" && d.reason != "recursion")
        .collect();
    if drops.is_empty() { Ok(()) } else { Err(format!("{drops:?}").into()) }
}
