//! Probes of NVMe commands. Raw trace points need no tracefs, and lose nothing when an interrupt hits another program.

use super::{Entry, Group, Hook, Profile, entry};
use glake_common::member::*;

/// Where `nvme_req_qid` and the controller's number are found.
const NVME: &[usize] = &[RQ_SIZE, RQ_Q, Q_DATA, RQ_HCTX, HCTX_NUM, NVME_CTRL, CTRL_INSTANCE];

const fn raw(program: &'static str, event: &'static str, needs: &'static [&'static [usize]]) -> Hook {
    Hook::Raw { program, event, argument: "request", needs }
}

pub(super) const PROBES: &[Entry] = &[
    Entry {
        module: Some("nvme_core"),
        fills: "start, size and opcode of commands",
        ..entry(
            "nvme_setup",
            "nvme",
            Group::Nvme,
            &[
                raw("nvme_setup", "nvme_setup_cmd", &[NVME, &[RQ_DATA_LEN]]),
                Hook::Classic {
                    program: "nvme_setup_tp",
                    category: "nvme",
                    event: "nvme_setup_cmd",
                    global: "NVME_SETUP_TP",
                    fields: &["ctrl_id", "qid", "opcode", "cid", "?nsid", "?cdw10"],
                },
            ],
        )
    },
    Entry {
        module: Some("nvme_core"),
        fills: "commands, latency, status codes, retries",
        ..entry(
            "nvme_complete",
            "nvme",
            Group::Nvme,
            &[
                raw("nvme_complete", "nvme_complete_rq", &[NVME, &[NVME_CMD, NVME_RETRIES, NVME_STATUS]]),
                Hook::Classic {
                    program: "nvme_complete_tp",
                    category: "nvme",
                    event: "nvme_complete_rq",
                    global: "NVME_COMPLETE_TP",
                    fields: &["ctrl_id", "qid", "cid", "?retries", "?status"],
                },
            ],
        )
    },
    Entry {
        module: Some("nvme_core"),
        fills: "asynchronous events",
        ..entry(
            "nvme_async",
            "nvme",
            Group::Nvme,
            &[
                Hook::Raw {
                    program: "nvme_async",
                    event: "nvme_async_event",
                    argument: "nvme_ctrl",
                    needs: &[&[CTRL_INSTANCE]],
                },
                Hook::Classic {
                    program: "nvme_async_tp",
                    category: "nvme",
                    event: "nvme_async_event",
                    global: "NVME_ASYNC_TP",
                    fields: &["ctrl_id", "?result"],
                },
            ],
        )
    },
    Entry {
        module: Some("nvme_core"),
        profile: Profile::Full,
        fills: "fill of submission queues",
        ..entry(
            "nvme_sq",
            "nvme",
            Group::Nvme,
            &[
                raw("nvme_sq", "nvme_sq", &[NVME]),
                Hook::Classic {
                    program: "nvme_sq_tp",
                    category: "nvme",
                    event: "nvme_sq",
                    global: "NVME_SQ_TP",
                    fields: &["ctrl_id", "qid", "sq_head", "sq_tail"],
                },
            ],
        )
    },
];
