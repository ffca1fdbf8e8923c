//! The hardware boundary: what a GPU can be asked to do.
//!
//! Addresses are numbers in the GPU's address space. Sizes are bytes. Every verb may fail with [`Kind::Device`] when the
//! device is lost; other failures are listed at the verb. No verb panics.
//!
//! [`Kind::Device`]: crate::error::Kind::Device

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Costs, InFlight, Late, Piece, Refused};
use crate::error::Result;
use crate::sys::buffer::{Buffer, Part};

/// A piece of physical memory on the device: what cuMemCreate gives. A number to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// A stream: work in it runs in order. 0 is the default stream; other values are the driver's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Stream(pub u64);

/// A mark in a stream that can be asked after. Reusable: see [`Device::record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// The unit of physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granularity {
    /// Handles, mappings and reservations are multiples of this.
    pub minimum: u64,
    /// The size below which the device may be slower.
    pub recommended: u64,
}

/// The device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes nobody holds, as the driver sees it.
    pub free: u64,
    /// All bytes.
    pub total: u64,
}

/// The calls that are counted and timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Call {
    /// cuMemAddressReserve
    Reserve,
    /// cuMemCreate
    Create,
    /// cuMemMap
    Map,
    /// cuMemSetAccess
    SetAccess,
    /// cuMemUnmap
    Unmap,
    /// cuMemRelease
    Release,
    /// cuEventRecord, with its creation where none was pooled
    Record,
    /// cuEventQuery
    Query,
    /// cuEventSynchronize
    Wait,
}

impl Call {
    /// All of them, in the order of their numbers.
    pub const ALL: [Call; 9] = [
        Call::Reserve,
        Call::Create,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::Release,
        Call::Record,
        Call::Query,
        Call::Wait,
    ];

    /// The name in metrics and JSON.
    pub fn name(self) -> &'static str {
        ["reserve", "create", "map", "set_access", "unmap", "release", "record", "query", "wait"]
            [self as usize]
    }
}

/// One GPU.
pub trait Device: Send + Sync {
    /// Its index among the GPUs this process sees.
    fn ordinal(&self) -> u32;

    /// Its name: "NVIDIA H200", "host GPU".
    fn name(&self) -> String;

    /// Its PCI address as sysfs spells it: `0000:3b:00.0`. `None`: it is no PCI device, or the driver does not say.
    fn pci_address(&self) -> Option<String> {
        None
    }

    /// The unit of physical memory.
    fn granularity(&self) -> Result<Granularity>;

    /// Free and total memory as the driver sees them now.
    fn memory(&self) -> Result<Memory>;

    /// What its calls cost, for plans.
    fn costs(&self) -> Costs;

    /// The device's idea of time in nanoseconds: the system's monotonic clock, or simulated time.
    fn now_ns(&self) -> u64;

    /// Takes `size` bytes of address space, no memory behind it. `Exhausted` when there is none.
    fn reserve(&self, size: u64) -> Result<u64>;

    /// Gives back exactly what [`Device::reserve`] gave. Nothing may be mapped in it.
    fn unreserve(&self, address: u64, size: u64) -> Result<()>;

    /// Physical memory of `size` bytes, a multiple of the granularity. `Exhausted` when the device has none left.
    fn create(&self, size: u64) -> Result<Handle>;

    /// Gives a handle back. Its memory lives on while it is mapped anywhere.
    fn release(&self, handle: Handle) -> Result<()>;

    /// Maps the whole of `handle` at `address`, inside a reservation, where nothing is mapped. A handle may be mapped at
    /// several places at once. No access yet: see [`Device::set_access`].
    fn map(&self, address: u64, size: u64, handle: Handle) -> Result<()>;

    /// Lets this device, and the peers that asked with [`Device::enable_peer`], read and write the range. All of it
    /// must be mapped. One call per range: the cost is per handle in it.
    fn set_access(&self, address: u64, size: u64) -> Result<()>;

    /// Unmaps a range made of whole mappings. The caller must know that no work still uses it: the driver does not wait.
    fn unmap(&self, address: u64, size: u64) -> Result<()>;

    /// Peer `ordinal` gets access to ranges from now on. Earlier ranges: call [`Device::set_access`] again.
    fn enable_peer(&self, ordinal: u32) -> Result<()>;

    /// A file descriptor through which another process can import the handle.
    fn export(&self, handle: Handle) -> Result<OwnedFd>;

    /// A handle of another process's memory.
    fn import(&self, fd: BorrowedFd<'_>, size: u64) -> Result<Handle>;

    /// A new stream that does not wait for the default stream.
    fn create_stream(&self) -> Result<Stream>;

    /// Destroys a stream made by [`Device::create_stream`]; its work is finished first.
    fn destroy_stream(&self, stream: Stream) -> Result<()>;

    /// True while the stream is being captured into a graph: then no event, query or wait may be made.
    fn is_capturing(&self, stream: Stream) -> Result<bool>;

    /// Marks the end of the work now in `stream`. The event comes from a pool; give it back with [`Device::recycle`].
    fn record(&self, stream: Stream) -> Result<Event>;

    /// True once all work before the mark is done. Does not wait.
    fn is_done(&self, event: Event) -> Result<bool>;

    /// Waits for the mark, `timeout_ns` at most: [`Kind::TimedOut`](crate::error::Kind::TimedOut) after that.
    fn wait(&self, event: Event, timeout_ns: u64) -> Result<()>;

    /// Makes later work of `stream` wait for the mark, on the device; the caller goes on.
    fn stream_wait(&self, stream: Stream, event: Event) -> Result<()>;

    /// Puts an event back into the pool.
    fn recycle(&self, event: Event);

    /// Waits for all work of a stream.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Fills device memory with a byte, in stream order.
    fn fill(&self, stream: Stream, address: u64, size: u64, byte: u8) -> Result<()>;

    /// Copies device memory, in stream order. The ranges do not overlap.
    fn copy(&self, stream: Stream, to: u64, from: u64, size: u64) -> Result<()>;

    /// Copies host memory to the device after the stream's earlier work, and waits for it.
    fn write(&self, stream: Stream, to: u64, bytes: &[u8]) -> Result<()>;

    /// Copies device memory to the host after the stream's earlier work, and waits for it.
    fn read(&self, stream: Stream, from: u64, bytes: &mut [u8]) -> Result<()>;

    /// Lets every GPU of this process copy from and to the buffer without a stop on the way, until the buffer is freed.
    /// About 43 ms a GiB (H200). `Exhausted` when no more memory may be locked.
    fn register(&self, buffer: &Buffer) -> Result<()>;

    /// Begins to copy pieces of `part` to the device, in stream order. The part belongs to the copy until
    /// [`Device::collect`] gives it back.
    fn upload(&self, stream: Stream, part: Part, pieces: &[Piece]) -> Result<InFlight, Refused>;

    /// Begins to copy pieces of device memory into `part`; otherwise as [`Device::upload`].
    fn download(&self, stream: Stream, part: Part, pieces: &[Piece]) -> Result<InFlight, Refused>;

    /// Waits for a copy, `timeout_ns` at most, and gives its part back. A copy that is late may be asked after again; if it
    /// is dropped instead, its part's memory is kept for ever.
    fn collect(&self, flight: InFlight, timeout_ns: u64) -> Result<Part, Late> {
        match self.wait(flight.event(), timeout_ns) {
            Ok(()) => {
                self.recycle(flight.event());
                flight.landed()
            }
            Err(error) => Err(Late { error, flight: Some(flight) }),
        }
    }
}
