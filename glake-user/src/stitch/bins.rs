//! Free ranges by size: two levels of bitmaps over lists, so that the smallest class that fits is found in a few
//! instructions however many ranges there are. The lists run through the nodes themselves: nothing is allocated here.

use super::space::{NIL, Node};

/// All sizes are multiples of this, as torch's are.
pub(crate) const UNIT: u64 = 512;

/// Each power of two is cut into 2^5 classes: a class is 3 % wide.
const FINE: u32 = 5;
const ROWS: usize = 40;
const WIDTH: usize = 1 << FINE;
/// How many ranges of one class are looked at for the best fit; beyond that the best seen so far is taken.
const LOOK: usize = 64;

/// Lists of nodes by size class.
pub(crate) struct Bins {
    rows: u64,
    fine: [u32; ROWS],
    heads: Box<[u32]>,
}

/// The class of a size: exact below 32 units, then 3 % wide.
fn class(size: u64) -> usize {
    let units = size / UNIT;
    if units < WIDTH as u64 {
        return units as usize;
    }
    let log = 63 - units.leading_zeros();
    let row = (log - FINE + 1) as usize;
    let fine = (units >> (log - FINE)) as usize & (WIDTH - 1);
    (row * WIDTH + fine).min(ROWS * WIDTH - 1)
}

impl Bins {
    pub(crate) fn new() -> Bins {
        Bins { rows: 0, fine: [0; ROWS], heads: vec![NIL; ROWS * WIDTH].into_boxed_slice() }
    }

    /// Puts a node in. It must not be in any bin.
    pub(crate) fn insert(&mut self, nodes: &mut [Node], at: u32) {
        let class = class(nodes[at as usize].size);
        let head = self.heads[class];
        nodes[at as usize].bin_prev = NIL;
        nodes[at as usize].bin_next = head;
        if head != NIL {
            nodes[head as usize].bin_prev = at;
        }
        self.heads[class] = at;
        self.rows |= 1 << (class / WIDTH);
        self.fine[class / WIDTH] |= 1 << (class % WIDTH);
    }

    /// Takes a node out. It must be here, with the size it had when it was put in.
    pub(crate) fn remove(&mut self, nodes: &mut [Node], at: u32) {
        let Node { bin_prev: prev, bin_next: next, size, .. } = nodes[at as usize];
        if next != NIL {
            nodes[next as usize].bin_prev = prev;
        }
        if prev != NIL {
            nodes[prev as usize].bin_next = next;
            return;
        }
        let class = class(size);
        self.heads[class] = next;
        if next == NIL {
            let row = class / WIDTH;
            self.fine[row] &= !(1 << (class % WIDTH));
            if self.fine[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// The smallest node of at least `size` bytes; the lowest address among equals.
    pub(crate) fn best(&self, nodes: &[Node], size: u64) -> Option<u32> {
        let class = class(size);
        let mut found = self.best_in(nodes, class, size);
        let mut next = class;
        while found.is_none() {
            next = self.next_class(next + 1)?;
            found = self.best_in(nodes, next, size);
        }
        found
    }

    fn best_in(&self, nodes: &[Node], class: usize, size: u64) -> Option<u32> {
        let mut at = self.heads[class];
        let mut best: Option<(u64, u64, u32)> = None;
        for _ in 0..LOOK {
            if at == NIL {
                break;
            }
            let node = &nodes[at as usize];
            if node.size >= size {
                let key = (node.size, node.start, at);
                if best.is_none_or(|b| key < b) {
                    best = Some(key);
                }
            }
            at = node.bin_next;
        }
        best.map(|b| b.2)
    }

    fn next_class(&self, from: usize) -> Option<usize> {
        let (row, fine) = (from / WIDTH, from % WIDTH);
        if row >= ROWS {
            return None;
        }
        let here = self.fine[row] & (u32::MAX << fine);
        if here != 0 {
            return Some(row * WIDTH + here.trailing_zeros() as usize);
        }
        // `checked_shl` by row + 1 <= 40 always succeeds; row 39 leaves no later row with a bit.
        let later = self.rows & (u64::MAX << (row + 1));
        (later != 0).then(|| {
            let row = later.trailing_zeros() as usize;
            row * WIDTH + self.fine[row].trailing_zeros() as usize
        })
    }

    /// Every node of at least `size` bytes, in no particular order. O(nodes): for slow paths.
    pub(crate) fn at_least<'a>(&'a self, nodes: &'a [Node], size: u64) -> impl Iterator<Item = u32> + 'a {
        let mut class = self.next_class(class(size));
        let mut at = class.map_or(NIL, |c| self.heads[c]);
        std::iter::from_fn(move || {
            loop {
                if at == NIL {
                    class = self.next_class(class? + 1);
                    at = self.heads[class?];
                }
                let here = at;
                at = nodes[here as usize].bin_next;
                if nodes[here as usize].size >= size {
                    return Some(here);
                }
            }
        })
    }

    /// The size of the largest node (of those looked at in the largest class), 0 when empty.
    pub(crate) fn largest(&self, nodes: &[Node]) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        let row = 63 - self.rows.leading_zeros() as usize;
        let fine = 31 - self.fine[row].leading_zeros() as usize;
        let mut at = self.heads[row * WIDTH + fine];
        let mut largest = 0;
        while at != NIL {
            largest = largest.max(nodes[at as usize].size);
            at = nodes[at as usize].bin_next;
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_larger_size_never_has_a_smaller_class(a in 1u64..1 << 40, b in 1u64..1 << 40) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(class(low) <= class(high));
        }

        #[test]
        fn the_best_fit_is_the_smallest_that_suffices(
            sizes in prop::collection::vec(1u64..5000, 1..60), want in 1u64..5000, drop in 0usize..60,
        ) {
            let mut bins = Bins::new();
            let mut nodes: Vec<Node> = sizes.iter().enumerate()
                .map(|(i, s)| Node { start: (i as u64) << 30, size: s * UNIT, ..Node::default() }).collect();
            for i in 0..nodes.len() { bins.insert(&mut nodes, i as u32); }
            let dropped = drop % sizes.len();
            bins.remove(&mut nodes, dropped as u32);
            let expected = sizes.iter().enumerate()
                .filter(|(i, s)| *i != dropped && **s >= want).map(|(i, s)| (*s, i)).min();
            let found = bins.best(&nodes, want * UNIT);
            prop_assert_eq!(found, expected.map(|(_, i)| i as u32));
            let mut all: Vec<u32> = bins.at_least(&nodes, want * UNIT).collect();
            all.sort_unstable();
            let listed: Vec<u32> = sizes.iter().enumerate()
                .filter(|(i, s)| *i != dropped && **s >= want).map(|(i, _)| i as u32).collect();
            prop_assert_eq!(all, listed);
        }
    }
}
