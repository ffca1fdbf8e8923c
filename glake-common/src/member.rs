//! Members of kernel structures that the programs read. User space looks each up in the running kernel's BTF and hands
//! the offsets over in [`GLOBAL`]; no offset is compiled in.

/// Name of the global that holds one offset per line of [`MEMBERS`]; [`crate::NONE`] where this kernel lacks it.
pub const GLOBAL: &str = "OFFSETS";

macro_rules! members {
    ($($(#[$doc:meta])* $id:ident = $structure:literal . $path:literal),* $(,)?) => {
        members!(@count 0usize; $($(#[$doc])* $id),*);
        /// Structure and path of each, in the order of the indices. An empty path is the end of the structure: its size.
        pub const MEMBERS: [(&str, &str); COUNT] = [$(($structure, $path)),*];
    };
    (@count $n:expr; $(#[$doc:meta])* $id:ident $(, $($rest:tt)*)?) => {
        $(#[$doc])* pub const $id: usize = $n;
        members!(@count $n + 1usize; $($($rest)*)?);
    };
    (@count $n:expr;) => {
        /// How many members there are.
        pub const COUNT: usize = $n;
    };
}

members! {
    /// The request's queue.
    RQ_Q = "request"."q",
    /// Operation in the low 8 bits, flags above.
    RQ_CMD_FLAGS = "request"."cmd_flags",
    /// Bytes not yet completed.
    RQ_DATA_LEN = "request"."__data_len",
    /// The first bio.
    RQ_BIO = "request"."bio",
    /// When the request was made, CLOCK_MONOTONIC; 0 where `queue/iostats` is 0.
    RQ_START = "request"."start_time_ns",
    /// When it was issued; 0 where nobody on the queue asked for statistics.
    RQ_IO_START = "request"."io_start_time_ns",
    /// The hardware queue.
    RQ_HCTX = "request"."mq_hctx",
    /// The disk of a queue.
    Q_DISK = "request_queue"."disk",
    /// Major number.
    DISK_MAJOR = "gendisk"."major",
    /// Minor number of the whole disk.
    DISK_MINOR = "gendisk"."first_minor",
    /// The cgroup's I/O group of a bio.
    BIO_BLKG = "bio"."bi_blkg",
    /// Operation and flags of a bio.
    BIO_OPF = "bio"."bi_opf",
    /// Bytes of a bio.
    BIO_SIZE = "bio"."bi_iter.bi_size",
    /// The block device of a bio.
    BIO_BDEV = "bio"."bi_bdev",
    /// The disk of a block device.
    BDEV_DISK = "block_device"."bd_disk",
    /// The block cgroup of an I/O group.
    BLKG_BLKCG = "blkcg_gq"."blkcg",
    /// The cgroup of a block cgroup.
    BLKCG_CGROUP = "blkcg"."css.cgroup",
    /// The hierarchy that a cgroup belongs to.
    CGROUP_ROOT = "cgroup"."root",
    /// Number of a hierarchy: 0 is cgroup2.
    ROOT_HIERARCHY = "cgroup_root"."hierarchy_id",
    /// The folder of a cgroup.
    CGROUP_KN = "cgroup"."kn",
    /// Inode number of a folder: the cgroup id of cgroup2.
    KN_ID = "kernfs_node"."id",
    /// PF_* flags of a task.
    TASK_FLAGS = "task_struct"."flags",
    /// What the user of a queue keeps there; a namespace or nothing, with NVMe.
    Q_DATA = "request_queue"."queuedata",
    /// The size of a request: what the driver keeps of one follows it.
    RQ_SIZE = "request"."",
    /// The submission queue entry of a command.
    NVME_CMD = "nvme_request"."cmd",
    /// How often it was tried again.
    NVME_RETRIES = "nvme_request"."retries",
    /// Its status field without the phase bit.
    NVME_STATUS = "nvme_request"."status",
    /// Its controller.
    NVME_CTRL = "nvme_request"."ctrl",
    /// The N of /dev/nvmeN.
    CTRL_INSTANCE = "nvme_ctrl"."instance",
    /// Number of a hardware queue.
    HCTX_NUM = "blk_mq_hw_ctx"."queue_num",
    /// What a driver keeps of an open file.
    FILE_PRIVATE = "file"."private_data",
    /// The inode of an open file.
    FILE_INODE = "file"."f_inode",
    /// The device number of a device node.
    INODE_RDEV = "inode"."i_rdev",
    /// The process that a thread belongs to.
    TASK_TGID = "task_struct"."tgid",
    /// The name of a thread.
    TASK_COMM = "task_struct"."comm",
    /// The cgroups that a thread is in.
    TASK_CGROUPS = "task_struct"."cgroups",
    /// Its cgroup of cgroup2.
    CSS_SET_CGROUP = "css_set"."dfl_cgrp",
    /// The name of a PCI device, which is its address as text.
    PCI_NAME = "pci_dev"."dev.kobj.name",
}
