//! The block probes on this machine's own disk: a load of known size, through both kinds of hooks.
//!
//! Expected numbers come from the load, never from another probe. Needs root (or CAP_BPF, CAP_PERFMON and a readable
//! tracefs), a binary built with the eBPF programs, and a file system on a block device; says what is missing otherwise.

use glake::events::{
    ebpf::{Live, Settings, has_object, try_probes},
    event::What,
    sample::{Operation, Owner, ProbeState, Sample},
    source::Source,
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// One load at a time: each test counts the requests of its own child, but rings and sums see everybody's.
static ALONE: Mutex<()> = Mutex::new(());

const BLOCKS: u64 = 256;
const BLOCK: u64 = 4096;

fn settings(btf: bool) -> Settings {
    // A loaded test machine must not make the watchdog interfere.
    Settings { btf, max_cpu_percent: 0.0, slow_io_ns: 0, ..Settings::default() }
}

/// A file that is on the disk already, so that reading or overwriting it directly is exactly one request a block.
struct File(PathBuf, #[allow(dead_code, reason = "held for its Drop")] tempfile::TempDir);

fn file() -> Option<File> {
    if !rustix::process::geteuid().is_root() || !has_object() {
        eprintln!("skipped: needs root and a binary with the eBPF programs (cargo xtask test)");
        return None;
    }
    // Not /tmp, which may be in memory.
    let dir = tempfile::tempdir_in("/var/tmp").ok()?;
    let path = dir.path().join("blocks");
    run(&[
        "dd",
        "if=/dev/zero",
        &format!("of={}", path.display()),
        "bs=4k",
        "count=256",
        "oflag=direct",
        "conv=fsync",
    ]);
    let probe =
        Command::new("dd").args([&format!("if={}", path.display()), "of=/dev/null", "iflag=direct"]).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: /var/tmp has no direct I/O");
        return None;
    }
    Some(File(path, dir))
}

/// Runs a program to its end; gives the process id that it had.
fn run(args: &[&str]) -> u32 {
    let child = Command::new(args[0]).args(&args[1..]).stderr(Stdio::piped()).spawn().expect(args[0]);
    let pid = child.id();
    let output = child.wait_with_output().expect(args[0]);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    pid
}

impl File {
    fn read(&self) -> u32 {
        run(&["dd", &format!("if={}", self.0.display()), "of=/dev/null", "bs=4k", "iflag=direct"])
    }

    fn overwrite(&self) -> u32 {
        let of = format!("of={}", self.0.display());
        run(&["dd", "if=/dev/zero", &of, "bs=4k", "count=256", "oflag=direct", "conv=notrunc"])
    }
}

/// Requests, bytes and wait of a `dd` with that process id: others on this machine may run one too.
fn of_dd(sample: &Sample, pid: u32, operation: Operation) -> (u64, u64, u64) {
    let owners = sample.owners.as_ref().expect("owners are told");
    // Before exec gives it its name, the child reads dd itself from the disk under its parent's.
    let mine = owners
        .iter()
        .filter(|o| matches!(&o.owner, Owner::Task { tgid, comm, .. } if *tgid == pid && comm == "dd"));
    mine.flat_map(|o| &o.io)
        .filter(|io| io.operation == operation)
        .fold((0, 0, 0), |sum, io| (sum.0 + io.completed, sum.1 + io.bytes, sum.2 + io.wait_ns))
}

/// How often the kernel did not run a program, as it says.
fn not_run(sample: &Sample) -> u64 {
    let block = sample.dropped.iter().find(|d| d.source == "block" && d.reason == "recursion");
    block.expect("a pair exists from the start").count
}

/// Events of the block probes that are known to be missed.
fn missed(sample: &Sample) -> u64 {
    sample.dropped.iter().filter(|d| d.source == "block").map(|d| d.count).sum()
}

/// Samples until `done`, for at most 60 s.
fn until(live: &mut Live, what: &str, mut done: impl FnMut(&Sample) -> bool) -> Sample {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let sample = live.sample().expect("a sample");
        if done(&sample) {
            return sample;
        }
        assert!(Instant::now() < end, "{what} within 60 s; last: {:#?}", sample.owners);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn direct_io_is_counted_exactly(btf: bool) {
    let Some(file) = file() else { return };
    let _alone = ALONE.lock();
    let mut live = Live::start(settings(btf), Path::new("/")).expect("the source starts");
    let kind = if btf { "BTF offsets" } else { "(trace point)" };
    let probe = live.probes().into_iter().find(|p| p.name == "block_complete").expect("it is in the table");
    assert_eq!(probe.state, ProbeState::On, "{probe:?}");
    assert!(probe.how.contains(kind), "{}", probe.how);
    let (reader, writer) = (file.read(), file.overwrite());
    let sample = live.sample().expect("a sample");
    let (reads, bytes, wait) = of_dd(&sample, reader, Operation::Read);
    assert!(bytes == reads * BLOCK && wait > 0, "{bytes} bytes in {reads} reads");
    let (writes, bytes, _) = of_dd(&sample, writer, Operation::Write);
    assert_eq!(bytes, writes * BLOCK);
    // Exact, but for what is known to be missed. A kernel short of CPU time leaves ends out, which the next request at the
    // same address tells: hence more reads, which must be accounted for as well.
    let mut lost = (BLOCKS - reads) + (BLOCKS - writes);
    assert!(lost < BLOCKS / 8, "{reads} reads, {writes} writes: {:?}", sample.dropped);
    let mut again = None;
    until(&mut live, "every request counted or known to be missed", |s| {
        lost += again.take().map_or(0, |reader| BLOCKS - of_dd(s, reader, Operation::Read).0);
        let known = missed(s) >= lost;
        if !known {
            again = Some(file.read());
        }
        known
    });
    // Others may use the disk too, but hardly with as much of one operation as to hide that operations are told apart.
    let of = |sample: &Sample, operation| -> u64 {
        let all = sample.block.iter().flatten().flat_map(|d| &d.operations);
        all.filter(|o| o.operation == operation).map(|o| o.completed).sum()
    };
    let owned = |sample: &Sample, operation| -> u64 {
        let io = sample.owners.iter().flatten().flat_map(|o| &o.io);
        io.filter(|io| io.operation == operation).map(|io| io.completed).sum()
    };
    // The readings are not taken at one instant: a request may end between them.
    until(&mut live, "operations kept apart", |s| {
        [Operation::Read, Operation::Write]
            .into_iter()
            .all(|op| of(s, op) >= BLOCKS && of(s, op).abs_diff(owned(s, op)) < BLOCKS / 2)
    });
}

#[test]
fn direct_io_of_a_task_is_counted_exactly_through_btf_trace_points() {
    direct_io_is_counted_exactly(true);
}

#[test]
fn direct_io_of_a_task_is_counted_exactly_through_classic_trace_points() {
    direct_io_is_counted_exactly(false);
}

#[test]
fn workloads_add_up_to_the_device_totals() {
    let Some(file) = file() else { return };
    let _alone = ALONE.lock();
    let mut live = Live::start(settings(true), Path::new("/")).expect("the source starts");
    file.read();
    file.overwrite();
    let bytes = |s: &Sample| -> (u64, u64) {
        let devices = s.block.iter().flatten().flat_map(|d| &d.operations).map(|o| o.bytes).sum();
        (devices, s.owners.iter().flatten().flat_map(|o| &o.io).map(|io| io.bytes).sum())
    };
    // A merged bio is booked before its request ends, and a sample is no instant: equal when the disk is quiet.
    let mut enough = |s: &Sample| {
        let seen = bytes(s);
        let known = seen.0 + missed(s) * BLOCK >= 2 * BLOCKS * BLOCK;
        if !known {
            file.read();
        }
        known && seen.0 == seen.1
    };
    until(&mut live, "workloads equal devices", &mut enough);
}

#[test]
fn buffered_writes_belong_to_no_kernel_thread() {
    let Some(file) = file() else { return };
    let _alone = ALONE.lock();
    for btf in [true, false] {
        let mut live = Live::start(settings(btf), Path::new("/")).expect("the source starts");
        // A new file each time: ext4 writes a file that replaces another at its close, in the task itself.
        let of = format!("of={}", file.0.with_extension(if btf { "btf" } else { "classic" }).display());
        run(&["dd", "if=/dev/zero", &of, "bs=1M", "count=8"]);
        run(&["sync"]);
        let written = |s: &Sample| -> u64 {
            let owners = s.owners.iter().flatten().filter(|o| matches!(o.owner, Owner::Writeback { .. }));
            owners.flat_map(|o| &o.io).filter(|io| io.operation == Operation::Write).map(|io| io.bytes).sum()
        };
        let sample = until(&mut live, "writeback of 8 MiB", |s| written(s) >= 8 << 20);
        for owner in sample.owners.iter().flatten() {
            if let Owner::Task { comm, .. } = &owner.owner {
                assert!(!comm.starts_with("kworker") && !comm.starts_with("jbd2"), "{owner:?}");
            }
        }
    }
}

#[test]
fn a_probe_that_is_off_leaves_no_number_behind() {
    let Some(file) = file() else { return };
    let _alone = ALONE.lock();
    let settings = Settings { disabled: vec!["block_complete".to_owned()], ..settings(true) };
    let mut live = Live::start(settings, Path::new("/")).expect("the source starts");
    file.read();
    let sample = live.sample().expect("a sample");
    assert_eq!((sample.block, sample.owners), (None, None));
    let probe = sample.probes.iter().find(|p| p.name == "block_complete").expect("it is in the table");
    assert_eq!(probe.state, ProbeState::Off);
    assert!(probe.reason.as_ref().is_some_and(|r| r.contains("disabled")));
}

#[test]
fn a_full_ring_loses_events_and_counts_every_one() {
    let Some(file) = file() else { return };
    let _alone = ALONE.lock();
    // 1 us: every request is slow. A page holds 20 records.
    let settings = Settings { slow_io_ns: 1, ring_bytes: 4096, ..settings(true) };
    let mut live = Live::start(settings, Path::new("/")).expect("the source starts");
    file.read();
    let mut events = 0;
    let sample = until(&mut live, "events + lost = requests", |_| true);
    let lost = |s: &Sample| {
        s.dropped.iter().find(|d| d.source == "ring" && d.reason == "ring_full").map_or(0, |d| d.count)
    };
    // A kernel short of CPU time leaves some ends out.
    assert!(lost(&sample) >= BLOCKS - 20 - BLOCKS / 8, "{:?}", sample.dropped);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = live.events().expect("events");
        events += seen.iter().filter(|e| matches!(e.what, What::SlowIo { .. })).count() as u64;
        let sample = live.sample().expect("a sample");
        let timed: u64 = sample
            .block
            .iter()
            .flatten()
            .flat_map(|d| &d.operations)
            .filter_map(|o| Some(o.device.as_ref()?.count()))
            .sum();
        if events + lost(&sample) == timed {
            break;
        }
        assert!(Instant::now() < end, "{events} events + {} lost is not {timed} requests", lost(&sample));
    }
}

/// Keeps this CPU's mark that an eBPF program runs set for much of the time: the kernel sets it while it changes a map
/// (`bpf_disable_instrumentation`, include/linux/bpf.h), and runs no classic program meanwhile.
fn occupy(object: &[u8], stop: &AtomicBool) {
    let mut maps = aya::Ebpf::load(object).expect("maps of the object");
    let map = maps.map_mut("OWNERS").expect("it has this map");
    let mut map = aya::maps::HashMap::<_, [u8; 16], u32>::try_from(map).expect("a hash map");
    while !stop.load(Ordering::Relaxed) {
        map.insert([1; 16], 1, 0).expect("room for one");
    }
}

/// Sets the flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_program_that_the_kernel_did_not_run_is_counted() {
    let (Some(file), Some(object)) = (file(), std::env::var_os("GLAKE_EBPF_OBJECT")) else {
        eprintln!("skipped: needs GLAKE_EBPF_OBJECT, as cargo xtask test sets it");
        return;
    };
    let object = std::fs::read(object).expect("the object");
    let _alone = ALONE.lock();
    let mut live = Live::start(settings(false), Path::new("/")).expect("the source starts");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| occupy(&object, &stop));
        }
        // A failure must end them too, or the scope never ends.
        let stopped = Stop(&stop);
        let mut readers = Vec::new();
        let sample = until(&mut live, "a program that was not run", |s| {
            let done = not_run(s) > 0;
            if !done {
                readers.push(file.read());
            }
            done
        });
        drop(stopped);
        let seen: u64 = readers.iter().map(|reader| of_dd(&sample, *reader, Operation::Read).0).sum();
        let read = readers.len() as u64 * BLOCKS;
        assert!(
            seen <= read && read - seen <= missed(&sample) + read / 100,
            "{seen} of {read}: {:?}",
            sample.dropped
        );
    });
}

