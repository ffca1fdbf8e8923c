//! The host GPU: a [`Device`] of real memory. Its pieces are parts of a memory file, its address space a reservation
//! without access, and its streams run behind the host by a set lag of simulated time.
//!
//! Limit: every mapped piece is a mapping of the process, and Linux allows about 65,500 (`vm.max_map_count`).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gpu_memory::GpuMemory;
use super::gpu_space::Space;
use super::gpu_stream::{Streams, Work};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Call, Costs, Device, Event, Granularity, Handle, InFlight, Memory, Piece, Refused, Stream};
use crate::sys::buffer::{Buffer, Lent, Part};

/// What the host GPU is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Bytes of memory.
    pub capacity: u64,
    /// The unit of memory.
    pub granularity: u64,
    /// What calls cost, in simulated time.
    pub costs: Costs,
    /// How far the device runs behind the host, in nanoseconds.
    pub lag_ns: u64,
}

impl Default for Settings {
    /// As large as an H200, its calls as dear, no lag.
    fn default() -> Self {
        Settings { capacity: 139 << 30, granularity: 2 << 20, costs: Costs::H200, lag_ns: 0 }
    }
}

/// A call that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Which call.
    pub call: Call,
    /// How many of them still succeed first.
    pub after: u64,
    /// How many fail then.
    pub times: u64,
    /// With what. [`Kind::Device`] means that the device is lost: every later call fails too.
    pub kind: Kind,
}

struct Inner {
    streams: Streams,
    faults: Vec<Fault>,
    /// Why the device is lost.
    lost: Option<String>,
}

/// A GPU made of host memory.
pub struct HostGpu {
    settings: Settings,
    now_ns: AtomicU64,
    space: Space,
    inner: Mutex<Inner>,
}

impl HostGpu {
    /// A GPU as described.
    pub fn new(settings: Settings) -> Result<HostGpu> {
        let mut one = HostGpu::peers(&[settings])?;
        one.pop().ok_or_else(|| Error::new(Kind::Misuse, "a host without GPUs"))
    }

    /// GPUs of one host, which can reach each other's memory where they give access to it. At most 64.
    pub fn peers(settings: &[Settings]) -> Result<Vec<HostGpu>> {
        let settings = &settings[..settings.len().min(64)];
        let memories = settings.iter().map(|s| GpuMemory::new(s.capacity, s.granularity));
        let spaces = Space::of(memories.collect::<Result<_>>()?);
        let gpu = |(space, settings): (Space, &Settings)| HostGpu {
            settings: *settings,
            now_ns: AtomicU64::new(0),
            space,
            inner: Mutex::new(Inner { streams: Streams::new(), faults: Vec::new(), lost: None }),
        };
        Ok(spaces.zip(settings).map(gpu).collect())
    }

    /// Adds a fault to come.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Takes back the faults that have not come yet.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Moves time on to `ns`, unless it is later already, and does the work that is due.
    pub fn advance_to(&self, ns: u64) {
        self.now_ns.fetch_max(ns, Ordering::SeqCst);
        let mut inner = self.lock();
        self.catch_up(&mut inner);
    }

    /// Moves time on by `ns`.
    pub fn advance(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
        let mut inner = self.lock();
        self.catch_up(&mut inner);
    }

    /// Begins or ends the capture of a stream into a graph.
    pub fn set_capturing(&self, stream: Stream, on: bool) -> Result<()> {
        self.lock().streams.set_capturing(stream, on)
    }

    /// Bytes of physical memory held.
    pub fn held(&self) -> u64 {
        self.space.own().held
    }

    /// Why the device is lost, if it is: an access to what is not mapped, or an injected loss.
    pub fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is due. Work on memory that is not mapped loses the device, as Xid 31 does.
    fn catch_up(&self, inner: &mut Inner) {
        let now = self.now_ns.load(Ordering::SeqCst);
        if let Err(e) = inner.streams.run(now, &self.space) {
            inner.lost.get_or_insert(e.chain());
        }
    }

