//! Exact counts on quiet SSDs: BTF trace points, native multipath, schedulers none and mq-deadline.

use glake::events::sample::{Operation, Owner, ProbeState, Sample};
use libtest_mimic::{Failed, Trial};

use crate::lab::{Guest, Kernel, Load, Outcome};
use crate::readings::*;

/// Opcodes of the NVM command set (NVM Express NVM Command Set specification, section 3).
const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const DATASET_MANAGEMENT: u8 = 9;

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    let guest = Guest::new(kernel, "counts.sh", &["--nvme-multipath", "y"]);
    vec![
        guest.test(
            "multipath on, no scheduler: block requests and bytes are exact by operation",
            block_is_exact,
        ),
        guest.test("multipath on: NVMe commands and bytes are exact by opcode", nvme_is_exact),
        guest.test(
            "every command is in a latency histogram, and none took longer than its caller saw",
            latencies,
        ),
        guest.test("nothing is in flight when nothing is asked for", nothing_in_flight),
        guest.test("submission queues count what the opcodes count", submission_queues),
        guest.test("scheduler mq-deadline: bytes are exact, and requests with merges", scheduled),
        guest.test("discards are exact in block bytes and NVMe commands", discards),
        guest.test("IOMMU map and unmap calls and bytes equal the kernel's own histogram", iommu),
        guest.test("direct I/O belongs to the process that asked for it", direct_owner),
        guest.test("a buffered writer's cgroup gets its bytes", buffered_owner),
        guest.test("owners, shared and unknown add up to the device", owners_add_up),
        guest.test("no probe fails and nothing is dropped", nothing_lost),
    ]
}

/// The largest request of the loads.
const LARGEST: u64 = 131_072;

/// What was counted, and what the kernel did not let our programs see and counted instead, is what was done. (The kernel runs no program
/// where the same one is interrupted on the same CPU: rare, but an emulated CPU is slow enough.) `each`: the most that one
/// event adds.
fn told(what: &str, got: u64, expected: u64, lost: u64, each: u64) -> Result<(), Failed> {
    if got <= expected && got + lost * each >= expected && lost <= 8 {
        return Ok(());
    }
    Err(format!("{what}: counted {got}, expected {expected}, {lost} counted as lost").into())
}

/// Events of a family that the kernel kept from our programs, between two readings.
fn lost(from: &Sample, to: &Sample, source: &str) -> u64 {
    dropped(to, source, "recursion") - dropped(from, source, "recursion")
}

fn totals(load: &Load, operation: &str) -> (u64, u64) {
    (load.sum(operation, "completed"), load.sum(operation, "bytes"))
}

/// Readings around the mixed load, and the two loads' accounts.
fn mixed(guest: &Outcome) -> Result<(Sample, Sample, Load, Load), Failed> {
    Ok((guest.sample("start")?, guest.sample("after_mixed")?, guest.load("mixed")?, guest.load("flushes")?))
}

fn block_is_exact(guest: &Outcome) -> Result<(), Failed> {
    let (from, to, load, flushes) = mixed(guest)?;
    let device = &guest.names()?[0];
    equal("reads", block_between(&from, &to, device, Operation::Read), totals(&load, "read"))?;
    equal("writes", block_between(&from, &to, device, Operation::Write), totals(&load, "write"))?;
    equal("flushes", block_between(&from, &to, device, Operation::Flush), totals(&flushes, "flush"))
}

fn nvme_is_exact(guest: &Outcome) -> Result<(), Failed> {
    let (from, to, load, flushes) = mixed(guest)?;
    let controller = &guest.names()?[3];
    let lost = lost(&from, &to, "nvme");
    for (name, opcode, load) in [("read", READ, &load), ("write", WRITE, &load), ("flush", FLUSH, &flushes)] {
        let (commands, bytes) = nvme_between(&from, &to, controller, opcode);
        told(name, commands, load.sum(name, "completed"), lost, 1)?;
        if opcode != FLUSH {
            told(name, bytes, load.sum(name, "bytes"), lost, LARGEST)?;
        }
    }
    Ok(())
}

fn latencies(guest: &Outcome) -> Result<(), Failed> {
    let (_, to, load, _) = mixed(guest)?;
    let names = guest.names()?;
    let mut slept = 0;
    for command in commands(&to, &names[3]) {
        equal("commands in the histogram", command.latency.count(), command.completed)?;
        if command.queue > 0 && command.opcode == READ {
            slept += command.latency.sum_ns;
        }
    }
    let seen = load.sum("read", "sum_ns");
    if slept == 0 || slept > seen {
        return Err(format!("the SSD took {slept} ns for the reads, their caller waited {seen} ns").into());
    }
    let read = block(&to, &names[0], Operation::Read).ok_or("no reads of the device")?;
    let device = read.device.as_ref().ok_or("no device time")?;
    equal("requests in the histogram", device.count(), read.completed)?;
    if device.sum_ns == 0 || device.sum_ns > seen {
        return Err(format!("the device took {} ns, the caller waited {seen} ns", device.sum_ns).into());
    }
    Ok(())
}

