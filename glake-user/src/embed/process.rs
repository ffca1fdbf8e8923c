//! The heaps of this process, one per GPU, made when they are first needed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{publish, say};
use crate::error::{Error, Kind, Result};
use crate::gpu::Stream;
use crate::stitch::{Block, Config, Found, Heap, Reclaimer, Stats};
use crate::sys::process;

/// More GPUs than any host has.
const MOST_GPUS: usize = 64;

/// A heap that is in use.
struct Opened {
    heap: Arc<Heap>,
    reclaimer: Mutex<Option<Reclaimer>>,
    /// See [`Process::idle_stream`].
    idle: OnceLock<Stream>,
    /// The program reset the device: its memory is gone, and with it everything in this heap.
    gone: AtomicBool,
    /// Bytes; see [`Process::set_limit`].
    second_limit: AtomicU64,
}

/// The allocator of this process.
pub struct Process {
    config: Mutex<Config>,
    heaps: [OnceLock<Result<Opened, (Kind, String)>>; MOST_GPUS],
    /// No heap at or above this ordinal: what is asked at every free looks no further.
    end: AtomicUsize,
}

/// Whether `address` lies in address space of one of this process's heaps. Takes no lock.
pub fn owns(address: u64) -> bool {
    Process::get().opened().any(|(_, o)| o.heap.owns(address))
}

