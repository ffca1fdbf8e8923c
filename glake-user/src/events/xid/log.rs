//! Saved kernel logs: the time at the head of a line, in any of the usual spellings.

/// What clock a saved log's times are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Nanoseconds since boot.
    Boot(u64),
    /// Unix time in nanoseconds.
    Unix(u64),
}

impl Time {
    /// The number alone.
    pub fn ns(self) -> u64 {
        match self {
            Time::Boot(ns) | Time::Unix(ns) => ns,
        }
    }
}

/// Reads the time of a line of /dev/kmsg (`6,3964,206764307,-;...`), `dmesg` (`[  201.650687]`, also after `<6>`),
/// `dmesg --time-format iso` with or without levels, and `journalctl -o short-iso`. `None`: another spelling.
pub fn time(line: &str) -> Option<Time> {
    kmsg(line).or_else(|| bracket(line)).or_else(|| iso(line))
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
        for other in ["", "NVRM: Xid (PCI:0000:3b:00): 31", "Jan 21 04:41:44 host kernel: x", "[pid 5] x"] {
            assert_eq!(time(other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_time_or_not(text in "\\PC{0,60}") {
            let _ = time(&text);
            let _ = time(&format!("2025-01-21T{text}"));
            let _ = time(&format!("kern : 2025-01-21T04:41:44{text}"));
        }
    }
}
