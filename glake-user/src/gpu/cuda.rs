//! A GPU through the CUDA driver.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Costs, Device, Event, Granularity, Handle, InFlight, Memory, Piece, Refused, Stream};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Kind, Result};
use crate::sys::buffer::{Buffer, Lent, Part};
use crate::sys::cuda_gpu::{self, CudaGpu};
use crate::sys::cuda_host;

/// Between two looks at an event that is waited for.
const LOOK: Duration = Duration::from_micros(20);

/// How many GPUs the driver shows this process. `Missing` where there is no driver.
pub fn count() -> Result<u32> {
    cuda_gpu::count()
}

/// One GPU of this process.
pub struct Cuda {
    gpu: Arc<CudaGpu>,
}

impl Cuda {
    /// Opens GPU `ordinal`. `Missing` without a driver, `Unsupported` where the GPU cannot map memory.
    pub fn open(ordinal: u32) -> Result<Cuda> {
        Ok(Cuda { gpu: Arc::new(CudaGpu::open(ordinal)?) })
    }

    /// Marks the end of a copy that `begun` says has begun; without a mark the part cannot be used again.
    fn in_flight(&self, stream: Stream, lent: Lent, begun: Result<()>) -> Result<InFlight, Refused> {
        match begun.and_then(|()| self.record(stream)) {
            Ok(event) => Ok(InFlight::new(Arc::new(lent), event)),
            Err(error) => Err(Refused::after(lent, error)),
        }
    }

    /// The driver's own calls, for benchmarks.
    pub fn raw(&self) -> &CudaGpu {
        &self.gpu
    }
}

impl Device for Cuda {
    fn ordinal(&self) -> u32 {
        self.gpu.ordinal()
    }

    fn name(&self) -> String {
        self.gpu.name().unwrap_or_else(|_| "unknown GPU".to_owned())
    }

    fn pci_address(&self) -> Option<String> {
        self.gpu.pci_address()
    }

    fn granularity(&self) -> Result<Granularity> {
        let (minimum, recommended) = self.gpu.granularity()?;
        Ok(Granularity { minimum, recommended })
    }

    fn memory(&self) -> Result<Memory> {
        let (free, total) = self.gpu.memory()?;
        Ok(Memory { free, total })
    }

    fn costs(&self) -> Costs {
        Costs::H200
    }

    fn now_ns(&self) -> u64 {
        SystemClock.now().monotonic_ns
    }

    fn reserve(&self, size: u64) -> Result<u64> {
        self.gpu.reserve(size)
    }

    fn unreserve(&self, address: u64, size: u64) -> Result<()> {
        self.gpu.unreserve(address, size)
    }

    fn create(&self, size: u64) -> Result<Handle> {
        self.gpu.create(size).map(Handle)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.gpu.release(handle.0)
    }

    fn map(&self, address: u64, size: u64, handle: Handle) -> Result<()> {
        self.gpu.map(address, size, handle.0)
    }

    fn set_access(&self, address: u64, size: u64) -> Result<()> {
        self.gpu.set_access(address, size)
    }

    fn unmap(&self, address: u64, size: u64) -> Result<()> {
        self.gpu.unmap(address, size)
    }

    fn enable_peer(&self, ordinal: u32) -> Result<()> {
        self.gpu.enable_peer(ordinal)
    }

    fn export(&self, handle: Handle) -> Result<OwnedFd> {
        self.gpu.export(handle.0)
    }

    fn import(&self, fd: BorrowedFd<'_>, _size: u64) -> Result<Handle> {
        self.gpu.import(fd).map(Handle)
    }

    fn create_stream(&self) -> Result<Stream> {
        self.gpu.create_stream().map(Stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        self.gpu.synchronize(stream.0)?;
        self.gpu.destroy_stream(stream.0)
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool> {
        self.gpu.is_capturing(stream.0)
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.gpu.record(stream.0).map(Event)
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        self.gpu.is_done(event.0)
    }

    fn wait(&self, event: Event, timeout_ns: u64) -> Result<()> {
        // cuEventSynchronize has no deadline.
        let end = Instant::now().checked_add(Duration::from_nanos(timeout_ns));
        while !self.gpu.is_done(event.0)? {
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(Error::new(Kind::TimedOut, format!("waiting {timeout_ns} ns for an event")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.gpu.stream_wait(stream.0, event.0)
    }

    fn recycle(&self, event: Event) {
        self.gpu.recycle(event.0);
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.gpu.synchronize(stream.0)
    }

    fn fill(&self, stream: Stream, address: u64, size: u64, byte: u8) -> Result<()> {
        self.gpu.fill(stream.0, address, size, byte)
    }

    fn copy(&self, stream: Stream, to: u64, from: u64, size: u64) -> Result<()> {
        self.gpu.copy(stream.0, to, from, size)
    }

    fn write(&self, stream: Stream, to: u64, bytes: &[u8]) -> Result<()> {
        self.gpu.write(stream.0, to, bytes)
    }

    fn read(&self, stream: Stream, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.gpu.read(stream.0, from, bytes)
    }

    fn register(&self, buffer: &Buffer) -> Result<()> {
        cuda_host::register(&self.gpu, buffer)
    }

    fn upload(&self, stream: Stream, part: Part, pieces: &[Piece]) -> Result<InFlight, Refused> {
        let lent = Lent::new(Refused::outside(part, pieces)?);
        let mut pieces = pieces.iter();
        let begun = pieces.try_for_each(|p| self.gpu.upload(stream.0, p.address, &lent, p.at, p.size));
        self.in_flight(stream, lent, begun)
    }

    fn download(&self, stream: Stream, part: Part, pieces: &[Piece]) -> Result<InFlight, Refused> {
        let lent = Lent::new(Refused::outside(part, pieces)?);
        let mut pieces = pieces.iter();
        let begun = pieces.try_for_each(|p| self.gpu.download(stream.0, &lent, p.at, p.address, p.size));
        self.in_flight(stream, lent, begun)
    }
}
