//! NVIDIA's nvidia-uvm module: page faults and page migrations of managed memory.

use super::{Entry, Group, Hook, entry};

const fn function(program: &'static str, function: &'static str) -> Hook {
    Hook::Function { program, function }
}

/// A probe on nvidia-uvm.
const fn uvm(name: &'static str, fills: &'static str, hooks: &'static [Hook]) -> Entry {
    Entry { module: Some("nvidia_uvm"), fills, ..entry(name, "uvm", Group::Uvm, hooks) }
}

pub(super) const PROBES: &[Entry] = &[
    // The names of nvidia-uvm's functions hold from 535 to 595 except where a second one stands (up to 555).
    uvm(
        "uvm_faults",
        "page faults by access, page migrations by cause, all processes",
        &[function("uvm_notify", "uvm_perf_event_notify")],
    ),
    uvm(
        "uvm_spaces",
        "the process of each address space",
        &[function("uvm_space", "uvm_va_space_mm_register")],
    ),
    uvm("uvm_spaces_end", "ended address spaces", &[function("uvm_space_end", "uvm_va_space_destroy")]),
    uvm(
        "uvm_service",
        "start of the fault service",
        &[
            function("uvm_service", "uvm_parent_gpu_service_replayable_faults"),
            function("uvm_service", "uvm_gpu_service_replayable_faults"),
        ],
    ),
    uvm(
        "uvm_service_end",
        "time in the fault service",
        &[
            Hook::Return { program: "uvm_service_end", function: "uvm_parent_gpu_service_replayable_faults" },
            Hook::Return { program: "uvm_service_end", function: "uvm_gpu_service_replayable_faults" },
        ],
    ),
    uvm("uvm_batches", "batches of GPU faults by size", &[function("uvm_batch", "preprocess_fault_batch")]),
    uvm(
        "uvm_replays",
        "replays, and which GPU is which",
        &[function("uvm_replay", "uvm_tools_broadcast_replay")],
    ),
    uvm("uvm_evict", "chunks pushed out of GPU memory", &[function("uvm_evict", "evict_root_chunk")]),
    uvm("uvm_thrash", "ranges that thrash", &[function("uvm_thrashing", "uvm_tools_record_thrashing")]),
    uvm(
        "uvm_throttle",
        "start of being held back",
        &[function("uvm_throttling", "uvm_tools_record_throttling_start")],
    ),
    uvm(
        "uvm_throttle_end",
        "time that processors were held back",
        &[function("uvm_throttling_end", "uvm_tools_record_throttling_end")],
    ),
    uvm("uvm_fatal", "fatal faults", &[function("uvm_fatal", "uvm_tools_record_gpu_fatal_fault")]),
];
