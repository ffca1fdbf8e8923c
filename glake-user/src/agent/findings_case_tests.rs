//! Managed memory that people had trouble with, each with what the kernel said or what was counted, and what is right to say of
//! it: a table to be read. Counters go in as the probes give them, findings come out as the agent shows them.

use super::*;
use crate::events::kmsg::trouble::Troubles;
use crate::events::nvml::{GpuHealth, Memory, Nvml};
use crate::events::sample::{Histogram, Sample, Uvm, UvmAccess, UvmGpu as Counted, UvmMoved, UvmSpace};
use crate::host::inventory::{Gpu, Inventory};

/// What a GPU does in the second that is given, in bytes.
#[derive(Clone, Copy, Default)]
struct Second {
    faults: u64,
    to_gpu: u64,
    to_cpu: u64,
    evicted: u64,
    /// Runs of the fault service and the time in them.
    services: (u64, u64),
}

const GB: u64 = 1_000_000_000;
const NOTHING: Second = Second { faults: 0, to_gpu: 0, to_cpu: 0, evicted: 0, services: (0, 0) };

struct Case {
    number: &'static str,
    log: &'static str,
    each: fn(u64) -> Second,
    /// Rule and severity of every finding that holds after five minutes.
    holds: &'static [(&'static str, &'static str)],
    says: &'static [&'static str],
    never: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        number: "G01: the driver's thread spins in eviction under HMM; faults stop; another GPU pages on",
        log: include_str!("../../../tests/data/cases/g01.log"),
        each: |_| Second { to_gpu: GB, to_cpu: GB, evicted: GB, ..NOTHING },
        holds: &[("uvm_oversubscribed", "ticket"), ("uvm_stuck_in_eviction", "page")],
        says: &[
            "not a busy GPU",
            "UVM GPU1 BH (pid 2231)",
            "restart this host",
            "a reset of the GPU is refused while the task spins, and trying again does not help",
            "less managed memory than the GPU has",
            "uvm_disable_hmm=1",
        ],
        never: &["reset the GPU"],
    },
    Case {
        number: "G03: 100 GB of managed memory on a smaller card: nothing fails, paging rises",
        log: "",
        each: |_| Second {
            faults: 12_000,
            to_gpu: 2 * GB,
            to_cpu: 2 * GB,
            evicted: 2 * GB,
            services: (50, 410_000_000),
        },
        holds: &[("uvm_oversubscribed", "ticket")],
        says: &[
            "No allocation fails",
            "GPU memory: 79.6 GiB of 80.0 GiB used (NVML)",
            "12000/s",
            "pushed out of GPU memory 2.00 GB/s",
            "41.0 % of the time",
        ],
        never: &["allocation failed"],
    },
    Case {
        number: "G05: two programs of 32 GB take turns over 32 GB/s, 30 s each",
        log: "",
        each: |s| match s % 32 {
            0 => Second { to_cpu: 32 * GB, evicted: 32 * GB, ..NOTHING },
            1 => Second { to_gpu: 32 * GB, faults: 90_000, ..NOTHING },
            _ => NOTHING,
        },
        holds: &[("uvm_taking_turns", "info")],
        says: &["every 32 s", "Planned, no thrashing", "each 2.0 s", "6.2 % of the time"],
        never: &["more managed memory is in use on this GPU than fits"],
    },
    Case {
        number: "G07: a hundred switches a second between CPU and GPU, thirty faults of 60 us each",
        log: "",
        each: |_| Second {
            faults: 3_000,
            to_gpu: GB / 10,
            to_cpu: GB / 10,
            services: (3_000, 3_000 * 60_000),
            ..NOTHING
        },
        holds: &[("uvm_ping_pong", "info")],
        says: &[
            "GPU memory is not short",
            "copy explicitly",
            "cheaper on the CPU",
            "18.0 % of the time",
            "60 us a run",
        ],
        never: &["than fits"],
    },
    Case {
        number: "G09: a bad page when a container ends, nvidia_uvm in the trace",
        log: include_str!("../../../tests/data/cases/g09.log"),
        each: |_| NOTHING,
        holds: &[("uvm_kernel_memory_corrupted", "page")],
        says: &[
            "python3 (pid 41873)",
            "uvm_disable_hmm=1",
            "the first thing to switch off",
            "The cause is not known",
        ],
        never: &[],
    },
    Case {
        number: "G11: a fifth too much, read in order",
        log: "",
        each: |_| Second { faults: 500, to_gpu: 8 * GB, to_cpu: 8 * GB, evicted: 8 * GB, ..NOTHING },
        holds: &[("uvm_oversubscribed", "ticket")],
        says: &[
            "500/s",
            "8.00 GB/s",
            "read in order: cudaMemPrefetchAsync",
            "not told by how much it asked for",
        ],
        never: &["times slower", "x slower", "1.2"],
    },
    Case {
        number: "G11: a fifth too much, touched at random",
        log: "",
        each: |_| Second { faults: 90_000, to_gpu: GB / 2, to_cpu: GB / 2, evicted: GB / 2, ..NOTHING },
        holds: &[("uvm_oversubscribed", "ticket")],
        says: &["90000/s", "500 MB/s", "touched at random: cudaMemAdviseSetPreferredLocation on the host"],
        never: &["times slower", "x slower", "1.2"],
    },
];

