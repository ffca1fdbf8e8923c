//! The one latency histogram of GLake: two slots per power of two of a microsecond, 1 us to 16.8 s.
//!
//! Upper bounds are exact microseconds (`128 us` is a bound), so that a slot boundary is also a Prometheus `le`,
//! and a value equal to a bound belongs to the slot below it, as `le` demands.

/// Slots of a histogram: 24 octaves x 2, one below (at most 1 us) and one above.
pub const SLOTS: usize = 50;

/// The slot of a duration in nanoseconds. Total: every `u64` has a slot.
#[inline(always)]
pub fn slot(ns: u64) -> usize {
    // Whole microseconds strictly below `ns`: a value equal to a bound falls below it.
    let us = ns.saturating_sub(1) / 1000;
    if us == 0 {
        return 0;
    }
    let octave = 63 - us.leading_zeros() as usize;
    // The bit below the leading one halves the octave; octave 0 (1 us) has no such bit: its upper half stays empty.
    let half = if octave == 0 { 0 } else { ((us >> (octave - 1)) & 1) as usize };
    let index = 1 + octave * 2 + half;
    if index < SLOTS { index } else { SLOTS - 1 }
}

/// The inclusive upper bound of slot `i` in microseconds; `None` for the last one, which has none.
#[inline]
pub fn upper_us(i: usize) -> Option<u64> {
    match i {
        0 => Some(1),
        _ if i >= SLOTS - 1 => None,
        _ => {
            let (octave, half) = ((i - 1) / 2, (i - 1) % 2);
            let base = 1u64 << octave;
            // Octave 0 is not halved: both of its slots end at 2 us.
            Some(if half == 0 && octave > 0 { base + base / 2 } else { base * 2 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_equal_to_a_bound_belongs_to_that_bound() {
        for i in 0..SLOTS - 1 {
            let bound = upper_us(i).unwrap() * 1000;
            assert!(upper_us(slot(bound)).unwrap() <= bound / 1000, "slot {i}, bound {bound} ns");
            assert!(
                upper_us(slot(bound + 1)).is_none_or(|u| u > bound / 1000),
                "slot {i}, bound {bound} ns + 1"
            );
        }
    }

    #[test]
    fn bounds_never_fall_and_powers_of_two_are_bounds() {
        let bounds: [u64; SLOTS - 1] = core::array::from_fn(|i| upper_us(i).unwrap());
        assert!(bounds.windows(2).all(|w| w[0] <= w[1]));
        for power in 0..24 {
            assert!(bounds.contains(&(1 << power)), "2^{power} us");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_duration_lies_within_its_slot(ns: u64) {
            let i = slot(ns);
            if let Some(upper) = upper_us(i) { proptest::prop_assert!(ns <= upper * 1000); }
            if i > 0 { proptest::prop_assert!(ns > upper_us(i - 1).unwrap_or(0) * 1000 || upper_us(i - 1) == upper_us(i)); }
        }
    }
}