#[test]
fn readings_go_on_without_any_capability() {
    let Some(file) = file() else { return };
    let _alone = ALONE.lock();
    let mut live = Live::start(settings(true), Path::new("/")).expect("the source starts");
    let read = std::thread::spawn(move || {
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).expect("this thread gives up its capabilities");
        let reader = file.read();
        let after = live.sample().expect("a sample");
        live.events().expect("events");
        of_dd(&after, reader, Operation::Read).0
    })
    .join()
    .expect("no panic");
    // A kernel short of CPU time leaves some ends out.
    assert!(read <= BLOCKS && read > BLOCKS - BLOCKS / 8, "{read}");
}

#[test]
fn every_probe_is_on_or_says_why_not() {
    let probes = try_probes(Path::new("/"), &Settings::default()).expect("trying is never refused");
    let programs = glake::events::ebpf::probe_table().count();
    assert_eq!(probes.len(), programs + glake::events::ebpf::LOG_PROBES.len());
    for probe in &probes {
        assert!(probe.state == ProbeState::On || probe.reason.is_some(), "{probe:?}");
    }
    if !has_object() {
        let mut programs = probes.iter().take(programs);
        assert!(programs.all(|p| p.remedy.as_deref().is_some_and(|r| r.contains("cargo xtask run"))));
    }
}
