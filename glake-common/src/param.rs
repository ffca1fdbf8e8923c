//! Settings of the programs, fixed when they are loaded. The verifier sees them as constants and drops dead branches.

/// Name of the global.
pub const GLOBAL: &str = "PARAMS";
/// How many settings there are.
pub const COUNT: usize = 14;

/// Sets of [`crate::block::SlotSet`] less one.
pub const SLOT_MASK: usize = 0;
/// Sets of the device table less one.
pub const DEVICE_MASK: usize = 1;
/// Copies of every counter, by CPU number: a power of two.
pub const SHARDS: usize = 2;
/// Histogram blocks in the pool.
pub const BLOCKS: usize = 3;
/// Copies of every workload cell, by CPU number: a power of two.
pub const CELL_SHARDS: usize = 4;
/// Sets of the NVMe command table less one.
pub const NVME_MASK: usize = 5;
/// Sets of [`crate::nvme::FlightSet`] less one.
pub const FLIGHT_MASK: usize = 6;
/// Sets of the table of named things less one.
pub const NAMED_MASK: usize = 7;
/// A request that takes longer, in microseconds, becomes an event; 0: none does.
pub const SLOW_IO_US: usize = 8;
/// 1: take the start and issue times ourselves, because a queue does not stamp its requests.
pub const STAMP: usize = 9;
/// 1: only the probed process counts as a task; see [`crate::block`]. Without BTF user space tells kernel threads apart.
pub const HAS_TASK_FLAGS: usize = 10;
/// 1: record an event for each failed request.
pub const IO_ERRORS: usize = 11;
/// Sets of the table of GPUs less one.
pub const UVM_GPU_MASK: usize = 12;
/// The device number of /dev/nvidia-uvm as the kernel keeps it: `major << 20`.
pub const UVM_DEVICE: usize = 13;
