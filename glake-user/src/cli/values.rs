//! Values of options as people write them.

use std::time::Duration;

/// A duration: `500ms`, `30s`, `10m`, `2h`, `1d`.
///
/// # Errors
/// A sentence for the command line.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)];
    let seconds = scaled(text, &units).ok_or("a duration is a number with a unit: 500ms, 30s, 10m, 2h")?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(d) if d >= Duration::from_millis(1) => Ok(d),
        _ => Err("a duration lies between 1ms and some centuries".into()),
    }
}

/// A size in bytes: `500M` and `2G` are decimal, `64MiB` binary.
///
/// # Errors
/// A sentence for the command line.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (k, ki) = (1000.0, 1024.0_f64);
    let units = [
        ("KiB", ki),
        ("MiB", ki.powi(2)),
        ("GiB", ki.powi(3)),
        ("TiB", ki.powi(4)),
        ("kB", k),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("K", k),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("B", 1.0),
    ];
    let bytes = scaled(text, &units).ok_or("a size is a number with a unit: 500M, 2G, 64MiB")?;
    // A float this large still converts exactly enough for a limit.
    if (1.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err("a size is at least 1B".into()) }
}

/// How fast to play.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Speed {
    /// This many times as fast as it happened.
    Times(f64),
    /// As fast as possible.
    Max,
}

/// How fast to play: `1`, `0.5`, `20x`, or `max`.
///
/// # Errors
/// A sentence for the command line.
pub(super) fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    let number = text.strip_suffix('x').unwrap_or(text).parse::<f64>().ok().filter(|n| n.is_finite());
    match number {
        Some(n) if (0.001..=100_000.0).contains(&n) => Ok(Speed::Times(n)),
        _ => Err("a speed is a number such as 1, 0.5 or 20, or max".into()),
    }
}

/// A place in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// This long after its begin.
    After(Duration),
    /// The first time that a clock in UTC shows this, in seconds since midnight.
    Clock(u64),
}

/// A place in a recording: `90s` from its begin, or `02:14:09` in UTC.
///
/// # Errors
/// A sentence for the command line.
pub(super) fn place(text: &str) -> Result<Place, String> {
    let clock = text.strip_suffix('Z').unwrap_or(text);
    let parts: Vec<Option<u64>> = clock.split(':').map(|p| p.parse().ok()).collect();
    match parts.as_slice() {
        [Some(h @ 0..=23), Some(m @ 0..=59)] => Ok(Place::Clock(h * 3600 + m * 60)),
        [Some(h @ 0..=23), Some(m @ 0..=59), Some(s @ 0..=59)] => Ok(Place::Clock(h * 3600 + m * 60 + s)),
        _ => duration(text).map(Place::After).map_err(|_| {
            "a place is a time after the begin (90s, 10m) or of the clock in UTC (02:14:09)".into()
        }),
    }
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (suffix, factor) =
        units.iter().filter(|(unit, _)| text.ends_with(unit)).max_by_key(|(unit, _)| unit.len())?;
    let number: f64 = text.strip_suffix(suffix)?.trim_end().parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_carry_their_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(size("500M"), Ok(500_000_000));
        assert_eq!(size("64 MiB"), Ok(64 << 20));
        for wrong in ["", "5", "s", "-1s", "0s", "1e400d", "nans", "infs", "1w"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "5", "M", "-1M", "0B", "1e30T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn speeds_and_places_read_as_written() {
        assert_eq!(speed("max"), Ok(Speed::Max));
        assert_eq!(speed("20x"), Ok(Speed::Times(20.0)));
        assert!(speed("0").is_err() && speed("NaN").is_err() && speed("fast").is_err());
        assert_eq!(place("02:14:09Z"), Ok(Place::Clock(8049)));
        assert_eq!(place("02:14"), Ok(Place::Clock(8040)));
        assert_eq!(place("90s"), Ok(Place::After(Duration::from_secs(90))));
        assert!(place("24:00").is_err() && place("noon").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_answer(text: String) {
            let _ = (duration(&text), size(&text), speed(&text), place(&text));
        }
    }
}
