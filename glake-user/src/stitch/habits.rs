//! What the blocks of a stream usually do, so that blocks of one habit lie together and those that stay do not cut up the
//! space of those that come and go: no memory can be moved out from under a block.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The space of small blocks.
pub(crate) const SMALL: usize = 0;
/// The space of blocks that come and go, or of which nothing is known.
pub(crate) const LARGE: usize = 1;
/// The space of blocks that stay: weights and the state of an optimizer have sizes of which none was freed yet.
pub(crate) const LASTING: usize = 2;
/// The space of the largest blocks: one that grows must not have to be put together anew.
pub(crate) const VAST: usize = 3;
/// How many spaces a lane has.
pub(crate) const SPACES: usize = 4;

/// In per cent. A fall below this share of the highest level since the last fall begins another era: what is left then has
/// outlived a pass of the program.
const FALL: u64 = 70;
/// Blocks that stay are looked for below this share of the peak: above it most memory is still being taken for the first time.
const CALM: u64 = 85;
/// Below this share of the era's highest level, or the second one of the peak, blocks may go where the largest ones lie: those
/// were freed, and the program is on its way down or far from needing them.
const DOWN: u64 = 90;
const LOW: u64 = 65;

/// Sizes of which no block is live are forgotten where there are more than so many, and twice those that are.
const REMEMBERED: usize = 4096;

/// What is known of one size.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    live: u32,
    /// The era in which the first of those that are live came.
    since: u32,
    /// One of this size was freed while others stayed.
    freed: bool,
    /// The most that were live at once: in the era `counted`, and in all earlier ones.
    most: u32,
    counted: u32,
    before: u32,
}

impl Seen {
    fn came(&mut self, era: u32) {
        if self.live == 0 {
            (self.since, self.freed) = (era, false);
        }
        self.live += 1;
        (self.before, self.most, self.counted) =
            (self.before_era(era), self.most_in(era).max(self.live), era);
    }

    fn before_era(&self, era: u32) -> u32 {
        if self.counted == era { self.before } else { self.before.max(self.most) }
    }

    fn most_in(&self, era: u32) -> u32 {
        if self.counted == era { self.most } else { 0 }
    }
}

/// A multiplication is enough for sizes that the program itself chooses.
#[derive(Default)]
pub(crate) struct SizeHasher(u64);

impl Hasher for SizeHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// The habits of one stream's blocks.
#[derive(Default)]
pub(crate) struct Habits {
    sizes: HashMap<u64, Seen, BuildHasherDefault<SizeHasher>>,
    /// Twice as many sizes as were live when some were last forgotten: going through them must not come with every block.
    enough: usize,
    era: u32,
    /// Most bytes allocated in this era, and ever.
    crest: u64,
    peak: u64,
}

impl Habits {
    /// A block came; `allocated` bytes are allocated with it.
    pub(crate) fn came(&mut self, size: u64, allocated: u64) {
        self.sizes.entry(size).or_default().came(self.era);
        if self.sizes.len() > REMEMBERED.max(self.enough) {
            self.sizes.retain(|_, seen| seen.live > 0);
            self.enough = 2 * self.sizes.len();
        }
        self.crest = self.crest.max(allocated);
        self.peak = self.peak.max(allocated);
    }

    /// A block went; `allocated` bytes are left.
    pub(crate) fn went(&mut self, size: u64, allocated: u64) {
        if let Some(seen) = self.sizes.get_mut(&size) {
            seen.live -= 1;
            seen.freed = true;
        }
        if allocated < share(self.crest, FALL) {
            self.era += 1;
            self.crest = allocated;
        }
    }