impl Process {
    /// The one of this process.
    pub fn get() -> &'static Process {
        static PROCESS: OnceLock<Process> = OnceLock::new();
        PROCESS.get_or_init(|| {
            let (config, wrong) = Config::from_environment(|name| std::env::var(name).ok());
            for e in wrong {
                let line = e.chain();
                say::say_once(&line, &line);
            }
            let heaps = [const { OnceLock::new() }; MOST_GPUS];
            Process { config: Mutex::new(config), heaps, end: AtomicUsize::new(0) }
        })
    }

    /// The options that heaps are made with from now on.
    pub fn config(&self) -> Config {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes one option. Heaps that exist take a new `allocator.max_bytes` at once; the rest holds for later ones.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        config.set(name, value)?;
        for (_, opened) in self.opened() {
            opened.limit(config.options.max_bytes);
        }
        Ok(())
    }

    /// A second limit for the heap of GPU `ordinal`, beside `allocator.max_bytes`: the program's own fraction.
    pub fn set_limit(&self, ordinal: u32, bytes: u64) -> Result<()> {
        let opened = self.open(ordinal)?;
        opened.second_limit.store(bytes, Ordering::Relaxed);
        opened.limit(self.config().options.max_bytes);
        Ok(())
    }

    /// The heap of GPU `ordinal`, made now if there is none. A GPU that could not be opened is not tried again. `Unsupported`
    /// in a forked child: CUDA does not work there.
    pub fn heap(&self, ordinal: u32) -> Result<&Arc<Heap>> {
        let opened = self.open(ordinal)?;
        if opened.gone.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Unsupported, format!("GPU {ordinal} was reset by the program")));
        }
        Ok(&opened.heap)
    }

    fn open(&self, ordinal: u32) -> Result<&Opened> {
        if process::is_forked() {
            return Err(Error::new(Kind::Unsupported, "GLake is off in a forked child, as CUDA is"));
        }
        let slot = self.heaps.get(ordinal as usize).ok_or_else(|| {
            Error::new(Kind::BadInput, format!("GPU {ordinal}, and GLake knows {MOST_GPUS}"))
        })?;
        let opened = slot.get_or_init(|| self.make(ordinal).map_err(|e| (e.kind(), e.chain())));
        self.end.fetch_max(ordinal as usize + 1, Ordering::Release);
        opened.as_ref().map_err(|(kind, why)| Error::new(*kind, why.clone()))
    }

    fn make(&self, ordinal: u32) -> Result<Opened> {
        // Only now: a child forked before there was a heap may use CUDA, and heaps of its own.
        process::watch_forks();
        let heap = Arc::new(Heap::new(crate::standin::device(ordinal)?, self.config().options)?);
        let reclaimer = Reclaimer::start(&heap)?;
        tell();
        let reclaimer = Mutex::new(Some(reclaimer));
        let (idle, gone, second_limit) = (OnceLock::new(), AtomicBool::new(false), AtomicU64::new(u64::MAX));
        Ok(Opened { heap, reclaimer, idle, gone, second_limit })
    }

    /// The GPU of a heap that is open.
    pub fn device(&self, ordinal: u32) -> Option<Arc<dyn crate::gpu::Device>> {
        self.opened()
            .find(|(number, _)| *number == ordinal)
            .map(|(_, opened)| Arc::clone(opened.heap.device()))
    }

    fn opened(&self) -> impl Iterator<Item = (u32, &Opened)> {
        let heaps = &self.heaps[..self.end.load(Ordering::Acquire)];
        (0_u32..).zip(heaps).filter_map(|(ordinal, slot)| Some((ordinal, slot.get()?.as_ref().ok()?)))
    }

    /// A stream of GLake's own into which no work is put: for shells whose blocks are idle when they come back. An event in the
    /// program's default stream would wait for its other streams, and break a capture.
    pub fn idle_stream(&self, ordinal: u32) -> Result<Stream> {
        let opened = self.open(ordinal)?;
        if let Some(stream) = opened.idle.get() {
            return Ok(*stream);
        }
        let made = opened.heap.device().create_stream()?;
        let kept = *opened.idle.get_or_init(|| made);
        if kept != made {
            // Another thread was first.
            opened.heap.device().destroy_stream(made)?;
        }
        Ok(kept)
    }

    /// Memory on GPU `ordinal` for work in `stream`.
    pub fn allocate(&self, ordinal: u32, size: u64, stream: Stream) -> Result<Block> {
        self.heap(ordinal)?.allocate(size, stream)
    }

    /// Gives a block back. After a reset of its GPU there is nothing left to give back: that is no error.
    pub fn free(&self, ordinal: u32, address: u64, stream: Stream) -> Result<()> {
        let opened = self.open(ordinal)?;
        if opened.gone.load(Ordering::Relaxed) {
            return Ok(());
        }
        opened.heap.free(address, stream)
    }

    /// The GPU whose heap has `address` in its address space.
    pub fn device_of(&self, address: u64) -> Option<u32> {
        self.opened().find(|(_, o)| o.heap.owns(address)).map(|(ordinal, _)| ordinal)
    }

    /// The block that holds `address`, and its GPU.
    pub fn find(&self, address: u64) -> Option<(u32, Found)> {
        self.opened().find_map(|(ordinal, o)| Some((ordinal, o.heap.find(address)?)))
    }

    /// Lets GPU `peer` use the memory of GPU `owner`'s heap.
    pub fn enable_peer(&self, owner: u32, peer: u32) -> Result<()> {
        self.heap(owner)?.enable_peer(peer)
    }

    /// The program resets GPU `ordinal`: the heap is not used again, and frees of its blocks do nothing.
    pub fn abandon(&self, ordinal: u32) {
        if let Some(Ok(opened)) = self.heaps.get(ordinal as usize).and_then(OnceLock::get) {
            opened.gone.store(true, Ordering::SeqCst);
            opened.stop();
        }
    }

    /// Bytes of physical memory the heap of GPU `ordinal` holds; 0 where there is none. Takes no lock.
    pub fn reserved(&self, ordinal: u32) -> u64 {
        let slot = self.heaps.get(ordinal as usize).and_then(OnceLock::get);
        slot.and_then(|s| s.as_ref().ok()).map_or(0, |opened| opened.heap.reserved())
    }

    /// The PCI address of GPU `ordinal` as sysfs spells it. `None`: no heap, no PCI device, or not told.
    pub fn pci_of(&self, ordinal: u32) -> Option<String> {
        let slot = self.heaps.get(ordinal as usize).and_then(OnceLock::get)?;
        slot.as_ref().ok()?.heap.device().pci_address()
    }

    /// The GPUs with a heap, by ordinal.
    pub fn gpus(&self) -> impl Iterator<Item = u32> {
        self.opened().map(|(ordinal, _)| ordinal)
    }

    /// The counters of each heap.
    pub fn stats(&self) -> Vec<(u32, Stats)> {
        self.opened().map(|(ordinal, o)| (ordinal, o.heap.stats())).collect()
    }

    /// The counters of each heap without the pools: quick at any number of blocks.
    pub(super) fn brief_stats(&self) -> Vec<(u32, Stats)> {
        self.opened().map(|(ordinal, o)| (ordinal, o.heap.brief_stats())).collect()
    }

    /// How often GLake could not serve and the program's own allocator did.
    pub fn fallbacks(&self) -> u64 {
        say::fallbacks()
    }
}

impl Opened {
    fn limit(&self, max_bytes: Option<u64>) {
        let least = max_bytes.unwrap_or(u64::MAX).min(self.second_limit.load(Ordering::Relaxed));
        self.heap.set_max_bytes((least < u64::MAX).then_some(least));
    }

    /// Ends the background work and waits for the call it may be in.
    fn stop(&self) {
        let reclaimer = self.reclaimer.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(reclaimer);
    }
}

/// From now on this process tells its heaps and copies to whoever looks. Called when the driver is up: so its last words come
/// before the driver goes down.
pub fn tell() {
    process::at_exit(end);
    publish::start();
}

/// At the end of the process: no driver call of ours may be under way when the driver takes itself down. The memory goes with
/// the process.
fn end() {
    publish::end();
    for (_, opened) in Process::get().opened() {
        opened.stop();
    }
}