    /// Begins a call: time passes, due work is done, a fault may come.
    fn call(&self, call: Call, cost_ns: u64) -> Result<MutexGuard<'_, Inner>> {
        self.now_ns.fetch_add(cost_ns, Ordering::SeqCst);
        let mut inner = self.lock();
        self.catch_up(&mut inner);
        let fault = inner.faults.iter_mut().find_map(|f| {
            if f.call != call || f.times == 0 {
                return None;
            }
            if f.after > 0 {
                f.after -= 1;
                return None;
            }
            f.times -= 1;
            Some(f.kind)
        });
        if fault == Some(Kind::Device) {
            inner.lost.get_or_insert_with(|| format!("injected at {}", call.name()));
        }
        if let Some(why) = &inner.lost {
            let doing = format!("{} on a lost host GPU ({why})", call.name());
            return Err(
                Error::new(Kind::Device, doing).remedy("end the process; the device's memory is gone")
            );
        }
        match fault {
            Some(kind) => Err(Error::new(kind, format!("{} failed by an injected fault", call.name()))),
            None => Ok(inner),
        }
    }

    /// A call paid by the handle: the whole cost is charged before it happens.
    fn call_on(&self, call: Call, address: u64, size: u64) -> Result<MutexGuard<'_, Inner>> {
        let line = if call == Call::Unmap { self.settings.costs.unmap } else { self.settings.costs.access };
        let handles = self.space.own().handles(address, size);
        self.call(call, handles.iter().map(|h| line.at(*h)).sum())
    }

    /// Puts a copy between host and device into a stream, and a mark after it.
    fn fly(
        &self,
        stream: Stream,
        part: Part,
        pieces: &[Piece],
        work: impl FnOnce(Arc<Lent>, Vec<Piece>) -> Work,
    ) -> Result<InFlight, Refused> {
        let part = Refused::outside(part, pieces)?;
        let lent = Arc::new(Lent::new(part));
        let event =
            self.push(stream, work(Arc::clone(&lent), pieces.to_vec())).and_then(|()| self.record(stream));
        match (event, Arc::try_unwrap(lent)) {
            (Ok(event), Ok(lent)) => Ok(InFlight::new(Arc::new(lent), event)),
            (Ok(event), Err(shared)) => Ok(InFlight::new(shared, event)),
            // Nobody else holds it: the work was never put in.
            (Err(error), Ok(lent)) => Err(Refused::before(lent.back(), error)),
            (Err(error), Err(_)) => Err(Refused { error, part: None }),
        }
    }

    fn push(&self, stream: Stream, work: Work) -> Result<()> {
        let start = self.now_ns() + self.settings.lag_ns;
        let mut inner = self.call(Call::Record, 0)?;
        inner.streams.push(stream, start, work)?;
        self.catch_up(&mut inner);
        Ok(())
    }

    /// Jumps from one piece of work to the next until `done` holds or nothing more can start.
    fn run_until(&self, deadline: u64, done: impl Fn(&mut Streams) -> Result<bool>) -> Result<bool> {
        loop {
            let mut inner = self.call(Call::Wait, 0)?;
            if done(&mut inner.streams)? {
                return Ok(true);
            }
            match inner.streams.next_start() {
                Some(at) if at <= deadline => self.now_ns.fetch_max(at, Ordering::SeqCst),
                _ => return Ok(false),
            };
        }
    }
}

impl Device for HostGpu {
    fn ordinal(&self) -> u32 {
        self.space.ordinal()
    }

    fn name(&self) -> String {
        "host GPU".to_owned()
    }

    fn granularity(&self) -> Result<Granularity> {
        let minimum = self.settings.granularity;
        Ok(Granularity { minimum, recommended: minimum })
    }

    fn memory(&self) -> Result<Memory> {
        let own = self.space.own();
        Ok(Memory { free: own.capacity - own.held, total: own.capacity })
    }