    /// The spaces to look in for a block that is large but not vast, in order.
    pub(crate) fn spaces(&self, size: u64, allocated: u64) -> &'static [usize] {
        if self.lasts(size, allocated) {
            return &[LASTING];
        }
        if allocated < share(self.crest, DOWN) || allocated < share(self.peak, LOW) {
            return &[LARGE, LASTING, VAST];
        }
        &[LARGE, LASTING]
    }

    /// Whether so many blocks of this size were live at once in an earlier era: the program repeats itself.
    pub(crate) fn repeats(&self, size: u64) -> bool {
        self.sizes.get(&size).is_some_and(|seen| seen.live < seen.before_era(self.era))
    }

    /// Whether a block of this size will stay, as far as can be told: others of its size outlived an era, and none was freed.
    fn lasts(&self, size: u64, allocated: u64) -> bool {
        allocated < share(self.peak, CALM)
            && self.sizes.get(&size).is_some_and(|seen| seen.live > 0 && !seen.freed && seen.since < self.era)
    }
}

/// So many per cent of `bytes`, rounded down to a hundredth of them.
fn share(bytes: u64, per_cent: u64) -> u64 {
    bytes / 100 * per_cent
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Weights of 10 MiB, then activations of 100 to 109 MiB that come and go.
    fn after_one_pass() -> (Habits, u64) {
        let mut habits = Habits::default();
        let mut allocated = 0;
        for size in [10; 3].into_iter().chain(100..110) {
            allocated += size * MIB;
            habits.came(size * MIB, allocated);
        }
        for size in (100..110).rev() {
            allocated -= size * MIB;
            habits.went(size * MIB, allocated);
        }
        (habits, allocated)
    }

    #[test]
    fn a_size_that_outlived_a_pass_is_expected_to_stay() {
        let (habits, allocated) = after_one_pass();
        assert_eq!(habits.spaces(10 * MIB, allocated), [LASTING]);
        assert_eq!(habits.spaces(100 * MIB, allocated), [LARGE, LASTING, VAST]);
        assert_eq!(habits.spaces(11 * MIB, allocated), [LARGE, LASTING, VAST], "nothing is known of it");
    }

    #[test]
    fn a_size_that_was_ever_freed_beside_others_is_not() {
        let (mut habits, allocated) = after_one_pass();
        habits.went(10 * MIB, allocated - 10 * MIB);
        assert_eq!(habits.spaces(10 * MIB, allocated - 10 * MIB), [LARGE, LASTING, VAST]);
    }

    #[test]
    fn within_the_first_pass_nothing_is_known_to_stay() {
        let mut habits = Habits::default();
        (1..20).for_each(|n| habits.came(30 * MIB, n * 30 * MIB));
        assert_eq!(habits.spaces(30 * MIB, 19 * 30 * MIB), [LARGE, LASTING]);
    }

    #[test]
    fn on_the_way_up_the_space_of_the_largest_is_left_alone() {
        let (mut habits, mut allocated) = after_one_pass();
        for size in 100..108 {
            allocated += size * MIB;
            habits.came(size * MIB, allocated);
        }
        assert_eq!(habits.spaces(109 * MIB, allocated), [LARGE, LASTING]);
        habits.went(107 * MIB, allocated - 107 * MIB);
        assert_eq!(habits.spaces(109 * MIB, allocated - 107 * MIB), [LARGE, LASTING, VAST]);
    }

    #[test]
    fn a_size_repeats_where_as_many_of_it_were_there_before_the_last_fall() {
        let mut habits = Habits::default();
        habits.came(10 * MIB, 10 * MIB);
        habits.came(10 * MIB, 20 * MIB);
        assert!(!habits.repeats(10 * MIB), "the first pass is no repetition");
        habits.went(10 * MIB, 10 * MIB);
        habits.went(10 * MIB, 0);
        for live in 1..=2 {
            assert!(habits.repeats(10 * MIB));
            habits.came(10 * MIB, live * 10 * MIB);
        }
        assert!(!habits.repeats(10 * MIB), "a third was never there");
        assert!(!habits.repeats(11 * MIB));
    }

    #[test]
    fn of_sizes_that_are_gone_some_thousand_are_remembered() {
        let mut habits = Habits::default();
        for size in 1..3 * REMEMBERED as u64 {
            habits.came(size * MIB, size * MIB);
            habits.went(size * MIB, 0);
        }
        assert!(habits.sizes.len() <= REMEMBERED);
    }
}
