//! NVIDIA's nvidia-uvm module: page faults and page migrations of managed memory.

use super::{At, Entry, Group, Hook, entry};

const fn function(program: &'static str, function: &'static str) -> Hook {
    Hook::Function { program, function, needs: &[] }
}

const fn direct(program: &'static str, function: &'static str) -> Hook {
    Hook::Direct { program, function, at: At::Entry }
}

const fn returns(program: &'static str, function: &'static str) -> Hook {
    Hook::Return { program, function }
}

const fn exit(program: &'static str, function: &'static str) -> Hook {
    Hook::Direct { program, function, at: At::Exit }
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
        &[
            function("uvm_notify", "uvm_perf_event_notify"),
            direct("uvm_notify_direct", "uvm_perf_event_notify"),
        ],
    ),
    uvm(
        "uvm_spaces",
        "the process of each address space",
        &[
            function("uvm_space", "uvm_va_space_mm_register"),
            direct("uvm_space_direct", "uvm_va_space_mm_register"),
        ],
    ),
    uvm(
        "uvm_spaces_end",
        "ended address spaces",
        &[
            function("uvm_space_end", "uvm_va_space_destroy"),
            direct("uvm_space_end_direct", "uvm_va_space_destroy"),
        ],
    ),
    uvm(
        "uvm_service",
        "start of the fault service",
        &[
            function("uvm_service", "uvm_parent_gpu_service_replayable_faults"),
            function("uvm_service", "uvm_gpu_service_replayable_faults"),
            direct("uvm_service_direct", "uvm_parent_gpu_service_replayable_faults"),
            direct("uvm_service_direct", "uvm_gpu_service_replayable_faults"),
        ],
    ),
    uvm(
        "uvm_service_end",
        "time in the fault service",
        &[
            returns("uvm_service_end", "uvm_parent_gpu_service_replayable_faults"),
            returns("uvm_service_end", "uvm_gpu_service_replayable_faults"),
            exit("uvm_service_end_direct", "uvm_parent_gpu_service_replayable_faults"),
            exit("uvm_service_end_direct", "uvm_gpu_service_replayable_faults"),
        ],
    ),
    uvm(
        "uvm_batches",
        "batches of GPU faults by size",
        &[
            function("uvm_batch", "preprocess_fault_batch"),
            direct("uvm_batch_direct", "preprocess_fault_batch"),
        ],
    ),
    uvm(
        "uvm_replays",
        "replays, and which GPU is which",
        &[
            function("uvm_replay", "uvm_tools_broadcast_replay"),
            direct("uvm_replay_direct", "uvm_tools_broadcast_replay"),
        ],
    ),
    uvm(
        "uvm_evict",
        "chunks pushed out of GPU memory",
        &[function("uvm_evict", "evict_root_chunk"), direct("uvm_evict_direct", "evict_root_chunk")],
    ),
    uvm(
        "uvm_thrash",
        "ranges that thrash",
        &[
            function("uvm_thrashing", "uvm_tools_record_thrashing"),
            direct("uvm_thrashing_direct", "uvm_tools_record_thrashing"),
        ],
    ),
    uvm(
        "uvm_throttle",
        "start of being held back",
        &[
            function("uvm_throttling", "uvm_tools_record_throttling_start"),
            direct("uvm_throttling_direct", "uvm_tools_record_throttling_start"),
        ],
    ),
    uvm(
        "uvm_throttle_end",
        "time that processors were held back",
        &[
            function("uvm_throttling_end", "uvm_tools_record_throttling_end"),
            direct("uvm_throttling_end_direct", "uvm_tools_record_throttling_end"),
        ],
    ),
    uvm(
        "uvm_fatal",
        "fatal faults",
        &[
            function("uvm_fatal", "uvm_tools_record_gpu_fatal_fault"),
            direct("uvm_fatal_direct", "uvm_tools_record_gpu_fatal_fault"),
        ],
    ),
];
