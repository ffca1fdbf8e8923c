//! One event in the ring buffer: rare or slow things only.

use crate::shared;

/// Longest text kept.
pub const TEXT: usize = 128;

/// What happened. The meaning of `a`, `b`, `value` and `text` follows.
pub mod kind {
    /// A request failed. a: device, b: operation, value: status (blk_status_t, or errno below 0).
    pub const IO_ERROR: u32 = 1;
    /// A request was slow. a: device, b: operation, value: ns.
    pub const SLOW_IO: u32 = 2;
    /// An Xid. a: 1 by the driver's reporting function, which has no message yet; b: code, name: PCI device, text: message.
    pub const XID: u32 = 3;
    /// An SXid. b: code, name: PCI device, text: message.
    pub const SXID: u32 = 4;
    /// AER. a: severity, b: status bits, name: PCI device.
    pub const AER: u32 = 5;
    /// IOMMU fault with a device. b: flags, value: iova, name: device.
    pub const IOMMU_FAULT: u32 = 6;
    /// NVMe asynchronous event. a: controller, b: result.
    pub const NVME_ASYNC: u32 = 7;
    /// An NVMe command failed. a: controller, b: queue << 16 | opcode, value: status.
    pub const NVME_ERROR: u32 = 8;
    /// A UVM fault that the driver could not service. a: process (0: unknown), b: processor << 16 | reason << 8 | access,
    /// value: address.
    pub const UVM_FATAL: u32 = 9;
}

/// A record.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// One of [`kind`].
    pub kind: u32,
    /// See [`kind`].
    pub a: u32,
    /// CLOCK_MONOTONIC ns.
    pub at_ns: u64,
    /// See [`kind`].
    pub value: u64,
    /// See [`kind`].
    pub b: u32,
    /// Reserved, 0.
    pub spare: u32,
    /// A device's name, 0-terminated unless it fills the field.
    pub name: [u8; crate::named::NAME],
    /// Text, 0-terminated unless it fills the field.
    pub text: [u8; TEXT],
}

shared!(Record = 192);
