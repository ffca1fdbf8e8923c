//! What the driver's calls cost: the model behind plans, and behind replays on a device that is not there.

/// Nanoseconds of each driver call as `fixed + per GiB`. Map, access and unmap are per physical handle, whatever the
/// range: the cost follows the number of handles, not the bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// cuMemCreate of one handle.
    pub create: Line,
    /// cuMemMap of one handle.
    pub map: Line,
    /// cuMemSetAccess, each handle in the range.
    pub access: Line,
    /// cuMemUnmap, each handle in the range.
    pub unmap: Line,
    /// cuMemRelease of one handle.
    pub release: Line,
    /// Recording an event.
    pub record: u64,
    /// Asking whether an event has passed.
    pub query: u64,
}

/// A straight line over the size of the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Nanoseconds whatever the size.
    pub fixed: u64,
    /// Nanoseconds more for each GiB.
    pub per_gib: u64,
}

impl Line {
    /// Nanoseconds for a handle of `bytes`.
    pub fn at(self, bytes: u64) -> u64 {
        // 128-bit: bytes * ns overflows 64 bits from 2^44 bytes on.
        let more = (u128::from(self.per_gib) * u128::from(bytes)) >> 30;
        self.fixed + u64::try_from(more).unwrap_or(u64::MAX - self.fixed)
    }
}

impl Costs {
    /// Measured on an H200, driver 580.159.04: handles of 4 MiB and 2 GiB give the two ends of each line. (A thousand
    /// handles of 2 MiB in one go cost up to half more each; 16 MiB handles beside a busy GPU lie on the line.)
    pub const H200: Costs = Costs {
        create: Line { fixed: 13_000, per_gib: 16_000 },
        map: Line { fixed: 1_300, per_gib: 0 },
        access: Line { fixed: 30_000, per_gib: 27_000 },
        unmap: Line { fixed: 20_000, per_gib: 9_500 },
        release: Line { fixed: 15_000, per_gib: 278_000 },
        record: 1_000,
        query: 500,
    };

    /// A device whose calls take no time.
    pub const FREE: Costs = {
        let zero = Line { fixed: 0, per_gib: 0 };
        Costs { create: zero, map: zero, access: zero, unmap: zero, release: zero, record: 0, query: 0 }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_meets_both_measured_ends() {
        let c = Costs::H200;
        // Nanoseconds per handle as measured, at 4 MiB and at 2 GiB.
        for (line, small, large) in
            [(c.create, 12_643, 46_300), (c.access, 31_582, 84_000), (c.unmap, 21_325, 39_200)]
        {
            for (bytes, measured) in [(4 << 20, small), (2 << 30, large)] {
                let off = line.at(bytes).abs_diff(measured);
                assert!(off * 10 <= measured, "{line:?} at {bytes}: off by {off} of {measured}");
            }
        }
    }
}
