//! The probes: one entry each. What is not in this table does not exist.

use glake_common::member::{self, *};

/// A group of probes that is loaded at once, with maps of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Block requests and their workloads.
    Block,
    /// NVMe commands. The module may come later.
    Nvme,
    /// IOMMU, DMA, swiotlb, AER, io_uring.
    Host,
    /// The GPU driver's reports. The module may come later.
    Xid,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 4] = [Group::Block, Group::Nvme, Group::Host, Group::Xid];
}

/// When a probe is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Cheap enough to leave on.
    Light,
    /// Everything.
    Full,
}

/// One way to get at the same knowledge; the first that works is taken.
#[derive(Debug, Clone, Copy)]
pub enum Hook {
    /// A BTF trace point. `needs`: without these members it is of no use.
    Btf {
        /// The program.
        program: &'static str,
        /// The trace point.
        event: &'static str,
        /// The structure that its first argument must point to.
        argument: &'static str,
        /// Indices into [`member::MEMBERS`].
        needs: &'static [usize],
    },
    /// A classic trace point, read by its `format`.
    Classic {
        /// The program.
        program: &'static str,
        /// Category of the trace point.
        category: &'static str,
        /// The trace point.
        event: &'static str,
        /// The global that takes the offsets.
        global: &'static str,
        /// Fields by index. An optional one (`?` first) may be missing: its number is then not told.
        fields: &'static [&'static str],
    },
    /// A kernel function.
    Function {
        /// The program.
        program: &'static str,
        /// The function.
        function: &'static str,
    },
}

impl Hook {
    /// The program of this hook.
    pub fn program(&self) -> &'static str {
        match self {
            Hook::Btf { program, .. } | Hook::Classic { program, .. } | Hook::Function { program, .. } => {
                program
            }
        }
    }

    /// The hook in the kernel's words.
    pub fn describe(&self) -> String {
        match self {
            Hook::Btf { event, .. } => format!("{event} (raw trace point, BTF offsets)"),
            Hook::Classic { category, event, .. } => format!("{category}:{event} (trace point)"),
            Hook::Function { function, .. } => format!("{function} (kprobe)"),
        }
    }
}

/// A probe.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Stable name.
    pub name: &'static str,
    /// The family it serves.
    pub family: &'static str,
    /// What it is loaded with.
    pub group: Group,
    /// When it is wanted.
    pub profile: Profile,
    /// Not on means degraded.
    pub required: bool,
    /// A kernel module that brings its hook; without the module the probe is off, not failed.
    pub module: Option<&'static str>,
    /// What it fills in a sample.
    pub fills: &'static str,
    /// Ways, best first.
    pub hooks: &'static [Hook],
}

const REQUEST: &[usize] = &[RQ_Q, RQ_CMD_FLAGS, RQ_DATA_LEN, Q_DISK, DISK_MAJOR, DISK_MINOR];
const START: &[usize] =
    &[RQ_Q, RQ_CMD_FLAGS, RQ_DATA_LEN, Q_DISK, DISK_MAJOR, DISK_MINOR, member::TASK_FLAGS];
const BIO: &[usize] = &[BIO_OPF, BIO_SIZE, BIO_BDEV, BDEV_DISK, DISK_MAJOR, DISK_MINOR, member::TASK_FLAGS];
const RECORD: &[&str] = &["dev", "sector", "nr_sector", "rwbs"];

const fn btf(program: &'static str, event: &'static str, needs: &'static [usize]) -> Hook {
    Hook::Btf { program, event, argument: "request", needs }
}

const fn block(program: &'static str, event: &'static str, global: &'static str) -> Hook {
    Hook::Classic { program, category: "block", event, global, fields: RECORD }
}

const fn entry(name: &'static str, family: &'static str, group: Group, hooks: &'static [Hook]) -> Entry {
    Entry { name, family, group, profile: Profile::Light, required: false, module: None, fills: "", hooks }
}

