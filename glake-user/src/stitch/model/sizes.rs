//! How torch rounds: c10/cuda/CUDACachingAllocator.cpp (`round_size`, `get_allocation_size`), unchanged from 1.x to 2.11.

/// Every block is a multiple of this.
pub const BLOCK: u64 = 512;
/// Requests up to here use the small pool.
pub const SMALL: u64 = 1 << 20;
/// Small segments, and handles of the small expandable segment.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Segments for requests between 1 and 10 MiB, and handles of the large expandable segment.
pub const LARGE_SEGMENT: u64 = 20 << 20;
/// From here on segments are the request, rounded to 2 MiB.
const OWN_SEGMENT: u64 = 10 << 20;
/// Rounding of those.
const SEGMENT_ROUNDING: u64 = 2 << 20;

/// Rounding of requests, as the settings have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rounding {
    /// `roundup_power2_divisions`: from this many MiB on, a power of two is cut into so many parts. Ascending.
    pub divisions: Vec<(u64, u64)>,
}

impl Rounding {
    /// Bytes of the block for a request.
    pub fn block(&self, request: u64) -> u64 {
        if request < BLOCK {
            return BLOCK;
        }
        let divisions = self.divisions_for(request);
        if divisions > 1 && request > BLOCK * divisions {
            return next_division(request, divisions);
        }
        request.checked_next_multiple_of(BLOCK).unwrap_or(request)
    }

    /// The entry of the largest size class not above the request.
    fn divisions_for(&self, request: u64) -> u64 {
        let class = (request >> 20).max(1).ilog2();
        let at_most = self.divisions.iter().rev().find(|(mib, _)| (*mib).max(1).ilog2() <= class);
        at_most.map_or(0, |(_, divisions)| *divisions)
    }
}

/// The next of `divisions` steps between the powers of two around `size`.
fn next_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let step = (1u64 << size.ilog2()) / divisions.next_power_of_two();
    if step == 0 { size.next_power_of_two() } else { size.checked_next_multiple_of(step).unwrap_or(size) }
}

/// Bytes asked of the driver for a block that fits nowhere.
pub fn segment(block: u64) -> u64 {
    match block {
        0..=SMALL => SMALL_SEGMENT,
        n if n < OWN_SEGMENT => LARGE_SEGMENT,
        n => n.checked_next_multiple_of(SEGMENT_ROUNDING).unwrap_or(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_as_torch_documents_it() {
        let plain = Rounding::default();
        assert_eq!([plain.block(1), plain.block(512), plain.block(513)], [512, 512, 1024]);
        assert_eq!(segment(1 << 20), 2 << 20);
        assert_eq!(segment((1 << 20) + 512), 20 << 20);
        assert_eq!(segment(10 << 20), 10 << 20);
        assert_eq!(segment(131_072_000), 132_120_576);
    }

    /// The example of torch's notes on CUDA: 1200 in four divisions is 1280.
    #[test]
    fn power_of_two_divisions_follow_the_documented_example() {
        assert_eq!(next_division(1200, 4), 1280);
        let quarter = Rounding { divisions: vec![(256, 1), (512, 2), (1024, 4), (2048, 8)] };
        assert_eq!(quarter.block(600 << 20), 768 << 20);
        assert_eq!(quarter.block(100 << 20), 100 << 20);
    }
}
