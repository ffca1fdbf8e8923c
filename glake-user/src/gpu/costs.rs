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
    /// Measured on an H200, driver 580.159.04: 2 MiB and 2 GiB handles give the two ends of each line.
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
        assert_eq!(c.create.at(2 << 20) / 1000, 19);
        assert_eq!(c.create.at(2 << 30) / 1000, 46);
        assert_eq!(c.access.at(2 << 30) / 1000, 84);
        assert_eq!(c.unmap.at(2 << 30) / 1000, 39);
    }
}
