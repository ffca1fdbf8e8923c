//! Saved kernel logs: the time at the head of a line, in any of the usual spellings.

/// What clock a saved log's times are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Nanoseconds since boot.
    Boot(u64),
    /// Unix time in nanoseconds.
    Unix(u64),
    /// What the clock on the wall showed, in a zone that is not told, as if that were UTC.
    Wall(u64),
    /// The same in a year that is not told either, since the begin of that year.
    Yearless(u64),
}

impl Time {
    /// The number alone.
    pub fn ns(self) -> u64 {
        match self {
            Time::Boot(ns) | Time::Unix(ns) | Time::Wall(ns) | Time::Yearless(ns) => ns,
        }
    }
}

/// Reads the time of a line of /dev/kmsg (`6,3964,206764307,-;...`), `dmesg` (`[  201.650687]`, also after `<6>`),
/// `dmesg --time-format iso` with or without levels, `dmesg -T` (`[Mon Mar  2 08:14:09 2026]`), `journalctl -o short-iso`, and syslog
/// (`Mar  2 08:14:09 host kernel:`, also `journalctl`). `None`: another spelling.
pub fn time(line: &str) -> Option<Time> {
    kmsg(line).or_else(|| bracket(line)).or_else(|| iso(line)).or_else(|| syslog(line)).or_else(|| wall(line))
}

/// The time as the line spells it: what stands before the message, of those spellings that do not tell Unix time.
pub fn spelling(line: &str) -> Option<&str> {
    match time(line)? {
        Time::Unix(_) => None,
        Time::Yearless(_) => line.get(..15),
        Time::Wall(_) => line.get(line.find('[')? + 1..line.find(']')?),
        Time::Boot(_) if line.starts_with('[') || line.starts_with('<') => {
            line.get(line.find('[')?..=line.find(']')?)
        }
        Time::Boot(_) => line.split(';').next(),
    }
}

/// `Mar  2 08:14:09 `.
fn syslog(line: &str) -> Option<Time> {
    let head = line.get(..16)?.strip_suffix(' ')?;
    let mut words = head.split_whitespace();
    let (name, day, clock) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    // Any leap year: the day of the year only has to grow with time.
    seconds(2000, month(name)?, day, clock)?
        .checked_sub(days(2000, 1, 1) * 86_400)
        .map(ns)
        .map(Time::Yearless)
}

/// `[Mon Mar  2 08:14:09 2026]`.
fn wall(line: &str) -> Option<Time> {
    let at = line.find('[').filter(|at| *at < 16)?;
    let (inside, _) = line[at + 1..].split_once(']')?;
    let words: Vec<&str> = inside.split_whitespace().collect();
    let [_, name, day, clock, year] = words[..] else { return None };
    let year = year.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    seconds(year, month(name)?, day.parse().ok()?, clock).map(ns).map(Time::Wall)
}

fn ns(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

fn month(name: &str) -> Option<u64> {
    const NAMES: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    NAMES.iter().zip(1..).find(|(short, _)| **short == name).map(|(_, month)| month)
}

/// Seconds since 1970 of a date and a `08:14:09`, as if in UTC.
fn seconds(year: u64, month: u64, day: u64, clock: &str) -> Option<u64> {
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (h, m, s) = (parts.next()??, parts.next()??, parts.next()??);
    let right = parts.next().is_none() && (1..=31).contains(&day) && h < 24 && m < 60 && s <= 60;
    right.then(|| days(year, month, day) * 86_400 + h * 3600 + m * 60 + s)
}

fn kmsg(line: &str) -> Option<Time> {
    let (head, _) = line.split_once(';')?;
    let mut fields = head.split(',');
    let (level, sequence, micros) = (fields.next()?, fields.next()?, fields.next()?);
    let number = |t: &str| t.parse::<u64>().ok();
    number(level)?;
    number(sequence)?;
    number(micros)?.checked_mul(1000).map(Time::Boot)
}

fn bracket(line: &str) -> Option<Time> {
    let at = line.find('[').filter(|at| *at < 16)?;
    let (inside, _) = line[at + 1..].split_once(']')?;
    let (seconds, micros) = inside.trim().split_once('.')?;
    let (seconds, micros): (u64, u64) =
        (seconds.parse().ok()?, micros.parse().ok().filter(|_| micros.len() == 6)?);
    seconds.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1000).map(Time::Boot)
}

