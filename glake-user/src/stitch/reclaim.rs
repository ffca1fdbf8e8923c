//! Background work: unmaps what the GPU is done with and makes handles ahead, a little at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::heap::Heap;
use super::lane::{Lane, Zombie};
use super::lanes::lock;
use crate::error::{Error, Result};

/// What one call of [`Heap::reclaim`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimed {
    /// Address space unmapped.
    pub unmapped: u64,
    /// Physical memory made ahead.
    pub made: u64,
    /// Address space that still waits.
    pub waiting: u64,
}

/// Handles unmapped between two looks at whether somebody needs the driver.
const BATCH: usize = 4;

impl Heap {
    /// Background work for about `budget_ns` of driver time. Returns early when an allocation needs the driver, and does
    /// nothing while a graph is captured.
    pub fn reclaim(&self, budget_ns: u64) -> Result<Reclaimed> {
        let mut done = Reclaimed::default();
        let start = self.back.total().ns;
        for lane in self.lanes.all() {
            loop {
                if self.captures.load(Ordering::SeqCst) > 0 {
                    return Ok(done);
                }
                let ripe = self.next_ripe(lane)?;
                for zombie in &ripe {
                    let unmapped = self.back.unmap(zombie.address, zombie.size);
                    if let Err(e) = &unmapped {
                        log::warn!("address range {:#x} is given up: {}", zombie.address, e.chain());
                    }
                    lock(lane).cleared(zombie, unmapped.is_ok());
                    done.unmapped += zombie.size;
                }
                let spent = self.back.total().ns - start;
                if ripe.is_empty() || spent >= budget_ns || self.busy.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            done.waiting += lock(lane).tally.zombie;
        }
        done.made = self.make_ahead()?;
        Ok(done)
    }

    /// Closes the lane's epoch where other streams may want the memory, and takes the next zombies. Frees close no epoch
    /// themselves: an event costs more than the free.
    fn next_ripe(&self, lane: &Mutex<Lane>) -> Result<Vec<Zombie>> {
        let mut lane = lock(lane);
        if self.needs_epochs() {
            let stream = lane.stream;
            lane.epochs.close_used(&self.back, stream);
        }
        lane.poll(&self.back)?;
        Ok(lane.ripe(BATCH))
    }

    /// One handle more for the next request, while the heap grows.
    fn make_ahead(&self) -> Result<u64> {
        let size = self.options.handle_bytes;
        let idle: u64 = self.depot.list().iter().map(|p| p.1).sum();
        let wanted = self.grows.load(Ordering::Relaxed) && idle + size <= self.options.ahead_bytes;
        if !wanted || self.depot.headroom() < size || self.busy.load(Ordering::Relaxed) > 0 {
            return Ok(0);
        }
        let handle = self.depot.create(&self.back, size)?;
        self.depot.keep([(handle, size)]);
        Ok(size)
    }
}

/// Driver time the thread takes at one go, and its pause between: at most a fifth of the time.
const BUDGET_NS: u64 = 200_000;
const PAUSE: Duration = Duration::from_millis(1);
/// The pause while nothing waits.
const IDLE: Duration = Duration::from_millis(50);

/// A thread that calls [`Heap::reclaim`]. Ends when it is dropped, or when the heap is.
pub struct Reclaimer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reclaimer {
    /// Starts it. The thread does not keep the heap alive.
    pub fn start(heap: &Arc<Heap>) -> Result<Reclaimer> {
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, flag) = (Arc::downgrade(heap), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("glake-reclaim".to_owned())
            .spawn(move || run(&weak, &flag))
            .map_err(|e| Error::os("starting the reclaimer's thread", e))?;
        Ok(Reclaimer { stop, thread: Some(thread) })
    }
}

fn run(heap: &Weak<Heap>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(heap) = heap.upgrade() else { return };
        let pause = match heap.reclaim(BUDGET_NS) {
            Ok(done) if done.waiting > 0 || done.made > 0 => PAUSE,
            Ok(_) => IDLE,
            Err(e) => {
                // A lost device stays lost; anything else is tried again.
                log::warn!("reclaiming GPU memory: {}", e.chain());
                IDLE
            }
        };
        drop(heap);
        std::thread::park_timeout(pause);
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread holds no lock while it waits, and it does not panic: there is nothing to hear from it.
            let _ = thread.join();
        }
    }
}