/// Every probe there is.
pub const TABLE: &[Entry] = &[
    Entry {
        required: true,
        fills: "requests by workload; start times where the kernel does not stamp requests",
        ..entry(
            "block_start",
            "block",
            Group::Block,
            &[
                btf("block_start", "block_io_start", START),
                btf("block_start_late", "block_rq_issue", START),
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
                btf("block_issue", "block_rq_issue", REQUEST),
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
                btf("block_complete", "block_rq_complete", REQUEST),
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
                btf("block_requeue", "block_rq_requeue", REQUEST),
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
                btf("block_merge", "block_rq_merge", REQUEST),
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
                Hook::Btf {
                    program: "block_back_merge",
                    event: "block_bio_backmerge",
                    argument: "bio",
                    needs: BIO,
                },
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
                Hook::Btf {
                    program: "block_front_merge",
                    event: "block_bio_frontmerge",
                    argument: "bio",
                    needs: BIO,
                },
                block("block_front_merge_tp", "block_bio_frontmerge", "BLOCK_FRONT_MERGE_TP"),
            ],
        )
    },
    Entry {
        module: Some("nvme_core"),
        fills: "start, size and opcode of commands",
        ..entry(
            "nvme_setup",
            "nvme",
            Group::Nvme,
            &[Hook::Classic {
                program: "nvme_setup_tp",
                category: "nvme",
                event: "nvme_setup_cmd",
                global: "NVME_SETUP_TP",
                fields: &["ctrl_id", "qid", "opcode", "cid", "?nsid", "?cdw10"],
            }],
        )
    },
    Entry {
        module: Some("nvme_core"),
        fills: "commands, latency, status codes, retries",
        ..entry(
            "nvme_complete",
            "nvme",
            Group::Nvme,
            &[Hook::Classic {
                program: "nvme_complete_tp",
                category: "nvme",
                event: "nvme_complete_rq",
                global: "NVME_COMPLETE_TP",
                fields: &["ctrl_id", "qid", "cid", "?retries", "?status"],
            }],
        )
    },
    Entry {
        module: Some("nvme_core"),
        fills: "asynchronous events",
        ..entry(
            "nvme_async",
            "nvme",
            Group::Nvme,
            &[Hook::Classic {
                program: "nvme_async_tp",
                category: "nvme",
                event: "nvme_async_event",
                global: "NVME_ASYNC_TP",
                fields: &["ctrl_id", "?result"],
            }],
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
            &[Hook::Classic {
                program: "nvme_sq_tp",
                category: "nvme",
                event: "nvme_sq",
                global: "NVME_SQ_TP",
                fields: &["ctrl_id", "qid", "sq_head", "sq_tail"],
            }],
        )
    },
    Entry {
        profile: Profile::Full,
        fills: "map calls, bytes and sizes",
        ..entry(
            "iommu_map",
            "iommu",
            Group::Host,
            &[Hook::Classic {
                program: "iommu_map_tp",
                category: "iommu",
                event: "map",
                global: "IOMMU_MAP_TP",
                fields: &["size"],
            }],
        )
    },
    Entry {
        profile: Profile::Full,
        fills: "unmap calls and bytes",
        ..entry(
            "iommu_unmap",
            "iommu",
            Group::Host,
            &[Hook::Classic {
                program: "iommu_unmap_tp",
                category: "iommu",
                event: "unmap",
                global: "IOMMU_UNMAP_TP",
                fields: &["unmapped_size"],
            }],
        )
    },
    Entry {
        fills: "faults by device (AMD, SMMU; Intel does not report here)",
        ..entry(
            "iommu_fault",
            "iommu",
            Group::Host,
            &[Hook::Classic {
                program: "iommu_fault_tp",
                category: "iommu",
                event: "io_page_fault",
                global: "IOMMU_FAULT_TP",
                fields: &["device", "?iova", "?flags"],
            }],
        )
    },
    Entry {
        fills: "fault interrupts (Intel)",
        ..entry(
            "dmar_fault",
            "iommu",
            Group::Host,
            &[Hook::Function { program: "dmar_fault", function: "dmar_fault" }],
        )
    },
    Entry {
        fills: "fault reports (virtio-iommu)",
        ..entry(
            "viommu_fault",
            "iommu",
            Group::Host,
            &[Hook::Function { program: "viommu_fault", function: "viommu_fault_handler" }],
        )
    },
    Entry {
        profile: Profile::Full,
        fills: "mappings by device",
        ..entry(
            "dma_map",
            "dma",
            Group::Host,
            &[
                Hook::Classic {
                    program: "dma_map_tp",
                    category: "dma",
                    event: "dma_map_phys",
                    global: "DMA_MAP_TP",
                    fields: &["device", "size"],
                },
                Hook::Classic {
                    program: "dma_map_tp",
                    category: "dma",
                    event: "dma_map_page",
                    global: "DMA_MAP_TP",
                    fields: &["device", "size"],
                },
            ],
        )
    },
    Entry {
        profile: Profile::Full,
        fills: "scatter-gather mappings by device",
        ..entry(
            "dma_map_sg",
            "dma",
            Group::Host,
            &[Hook::Classic {
                program: "dma_map_sg_tp",
                category: "dma",
                event: "dma_map_sg",
                global: "DMA_MAP_SG_TP",
                fields: &["device", "?lengths"],
            }],
        )
    },
    Entry {
        profile: Profile::Full,
        fills: "failed scatter-gather mappings by device",
        ..entry(
            "dma_map_sg_err",
            "dma",
            Group::Host,
            &[Hook::Classic {
                program: "dma_map_sg_err_tp",
                category: "dma",
                event: "dma_map_sg_err",
                global: "DMA_MAP_SG_ERR_TP",
                fields: &["device"],
            }],
        )
    },
    Entry {
        fills: "bounces by device",
        ..entry(
            "swiotlb",
            "swiotlb",
            Group::Host,
            &[Hook::Classic {
                program: "swiotlb_tp",
                category: "swiotlb",
                event: "swiotlb_bounced",
                global: "SWIOTLB_TP",
                fields: &["dev_name", "?size"],
            }],
        )
    },
    Entry {
        fills: "AER reports by device",
        ..entry(
            "aer",
            "aer",
            Group::Host,
            &[Hook::Classic {
                program: "aer_tp",
                category: "ras",
                event: "aer_event",
                global: "AER_TP",
                fields: &["dev_name", "?status", "?severity"],
            }],
        )
    },
    Entry {
        fills: "io_uring requests punted to workers",
        ..entry(
            "io_uring_punt",
            "io_uring",
            Group::Host,
            &[Hook::Classic {
                program: "io_uring_punt_tp",
                category: "io_uring",
                event: "io_uring_queue_async_work",
                global: "",
                fields: &[],
            }],
        )
    },
    Entry {
        module: Some("nvidia"),
        fills: "Xid reports",
        ..entry(
            "xid",
            "xid",
            Group::Xid,
            &[Hook::Classic {
                program: "xid_tp",
                category: "nvidia",
                event: "nvidia_dev_xid",
                global: "XID_TP",
                fields: &["dev", "error_code", "?msg"],
            }],
        )
    },
    Entry {
        module: Some("nvidia"),
        fills: "SXid reports",
        ..entry(
            "sxid",
            "xid",
            Group::Xid,
            &[Hook::Classic {
                program: "sxid_tp",
                category: "nvswitch",
                event: "nvswitch_dev_sxid",
                global: "SXID_TP",
                fields: &["dev", "error_code", "?msg"],
            }],
        )
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_every_probe_has_a_way() {
        let names: HashSet<_> = TABLE.iter().map(|e| e.name).collect();
        assert_eq!(names.len(), TABLE.len());
        assert!(TABLE.iter().all(|e| !e.hooks.is_empty() && !e.fills.is_empty()));
    }

    #[test]
    fn hooks_that_share_a_global_agree_on_the_meaning_of_its_words() {
        for hook in TABLE.iter().flat_map(|e| e.hooks) {
            if let Hook::Classic { global, fields, .. } = hook {
                assert!(fields.len() <= 8, "{global}");
                for other in TABLE.iter().flat_map(|e| e.hooks) {
                    if let Hook::Classic { global: g, fields: f, .. } = other
                        && g == global
                    {
                        assert_eq!(f, fields, "{global}");
                    }
                }
            }
        }
    }
}