/// `2025-01-21T04:41:44,283302+00:00`, the fraction after a comma or a point, the zone with or without a colon.
fn iso(line: &str) -> Option<Time> {
    let word = line.split_whitespace().take(4).find(|w| w.len() >= 19 && w.as_bytes()[10] == b'T')?;
    if !word.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| word.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (h, m, s) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..=9999).contains(&year)
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || h > 23
        || m > 59
    {
        return None;
    }
    let rest = &word[19..];
    let (fraction, zone) = match rest.strip_prefix([',', '.']) {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())),
        None => ("", rest),
    };
    let fraction: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let seconds = days(year, month, day) * 86_400 + h * 3600 + m * 60 + s;
    let seconds = i64::try_from(seconds).ok()? - offset(zone)?;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(fraction).map(Time::Unix)
}

/// Seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    let Some(sign) = zone.chars().next().filter(|c| *c != 'Z') else { return Some(0) };
    let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
    let (h, m) =
        (digits.get(..2)?.parse::<i64>().ok()?, digits.get(2..4).unwrap_or("00").parse::<i64>().ok()?);
    let seconds = h * 3600 + m * 60;
    match sign {
        '+' => Some(seconds),
        '-' => Some(-seconds),
        _ => None,
    }
}

/// Days since 1970-01-01 (Howard Hinnant's "days from civil").
fn days(year: u64, month: u64, day: u64) -> u64 {
    let y = if month <= 2 { year - 1 } else { year };
    let (era, yoe) = (y / 400, y % 400);
    let mp = if month > 2 { month - 3 } else { month + 9 };
    let doy = (153 * mp + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_spelling_of_a_time_is_read() {
        assert_eq!(time("6,3964,206764307,-;nvidia-nvswitch2: open"), Some(Time::Boot(206_764_307_000)));
        assert_eq!(time("[  201.650687] NVRM: x"), Some(Time::Boot(201_650_687_000)));
        assert_eq!(time("<6>[  201.650687] NVRM: x"), Some(Time::Boot(201_650_687_000)));
        let iso = "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: Xid";
        assert_eq!(time(iso), Some(Time::Unix(1_737_434_504_283_302_000)));
        let east = "2025-01-21T05:41:44+0100 host kernel: NVRM: Xid";
        assert_eq!(time(east), Some(Time::Unix(1_737_434_504_000_000_000)));
        assert_eq!(time("1970-01-01T00:00:00Z x"), Some(Time::Unix(0)));
        let wall = 1_772_439_249_000_000_000;
        assert_eq!(time("[Mon Mar  2 08:14:09 2026] NVRM: x"), Some(Time::Wall(wall)));
        let day = 24 * 3600 * 1_000_000_000;
        assert_eq!(time("Jan 21 00:00:00 host kernel: x"), Some(Time::Yearless(20 * day)));
        assert_eq!(
            time("Mar  2 00:00:01 host kernel: [  9.000001] x"),
            Some(Time::Yearless(61 * day + 1_000_000_000))
        );
        for other in [
            "",
            "NVRM: Xid (PCI:0000:3b:00): 31",
            "[pid 5] x",
            "Mar 32 00:00:01 x y",
            "Mar  2 25:00:01 x y",
            "Mai  2 05:00:01 x y",
            "[Mon Mar 2 08:14 2026] x",
        ] {
            assert_eq!(time(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_time_that_is_no_unix_time_is_shown_as_the_log_spells_it() {
        for (line, spelt) in [
            ("Mar  2 08:14:09 node kernel: NVRM: x", Some("Mar  2 08:14:09")),
            ("[Mon Mar  2 08:14:09 2026] NVRM: x", Some("Mon Mar  2 08:14:09 2026")),
            ("<6>[  201.650687] NVRM: x", Some("[  201.650687]")),
            ("6,3964,206764307,-;NVRM: x", Some("6,3964,206764307,-")),
            ("2025-01-21T05:41:44+0100 host kernel: NVRM: x", None),
            ("NVRM: x", None),
        ] {
            assert_eq!(spelling(line), spelt, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_time_or_not(text in "\\PC{0,60}") {
            let _ = time(&text);
            let _ = time(&format!("2025-01-21T{text}"));
            let _ = time(&format!("kern : 2025-01-21T04:41:44{text}"));
            for head in ["", "Mar  2 08:14:0", "[Mon Mar  2 08:14:09 ", "[", "1,2,3"] {
                let line = format!("{head}{text}]");
                prop_assert!(spelling(&line).is_none() || time(&line).is_some());
            }
        }
    }
}