fn nothing_in_flight(guest: &Outcome) -> Result<(), Failed> {
    let (_, to, ..) = mixed(guest)?;
    let names = guest.names()?;
    let controllers = to.nvme.as_ref().ok_or("no NVMe counters")?;
    let controller = controllers.iter().find(|c| c.controller == names[3]).ok_or("no controller")?;
    if controller.in_flight.is_some_and(|n| n > 0) {
        return Err(format!("NVMe commands in flight: {:?}", controller.in_flight).into());
    }
    equal("PCI address", controller.pci.as_deref(), Some(names[6].as_str()))?;
    let devices = to.block.as_ref().ok_or("no block counters")?;
    let device = devices.iter().find(|d| d.device == names[0]).ok_or("no device")?;
    equal("requests in flight", device.in_flight, Some(0))
}

fn submission_queues(guest: &Outcome) -> Result<(), Failed> {
    let (from, to, ..) = mixed(guest)?;
    let controller = &guest.names()?[3];
    let by_queue = |s: &Sample| -> u64 {
        let found = s.nvme.iter().flatten().find(|c| c.controller == *controller);
        found
            .into_iter()
            .flat_map(|c| c.queues.iter().flatten())
            .filter(|q| q.queue > 0)
            .map(|q| q.completed)
            .sum()
    };
    let by_opcode =
        |s: &Sample| commands(s, controller).filter(|c| c.queue > 0).map(|c| c.completed).sum::<u64>();
    let (queues, opcodes) = (by_queue(&to) - by_queue(&from), by_opcode(&to) - by_opcode(&from));
    let missed = lost(&from, &to, "nvme");
    if queues == 0 || queues.abs_diff(opcodes) > missed {
        return Err(format!("{queues} by queue, {opcodes} by opcode, {missed} counted as lost").into());
    }
    Ok(())
}

fn scheduled(guest: &Outcome) -> Result<(), Failed> {
    let schedulers = guest.text("schedulers.txt")?;
    let chosen: Vec<_> = schedulers.lines().filter_map(|l| l.split(['[', ']']).nth(1)).collect();
    equal("schedulers", chosen, vec!["none", "mq-deadline"])?;
    let (from, to) = (guest.sample("after_mixed")?, guest.sample("after_scheduled")?);
    let (load, device) = (guest.load("scheduled")?, &guest.names()?[1]);
    // A scheduler may put neighbours together that wait at the same time: each is then a request or a merge.
    let merges = |s: &Sample| {
        s.block.iter().flatten().find(|d| d.device == *device).and_then(|d| d.merges).unwrap_or(0)
    };
    let (mut counted, mut asked) = (merges(&to) - merges(&from), 0);
    for (name, operation) in [("read", Operation::Read), ("write", Operation::Write)] {
        let (requests, bytes) = block_between(&from, &to, device, operation);
        equal(name, bytes, load.sum(name, "bytes"))?;
        counted += requests;
        asked += load.sum(name, "completed");
    }
    equal("requests and merges", counted, asked)
}

fn discards(guest: &Outcome) -> Result<(), Failed> {
    let (from, to) = (guest.sample("after_scheduled")?, guest.sample("after_discard")?);
    let names = guest.names()?;
    let (requests, bytes) = block_between(&from, &to, &names[2], Operation::Discard);
    equal("bytes discarded", bytes, 8 << 20)?;
    let commands = nvme_between(&from, &to, &names[5], DATASET_MANAGEMENT).0;
    told("commands", commands, requests, lost(&from, &to, "nvme"), 1)
}

/// Hits and the sum of one line of a tracefs histogram: `hitcount: 64  size: 4194304`.
fn histogram_line(text: &str, event: &str) -> Option<(u64, u64)> {
    let line = text.lines().find(|l| l.contains(&format!("/{event}/")))?;
    let number = |key: &str| line.rsplit_once(key)?.1.split_whitespace().next()?.parse().ok();
    Some((number("hitcount:")?, number("size:")?))
}

