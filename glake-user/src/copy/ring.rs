//! The pinned ring: parts of host memory, registered with the driver, made once and lent to one copy after another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::gpu::Device;
use crate::sys::buffer::{Buffer, Pages, Part};

/// A ring of parts.
#[derive(Debug)]
pub struct Ring {
    parts: Mutex<Vec<Part>>,
    part_size: usize,
    count: usize,
    lost: AtomicUsize,
    pages: Pages,
    registered: std::result::Result<(), String>,
    made_in: Duration,
}

impl Ring {
    /// `count` parts of `part_size` bytes, near NUMA node `node`, registered with `device` (and so with every GPU of the
    /// process). Where the driver refuses to register, the ring works all the same, slower, and [`Ring::registered`] says why.
    pub fn new(device: &dyn Device, count: usize, part_size: usize, node: Option<u32>) -> Result<Ring> {
        let begun = Instant::now();
        let size = count.checked_mul(part_size).filter(|s| *s > 0).ok_or_else(|| {
            Error::new(Kind::Misuse, format!("making a ring of {count} parts of {part_size} bytes"))
        })?;
        let buffer = Buffer::new(size, node)?;
        let registered = device.register(&buffer).map_err(|e| e.chain());
        let pages = buffer.pages();
        let mut parts = buffer.split(part_size);
        parts.truncate(count);
        Ok(Ring {
            parts: Mutex::new(parts),
            part_size,
            count,
            lost: AtomicUsize::new(0),
            pages,
            registered,
            made_in: begun.elapsed(),
        })
    }

    /// Takes out up to `n` parts. `Exhausted` when other copies have them all.
    pub fn lend(&self, n: usize) -> Result<Vec<Part>> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let from = parts.len().saturating_sub(n);
        let lent = parts.split_off(from);
        if lent.is_empty() && n > 0 {
            let what =
                format!("all {} parts of the pinned ring are in use ({} lost)", self.count, self.lost());
            return Err(Error::new(Kind::Exhausted, what)
                .remedy("wait for the other copies, or make the ring larger"));
        }
        Ok(lent)
    }

    /// Takes parts back; `missing` more will not come, because a copy that never ended has them.
    pub fn give(&self, parts: Vec<Part>, missing: usize) {
        self.lost.fetch_add(missing, Ordering::Relaxed);
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).extend(parts);
    }

    /// Bytes of a part.
    pub fn part_size(&self) -> usize {
        self.part_size
    }

    /// Parts it was made with.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Parts that copies which never ended still hold.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// What its pages are.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Whether the driver registered it, or why not.
    pub fn registered(&self) -> std::result::Result<(), &str> {
        self.registered.as_ref().copied().map_err(String::as_str)
    }

    /// How long it took to make.
    pub fn made_in(&self) -> Duration {
        self.made_in
    }
}