    fn costs(&self) -> Costs {
        self.settings.costs
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn reserve(&self, size: u64) -> Result<u64> {
        let _one = self.call(Call::Reserve, 0)?;
        self.space.own().reserve(size)
    }

    fn unreserve(&self, address: u64, size: u64) -> Result<()> {
        self.space.own().unreserve(address, size)
    }

    fn create(&self, size: u64) -> Result<Handle> {
        let _one = self.call(Call::Create, self.settings.costs.create.at(size))?;
        self.space.own().create(size)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        let _one = self.call(Call::Release, self.settings.costs.release.fixed)?;
        self.space.own().release(handle)
    }

    fn map(&self, address: u64, size: u64, handle: Handle) -> Result<()> {
        let _one = self.call(Call::Map, self.settings.costs.map.at(size))?;
        self.space.own().map(address, size, handle)
    }

    fn set_access(&self, address: u64, size: u64) -> Result<()> {
        let _one = self.call_on(Call::SetAccess, address, size)?;
        self.space.own().set_access(address, size)
    }

    fn unmap(&self, address: u64, size: u64) -> Result<()> {
        let _one = self.call_on(Call::Unmap, address, size)?;
        self.space.own().unmap(address, size)
    }

    fn enable_peer(&self, ordinal: u32) -> Result<()> {
        if ordinal as usize >= self.space.gpus() || ordinal == self.ordinal() {
            let doing = format!("giving GPU {ordinal} access to the memory of host GPU {}", self.ordinal());
            return Err(Error::new(Kind::Unsupported, doing).remedy("it is no peer of this one"));
        }
        self.space.own().enable_peer(ordinal);
        Ok(())
    }

    fn export(&self, handle: Handle) -> Result<OwnedFd> {
        let _one = self.call(Call::Create, 0)?;
        self.space.own().export(handle)
    }

    fn import(&self, fd: BorrowedFd<'_>, size: u64) -> Result<Handle> {
        let fd = fd.try_clone_to_owned().map_err(|e| Error::os("duplicating a descriptor", e))?;
        let _one = self.call(Call::Create, 0)?;
        self.space.own().import(fd, size)
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(self.lock().streams.create())
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        self.synchronize(stream)?;
        self.lock().streams.destroy(stream)
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool> {
        self.lock().streams.is_capturing(stream)
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        let mut inner = self.call(Call::Record, self.settings.costs.record)?;
        let event = inner.streams.record(stream, self.now_ns() + self.settings.lag_ns)?;
        self.catch_up(&mut inner);
        Ok(event)
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        self.call(Call::Query, self.settings.costs.query)?.streams.is_done(event)
    }

    fn wait(&self, event: Event, timeout_ns: u64) -> Result<()> {
        if self.run_until(self.now_ns().saturating_add(timeout_ns), |s| s.is_done(event))? {
            return Ok(());
        }
        Err(Error::new(Kind::TimedOut, format!("waiting {timeout_ns} ns for event {}", event.0)))
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.push(stream, Work::WaitFor(event))
    }

    fn recycle(&self, event: Event) {
        self.lock().streams.recycle(event);
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        match self.run_until(u64::MAX, |s| s.is_idle(stream))? {
            true => Ok(()),
            false => Err(Error::new(Kind::Device, format!("stream {:#x} waits for ever", stream.0))),
        }
    }

    fn fill(&self, stream: Stream, address: u64, size: u64, byte: u8) -> Result<()> {
        self.push(stream, Work::Fill { address, size, byte })
    }

    fn copy(&self, stream: Stream, to: u64, from: u64, size: u64) -> Result<()> {
        self.push(stream, Work::Copy { to, from, size })
    }

    fn write(&self, stream: Stream, to: u64, bytes: &[u8]) -> Result<()> {
        self.synchronize(stream)?;
        self.space.write(to, bytes)
    }

    fn read(&self, stream: Stream, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.synchronize(stream)?;
        self.space.read(from, bytes)
    }

    fn register(&self, _buffer: &Buffer) -> Result<()> {
        self.call(Call::Create, 0).map(drop)
    }

    fn upload(&self, stream: Stream, part: Part, pieces: &[Piece]) -> Result<InFlight, Refused> {
        self.fly(stream, part, pieces, |lent, pieces| Work::Upload { lent, pieces })
    }

    fn download(&self, stream: Stream, part: Part, pieces: &[Piece]) -> Result<InFlight, Refused> {
        self.fly(stream, part, pieces, |lent, pieces| Work::Download { lent, pieces })
    }
}
