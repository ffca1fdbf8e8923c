//! Small blocks that were just freed, kept whole for the next request of their size: programs free and allocate the same
//! few sizes over and over, and cutting and joining ranges costs most of an allocation's time.

use super::bins::UNIT;
use super::space::NIL;

/// Sizes below this many units of 512 bytes are kept.
const SIZES: usize = 2049;

/// Bytes kept at most; all of it is free memory that no other size can use for the moment.
const MOST_BYTES: u64 = 4 << 20;

/// At most one block of each size.
pub(crate) struct Kept {
    nodes: Box<[u32]>,
    bytes: u64,
}

impl Kept {
    pub(crate) fn new() -> Kept {
        Kept { nodes: vec![NIL; SIZES].into_boxed_slice(), bytes: 0 }
    }

    /// Bytes kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps a node. False: there is one of that size already, or too much is kept.
    #[inline]
    pub(crate) fn put(&mut self, node: u32, size: u64) -> bool {
        let Some(slot) = self.nodes.get_mut((size / UNIT) as usize) else { return false };
        let fits = *slot == NIL && self.bytes + size <= MOST_BYTES;
        if fits {
            *slot = node;
            self.bytes += size;
        }
        fits
    }

    /// Takes the node of exactly that size.
    #[inline]
    pub(crate) fn get(&mut self, size: u64) -> Option<u32> {
        let slot = self.nodes.get_mut((size / UNIT) as usize).filter(|s| **s != NIL)?;
        self.bytes -= size;
        Some(std::mem::replace(slot, NIL))
    }

    /// Takes all of them.
    pub(crate) fn drain(&mut self) -> Vec<u32> {
        if self.bytes == 0 {
            return Vec::new();
        }
        self.bytes = 0;
        self.nodes.iter_mut().filter(|s| **s != NIL).map(|s| std::mem::replace(s, NIL)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_of_each_size_is_kept_up_to_a_limit() {
        let mut kept = Kept::new();
        assert!(kept.put(7, 512) && !kept.put(8, 512) && kept.put(9, 1024));
        assert!(!kept.put(10, (SIZES as u64) * UNIT));
        assert_eq!((kept.get(512), kept.get(512), kept.get(2048)), (Some(7), None, None));
        let large = (1 << 20) - 512;
        let put = (0..20).filter(|n| kept.put(20 + n, large - u64::from(*n) * 512)).count();
        assert_eq!((put, kept.bytes() <= MOST_BYTES), (4, true));
        let mut all = kept.drain();
        all.sort_unstable();
        assert_eq!((all, kept.bytes()), (vec![9, 20, 21, 22, 23], 0));
    }
}