/// The probes' counters after `total`.
fn reading(s: u64, total: Second) -> Sample {
    let at = Stamp { monotonic_ns: s * GB, realtime_ns: s * GB };
    let moved = |cause: &str, direction: &str, bytes| UvmMoved {
        cause: cause.into(),
        direction: direction.into(),
        count: 1,
        bytes,
    };
    let uuid = Some("GPU-a".to_owned());
    let space = UvmSpace {
        serial: 1,
        tgid: Some(7),
        comm: "train".into(),
        processor: 1,
        uuid: uuid.clone(),
        gpu_faults: UvmAccess { read: total.faults, ..UvmAccess::default() },
        moved: vec![
            moved("on_demand", "to_gpu", total.to_gpu),
            moved("eviction", "to_cpu", total.evicted),
            moved("on_demand", "to_cpu", total.to_cpu - total.evicted),
        ],
        ..UvmSpace::default()
    };
    let service = Some(Histogram { slots: vec![total.services.0], sum_ns: total.services.1 });
    let gpu = Counted { uuid, service, ..Counted::default() };
    Sample { at, uvm: Some(Uvm { spaces: vec![space], gpus: vec![gpu] }), ..Sample::default() }
}

/// NVML of a card of 80 GiB in use.
fn nearly_full() -> Nvml {
    let (total, free) = (80 << 30, 400 << 20);
    let memory =
        Memory { total_bytes: total, free_bytes: free, used_bytes: total - free, reserved_bytes: None };
    let gpu = GpuHealth { uuid: Some("GPU-a".into()), memory: Some(memory), ..GpuHealth::default() };
    Nvml { gpus: vec![gpu], ..Nvml::default() }
}

/// What holds after five minutes of it.
fn after(case: &Case) -> Vec<Finding> {
    let gpu = Gpu { pci: "0000:3b:00.0".into(), uuid: Some("GPU-a".into()), ..Gpu::default() };
    let host = Inventory { gpus: vec![gpu], ..Inventory::default() };
    let (mut findings, mut troubles) = (Findings::default(), Troubles::default());
    for (line, i) in case.log.lines().zip(1..) {
        if let Some(trouble) = troubles.line(i, line) {
            findings.trouble(Stamp { monotonic_ns: i, realtime_ns: i }, &trouble, Some(false));
        }
    }
    let (mut total, mut before, mut held) = (NOTHING, reading(0, NOTHING), Vec::new());
    for s in 1..=300 {
        let more = (case.each)(s);
        total = Second {
            faults: total.faults + more.faults,
            to_gpu: total.to_gpu + more.to_gpu,
            to_cpu: total.to_cpu + more.to_cpu,
            evicted: total.evicted + more.evicted,
            services: (total.services.0 + more.services.0, total.services.1 + more.services.1),
        };
        let now = reading(s, total);
        let mut state = State::between(&before, &now, &host);
        state.nvml = Some(nearly_full());
        held = findings.observe(&state);
        before = now;
    }
    held
}

/// What is wrong with the answer to a case.
fn wrong(case: &Case) -> Vec<String> {
    let held = after(case);
    let rules: Vec<(&str, &str)> = held.iter().map(|f| (f.rule.as_str(), f.severity.as_str())).collect();
    let text: String =
        held.iter().map(|f| format!("{}; {}; {}\n", f.what, f.evidence.join("; "), f.do_now)).collect();
    let other = (rules != case.holds).then(|| format!("{}: {rules:?}, not {:?}", case.number, case.holds));
    let missing = case.says.iter().filter(|part| !text.contains(**part));
    let missing = missing.map(|part| format!("{}: {part:?} is not in\n{text}", case.number));
    let too_much = case.never.iter().filter(|part| text.contains(**part));
    let too_much = too_much.map(|part| format!("{}: {part:?} is in\n{text}", case.number));
    other.into_iter().chain(missing).chain(too_much).collect()
}

#[test]
fn every_trouble_with_managed_memory_gets_its_right_answer() {
    let wrong: Vec<String> = CASES.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
