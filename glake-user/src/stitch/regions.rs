//! The address space a heap has reserved, in a list that is read without a lock: "is this pointer ours?" is asked at every free.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Error, Kind, Result};

const CHUNK: usize = 64;
/// The spaces of each of the most lanes there may be.
const CHUNKS: usize = 256;

#[derive(Default)]
struct Region {
    start: AtomicU64,
    size: AtomicU64,
}

/// Reserved regions. They are added, and all go at once when the heap ends.
pub(crate) struct Regions {
    chunks: [OnceLock<Box<[Region; CHUNK]>>; CHUNKS],
    used: AtomicUsize,
    adding: Mutex<()>,
}

impl Regions {
    pub(crate) fn new() -> Regions {
        Regions {
            chunks: [const { OnceLock::new() }; CHUNKS],
            used: AtomicUsize::new(0),
            adding: Mutex::new(()),
        }
    }

    pub(crate) fn add(&self, start: u64, size: u64) -> Result<()> {
        let _one_at_a_time = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.used.load(Ordering::Relaxed);
        let Some(chunk) = self.chunks.get(at / CHUNK) else {
            return Err(Error::new(Kind::Exhausted, format!("more than {at} regions of address space"))
                .remedy("reuse streams instead of making new ones"));
        };
        let region = &chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Region::default())))[at % CHUNK];
        region.start.store(start, Ordering::Relaxed);
        region.size.store(size, Ordering::Relaxed);
        // Whoever sees the number sees the region.
        self.used.store(at + 1, Ordering::Release);
        Ok(())
    }

    /// Whether the address lies in one of them.
    pub(crate) fn hold(&self, address: u64) -> bool {
        self.iter().any(|(start, size)| address.wrapping_sub(start) < size)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let used = self.used.load(Ordering::Acquire);
        self.chunks
            .iter()
            .map_while(OnceLock::get)
            .flat_map(|chunk| chunk.iter())
            .take(used)
            .map(|region| (region.start.load(Ordering::Relaxed), region.size.load(Ordering::Relaxed)))
    }

    /// Empties the list. Only for whoever owns the heap alone.
    pub(crate) fn drain(&self) -> Vec<(u64, u64)> {
        let all = self.iter().collect();
        self.used.store(0, Ordering::Release);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_held_from_the_first_byte_of_a_region_to_its_last() {
        let regions = Regions::new();
        assert!(!regions.hold(0));
        regions.add(0x1000, 0x100).unwrap();
        regions.add(0x8000, 0x10).unwrap();
        for (address, held) in [
            (0xfff, false),
            (0x1000, true),
            (0x10ff, true),
            (0x1100, false),
            (0x800f, true),
            (u64::MAX, false),
        ] {
            assert_eq!(regions.hold(address), held, "{address:#x}");
        }
        assert_eq!(regions.drain(), [(0x1000, 0x100), (0x8000, 0x10)]);
        assert!(!regions.hold(0x1000));
    }

    #[test]
    fn a_full_list_is_an_error() {
        let regions = Regions::new();
        let places = (CHUNK * CHUNKS) as u64;
        for i in 0..places {
            regions.add(i << 32, 1).unwrap();
        }
        assert_eq!(regions.add(u64::MAX - 1, 1).unwrap_err().kind(), Kind::Exhausted);
        assert!(regions.hold((places - 1) << 32));
    }
}