fn iommu(guest: &Outcome) -> Result<(), Failed> {
    let (before, after) = (guest.text("iommu_before.txt")?, guest.text("iommu_after.txt")?);
    let traced = |event: &str| {
        let (a, b) = (histogram_line(&before, event)?, histogram_line(&after, event)?);
        Some((b.0 - a.0, b.1 - a.1))
    };
    let (from, to) = (guest.sample("iommu_start")?, guest.sample("iommu_end")?);
    let missed = lost(&from, &to, "iommu");
    let (from, to) = (from.iommu.ok_or("no IOMMU counters")?, to.iommu.ok_or("no IOMMU counters")?);
    let maps = (to.maps - from.maps, to.mapped_bytes - from.mapped_bytes);
    let unmaps = (to.unmaps - from.unmaps, to.unmapped_bytes - from.unmapped_bytes);
    if missed == 0 {
        equal("map calls and bytes", Some(maps), traced("map"))?;
        equal("unmap calls and bytes", Some(unmaps), traced("unmap"))?;
    }
    let [traced_maps, traced_unmaps] = ["map", "unmap"].map(|event| traced(event).unwrap_or_default().0);
    told("map calls", maps.0, traced_maps, missed, 1)?;
    told("unmap calls", unmaps.0, traced_unmaps, missed, 1)?;
    let asked = guest.load("mapped")?.sum("write", "bytes");
    if maps.1 < asked {
        return Err(format!("{} bytes were mapped for {asked} bytes written", maps.1).into());
    }
    Ok(())
}

fn direct_owner(guest: &Outcome) -> Result<(), Failed> {
    let (from, to, load, _) = mixed(guest)?;
    let device = &guest.names()?[0];
    let pid = load.pid();
    let is_load = |o: &Owner| matches!(o, Owner::Task { tgid, comm, .. } if u64::from(*tgid) == pid && comm == "ioload");
    let lost = lost(&from, &to, "block");
    for (name, operation) in [("read", Operation::Read), ("write", Operation::Write)] {
        let owned = owned_between(&from, &to, device, operation, is_load);
        told(name, owned, load.sum(name, "bytes"), lost, LARGEST)?;
    }
    Ok(())
}

fn buffered_owner(guest: &Outcome) -> Result<(), Failed> {
    let (from, to) = (guest.sample("writeback_start")?, guest.sample("writeback_end")?);
    let (load, names) = (guest.load("buffered")?, guest.names()?);
    let cgroup = load.cgroup();
    let is_writer = |o: &Owner| match o {
        Owner::Writeback { cgroup: c } | Owner::Task { cgroup: c, .. } => *c == cgroup,
        Owner::Shared | Owner::Unknown => false,
    };
    let got = owned_between(&from, &to, &names[2], Operation::Write, is_writer);
    let asked = load.sum("write", "bytes");
    let kernel: Option<u64> = guest
        .text("io_stat.txt")?
        .split_whitespace()
        .filter_map(|w| w.strip_prefix("wbytes=")?.parse().ok())
        .max();
    equal("bytes in the kernel's own account of the cgroup", kernel, Some(asked))?;
    let kworkers = |o: &Owner| matches!(o, Owner::Task { comm, .. } if comm.starts_with("kworker"));
    equal(
        "bytes of kernel workers as owners",
        owned_between(&from, &to, &names[2], Operation::Write, kworkers),
        0,
    )?;
    equal("bytes of the writer's cgroup", got, asked)
}

fn owners_add_up(guest: &Outcome) -> Result<(), Failed> {
    for name in ["after_mixed", "after_scheduled", "after_discard", "writeback_end"] {
        let sample = guest.sample(name)?;
        for device in sample.block.iter().flatten() {
            for total in &device.operations {
                let sum = |f: fn(&glake::events::sample::OwnerDeviceIo) -> u64| {
                    owners(&sample, &device.device, total.operation).map(|(_, io)| f(io)).sum::<u64>()
                };
                let what = format!("{name}, {} {:?}", device.device, total.operation);
                equal(&what, (sum(|io| io.completed), sum(|io| io.bytes)), (total.completed, total.bytes))?;
            }
        }
    }
    Ok(())
}

fn nothing_lost(guest: &Outcome) -> Result<(), Failed> {
    let sample = guest.sample("writeback_end")?;
    let failed: Vec<_> = sample.probes.iter().filter(|p| p.state == ProbeState::Failed).collect();
    if !failed.is_empty() || sample.probes.is_empty() {
        return Err(format!("failed probes: {failed:#?}").into());
    }
    for drop in &sample.dropped {
        // Some are lost by right and counted: of a request under way when the probes came on only the end is seen, and
        // the kernel does not run a program inside itself.
        if drop.count > 0 && drop.reason != "unmatched" && drop.reason != "recursion" {
            return Err(format!("{} {} {}", drop.count, drop.source, drop.reason).into());
        }
    }
    Ok(())
}
