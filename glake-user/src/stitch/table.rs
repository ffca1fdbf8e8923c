//! From a pointer to its node: open addressing with linear probing, no tombstones.

use super::bins::UNIT;

/// An empty slot. No pointer is 0.
const EMPTY: u64 = 0;

/// A map from non-zero pointers to 32-bit values. Grows by doubling at three quarters full.
pub(crate) struct PtrTable {
    slots: Box<[(u64, u32)]>,
    used: usize,
    shift: u32,
}

impl PtrTable {
    pub(crate) fn new() -> PtrTable {
        PtrTable::with_log(10)
    }

    fn with_log(log: u32) -> PtrTable {
        PtrTable { slots: vec![(EMPTY, 0); 1 << log].into_boxed_slice(), used: 0, shift: 64 - log }
    }

    fn home(&self, ptr: u64) -> usize {
        // Fibonacci hashing: the low bits of a pointer say little.
        ((ptr / UNIT).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The slot of `ptr`, or the empty slot where it would go.
    fn slot(&self, ptr: u64) -> usize {
        let mut at = self.home(ptr);
        while self.slots[at].0 != ptr && self.slots[at].0 != EMPTY {
            at = (at + 1) & self.mask();
        }
        at
    }

    /// Adds `ptr`, or changes its value.
    pub(crate) fn insert(&mut self, ptr: u64, value: u32) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let at = self.slot(ptr);
        self.used += usize::from(self.slots[at].0 == EMPTY);
        self.slots[at] = (ptr, value);
    }

    /// The value of `ptr`.
    pub(crate) fn get(&self, ptr: u64) -> Option<u32> {
        let slot = self.slots[self.slot(ptr)];
        (ptr != EMPTY && slot.0 == ptr).then_some(slot.1)
    }

    /// Takes `ptr` out.
    pub(crate) fn remove(&mut self, ptr: u64) -> Option<u32> {
        let mut hole = self.slot(ptr);
        if ptr == EMPTY || self.slots[hole].0 != ptr {
            return None;
        }
        let value = self.slots[hole].1;
        // Move later entries of the run back over the hole, those whose home is not between hole and them.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask();
            if self.slots[at].0 == EMPTY {
                break;
            }
            let home = self.home(self.slots[at].0);
            if at.wrapping_sub(home) & self.mask() >= at.wrapping_sub(hole) & self.mask() {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (EMPTY, 0);
        self.used -= 1;
        Some(value)
    }

    /// All entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.slots.iter().filter(|s| s.0 != EMPTY).copied()
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = PtrTable::with_log(64 - self.shift + 1);
        for (ptr, value) in self.iter() {
            larger.insert(ptr, value);
        }
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(ops in prop::collection::vec((0u8..3, 1u64..3000), 1..4000)) {
            let mut plain = HashMap::new();
            let mut table = PtrTable::new();
            for (i, (op, key)) in ops.into_iter().enumerate() {
                let ptr = key * UNIT;
                match op {
                    0 | 1 => { table.insert(ptr, i as u32); plain.insert(ptr, i as u32); }
                    _ => prop_assert_eq!(table.remove(ptr), plain.remove(&ptr)),
                }
                prop_assert_eq!(table.get(ptr), plain.get(&ptr).copied());
            }
            let mut all: Vec<_> = table.iter().collect();
            let mut expected: Vec<_> = plain.into_iter().collect();
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
        }
    }
}
