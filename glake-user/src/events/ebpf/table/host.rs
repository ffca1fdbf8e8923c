//! Probes of the IOMMU, DMA mappings, PCIe errors, io_uring, and of the GPU driver's reports.

use super::{Entry, Group, Hook, Profile, entry};
use glake_common::member;

pub(super) const PROBES: &[Entry] = &[
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
            &[Hook::Function { program: "dmar_fault", function: "dmar_fault", needs: &[] }],
        )
    },
    Entry {
        fills: "fault reports (virtio-iommu)",
        ..entry(
            "viommu_fault",
            "iommu",
            Group::Host,
            &[Hook::Function { program: "viommu_fault", function: "viommu_fault_handler", needs: &[] }],
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
            &[
                Hook::Classic {
                    program: "xid_tp",
                    category: "nvidia",
                    event: "nvidia_dev_xid",
                    global: "XID_TP",
                    fields: &["dev", "error_code", "?msg"],
                },
                // Drivers before 575 have only the function; it is called for each Xid, whether anybody has registered or not.
                Hook::Function {
                    program: "xid_call",
                    function: "nv_report_error",
                    needs: &[member::PCI_NAME],
                },
            ],
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
