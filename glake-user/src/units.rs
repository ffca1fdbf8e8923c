//! Units as people read them. Numbers inside the program are bytes, nanoseconds and counts in base units.

/// Bytes in binary units with three significant figures: `64.9 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    scaled(n as f64, 1024.0, &UNITS)
}

/// Bytes per second in decimal units, as links and disks are sold: `51.3 GB/s`.
pub fn bytes_per_second(rate: f64) -> String {
    const UNITS: [&str; 6] = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"];
    scaled(rate, 1000.0, &UNITS)
}

/// A duration given in nanoseconds: `92.0 us`, `31.0 ms`.
pub fn duration_ns(ns: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    scaled(ns as f64, 1000.0, &UNITS)
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // 999.5 would print as four digits: move up before that.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_as_people_write_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(69_685_217_689), "64.9 GiB");
        assert_eq!(bytes_per_second(51.3e9), "51.3 GB/s");
        assert_eq!(duration_ns(92_000), "92.0 us");
        assert_eq!(duration_ns(410_000), "410 us");
    }
}
