//! Probes of block requests.

use super::{Entry, Group, Hook, entry};
use glake_common::member::*;

const DISK: &[usize] = &[DISK_MAJOR, DISK_MINOR];
const REQUEST: &[usize] = &[RQ_Q, RQ_CMD_FLAGS, RQ_DATA_LEN, Q_DISK];
const BIO: &[usize] = &[BIO_OPF, BIO_SIZE, BIO_BDEV, BDEV_DISK];
/// Who submits.
const TASK: &[usize] = &[TASK_FLAGS];
const RECORD: &[&str] = &["dev", "sector", "nr_sector", "rwbs"];

const fn btf(program: &'static str, event: &'static str) -> Hook {
    Hook::Btf { program, event, argument: "request", needs: &[REQUEST, DISK] }
}

/// One that also asks who submits.
const fn start(program: &'static str, event: &'static str) -> Hook {
    Hook::Btf { program, event, argument: "request", needs: &[REQUEST, DISK, TASK] }
}

const fn bio(program: &'static str, event: &'static str) -> Hook {
    Hook::Btf { program, event, argument: "bio", needs: &[BIO, DISK, TASK] }
}

const fn block(program: &'static str, event: &'static str, global: &'static str) -> Hook {
    Hook::Classic { program, category: "block", event, global, fields: RECORD }
}

pub(super) const PROBES: &[Entry] = &[
    Entry {
        required: true,
        fills: "requests by workload; start times where the kernel does not stamp requests",
        ..entry(
            "block_start",
            "block",
            Group::Block,
            &[
                start("block_start", "block_io_start"),
                start("block_start_late", "block_rq_issue"),
                block("block_start_tp", "block_io_start", "BLOCK_START_TP"),
            ],
        )
    },
    Entry {
        fills: "issue times where the kernel does not stamp requests",
        ..entry(
            "block_issue",
            "block",
            Group::Block,
            &[
                btf("block_issue", "block_rq_issue"),
                block("block_issue_tp", "block_rq_issue", "BLOCK_ISSUE_TP"),
            ],
        )
    },
    Entry {
        required: true,
        fills: "requests, bytes, errors, queueing and device times",
        ..entry(
            "block_complete",
            "block",
            Group::Block,
            &[
                btf("block_complete", "block_rq_complete"),
                Hook::Classic {
                    program: "block_complete_tp",
                    category: "block",
                    event: "block_rq_complete",
                    global: "BLOCK_COMPLETE_TP",
                    fields: &["dev", "sector", "nr_sector", "rwbs", "?error"],
                },
            ],
        )
    },
    Entry {
        fills: "requeues",
        ..entry(
            "block_requeue",
            "block",
            Group::Block,
            &[
                btf("block_requeue", "block_rq_requeue"),
                block("block_requeue_tp", "block_rq_requeue", "BLOCK_REQUEUE_TP"),
            ],
        )
    },
    Entry {
        fills: "merges, and their bytes by workload",
        ..entry(
            "block_merge",
            "block",
            Group::Block,
            &[
                btf("block_merge", "block_rq_merge"),
                block("block_merge_tp", "block_rq_merge", "BLOCK_MERGE_TP"),
            ],
        )
    },
    Entry {
        fills: "merges, and their bytes by workload",
        ..entry(
            "block_back_merge",
            "block",
            Group::Block,
            &[
                bio("block_back_merge", "block_bio_backmerge"),
                block("block_back_merge_tp", "block_bio_backmerge", "BLOCK_BACK_MERGE_TP"),
            ],
        )
    },
    Entry {
        fills: "merges, and their bytes by workload",
        ..entry(
            "block_front_merge",
            "block",
            Group::Block,
            &[
                bio("block_front_merge", "block_bio_frontmerge"),
                block("block_front_merge_tp", "block_bio_frontmerge", "BLOCK_FRONT_MERGE_TP"),
            ],
        )
    },
];
