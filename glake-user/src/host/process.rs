//! One process as the kernel accounts it.

use std::{fs, path::Path};

/// What a process costs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Process {
    /// User and system time.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// When it started, in seconds since 1970. `None`: the boot time could not be read.
    pub started_seconds: Option<f64>,
    /// Open file descriptors. `None`: the folder could not be read.
    pub open_fds: Option<u64>,
    /// The soft limit of open file descriptors. `None`: unlimited or unreadable.
    pub max_fds: Option<u64>,
}

impl Process {
    /// Reads a process below `root`, which is `/` on a live host; `who` is a pid or `self`.
    pub fn read(root: &Path, who: &str) -> Option<Process> {
        let folder = root.join("proc").join(who);
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        let boot = fs::read_to_string(root.join("proc/stat")).ok();
        let boot = boot
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok()));
        let mut process =
            parse_stat(&stat, rustix::param::clock_ticks_per_second(), rustix::param::page_size() as u64)?;
        process.started_seconds = boot.zip(process.started_seconds).map(|(boot, after)| boot + after);
        process.open_fds = fs::read_dir(folder.join("fd")).ok().map(|entries| entries.count() as u64);
        let limits = fs::read_to_string(folder.join("limits")).ok();
        process.max_fds = limits.and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?.to_owned();
            line.split_whitespace().next()?.parse().ok()
        });
        Some(process)
    }
}

/// proc(5): fields count from 1 and start after the name, which may hold spaces and parentheses.
fn parse_stat(stat: &str, ticks: u64, page: u64) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let seconds = |n: u64| n as f64 / ticks as f64;
    Some(Process {
        cpu_seconds: seconds(field(14)?.checked_add(field(15)?)?),
        started_seconds: field(22).map(seconds),
        virtual_bytes: field(23)?,
        resident_bytes: field(24)?.checked_mul(page)?,
        open_fds: None,
        max_fds: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 3000 1048576 16 18446744073709551615";
        let process = parse_stat(stat, 100, 4096).unwrap();
        assert!((process.cpu_seconds - 2.0).abs() < 1e-9, "{process:?}");
        assert_eq!(process.resident_bytes, 65_536);
        assert_eq!(process.virtual_bytes, 1_048_576);
        assert_eq!(process.started_seconds, Some(30.0));
    }

    #[test]
    fn this_process_reads_itself() {
        let me = Process::read(Path::new("/"), "self").unwrap();
        assert!(me.resident_bytes > 0 && me.open_fds.is_some_and(|n| n >= 3), "{me:?}");
        assert!(me.started_seconds.is_some_and(|t| t > 1e9), "{me:?}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken_without_a_panic(text: String) { let _ = parse_stat(&text, 100, 4096); }
    }
}
