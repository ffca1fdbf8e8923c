//! The allocator's options, and their names.

use super::budget::Budget;
use crate::error::{Error, Kind, Result};

/// How the heap behaves. The defaults are the product's; each field's doc names its option.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `allocator.max_bytes`: physical memory this heap may hold. A limit, not a reservation. `None`: the device's.
    pub max_bytes: Option<u64>,
    /// A limit shared with other heaps of the process. `None`: none.
    pub budget: Option<Budget>,
    /// `allocator.remap_slack_ratio`: where a request fits nowhere, new physical memory is made instead of remapping
    /// while `reserved <= peak allocated * (1 + ratio)`.
    pub remap_slack_ratio: f64,
    /// `allocator.handle_bytes`: size of the physical handles for blocks of 1 MiB and more. Smaller ones waste less and
    /// cost more: the driver's time goes by their number.
    pub handle_bytes: u64,
    /// `allocator.handles_per_block`: a block of more handles than this is made of larger ones, so that no allocation
    /// waits long: 256 new handles are about 13 ms on an H200, 96 about 5 ms.
    pub handles_per_block: u64,
    /// Requests below this are kept in the small-block pool.
    pub small_bytes: u64,
    /// `allocator.ahead_bytes`: physical memory made ahead by the reclaimer while the heap grows. Counts as reserved.
    pub ahead_bytes: u64,
    /// `allocator.zombie_bytes`: address space that may wait to be unmapped before allocations wait for it.
    pub zombie_bytes: u64,
    /// Same-stream memory is mapped a second time at once, while earlier work may still run. Off: remaps wait for it.
    pub remap_while_busy: bool,
    /// How long an allocation may wait for other streams before it is out of memory, in nanoseconds.
    pub wait_ns: u64,
    /// `checks`: guard ranges, history of each pointer, strict frees.
    pub checks: bool,
    /// `log`: a line for each allocation that needed the driver, at level info.
    pub log: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_bytes: None,
            budget: None,
            remap_slack_ratio: 0.0,
            handle_bytes: 16 << 20,
            handles_per_block: 256,
            small_bytes: 1 << 20,
            ahead_bytes: 0,
            zombie_bytes: 64 << 30,
            remap_while_busy: true,
            wait_ns: 2_000_000_000,
            checks: false,
            log: false,
        }
    }
}

/// What a user sets, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `allocator.enabled`: off leaves every allocation to the program's own allocator. For whoever makes the heap.
    pub enabled: bool,
    /// The heap's options.
    pub options: Options,
}

impl Default for Config {
    fn default() -> Self {
        Config { enabled: true, options: Options::default() }
    }
}

/// Every name, its alias, and what it takes.
const NAMES: [(&str, &str, &str); 10] = [
    ("allocator.enabled", "gmlake.enabled", "true or false"),
    ("allocator.remap_slack_ratio", "gmlake.defrag_threshold", "a ratio from 0 to 1, as in 0.1"),
    ("allocator.max_bytes", "memory_pool.size", "a size, as in 40GiB, or none"),
    ("allocator.handle_bytes", "", "a size, as in 16MiB"),
    ("allocator.handles_per_block", "", "a whole number from 1, as in 256"),
    ("allocator.ahead_bytes", "", "a size, as in 64MiB"),
    ("allocator.zombie_bytes", "", "a size, as in 64GiB"),
    ("checks", "", "true or false"),
    ("log", "", "true or false"),
    ("debug", "", "true or false"),
];

impl Config {
    /// Options as `name=value`, with commas or line ends between: `allocator.max_bytes=40GiB,checks=true`. `#` begins a
    /// comment. `BadInput` names what is wrong, and what is expected.
    pub fn parse(text: &str) -> Result<Config> {
        let mut config = Config::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            for pair in line.split(',').map(str::trim).filter(|p| !p.is_empty()) {
                let Some((name, value)) = pair.split_once('=') else {
                    return Err(Error::new(Kind::BadInput, format!("option {pair:?} has no value"))
                        .remedy("write it as name=value, as in checks=true"));
                };
                config.set(name.trim(), value.trim())?;
            }
        }
        Ok(config)
    }

    /// Sets one option.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some((name, _, takes)) = NAMES.iter().find(|n| name == n.0 || (name == n.1 && !name.is_empty()))
        else {
            let known: Vec<&str> = NAMES.iter().map(|n| n.0).collect();
            return Err(Error::new(Kind::BadInput, format!("there is no option {name:?}"))
                .remedy(format!("the options are {}", known.join(", "))));
        };
        self.set_known(name, value).ok_or_else(|| {
            Error::new(Kind::BadInput, format!("option {name} is {value:?}"))
                .remedy(format!("it takes {takes}"))
        })
    }

    /// `None`: the value is not of the option's kind.
    fn set_known(&mut self, name: &str, value: &str) -> Option<()> {
        let options = &mut self.options;
        match name {
            "allocator.enabled" => self.enabled = value.parse().ok()?,
            "allocator.remap_slack_ratio" => {
                options.remap_slack_ratio = value.parse().ok().filter(|r| (0.0..=1.0).contains(r))?;
            }
            "allocator.max_bytes" if value == "none" => options.max_bytes = None,
            "allocator.max_bytes" => options.max_bytes = Some(size(value)?),
            "allocator.handle_bytes" => options.handle_bytes = size(value).filter(|s| *s > 0)?,
            "allocator.handles_per_block" => {
                options.handles_per_block = value.parse().ok().filter(|n| *n > 0)?;
            }
            "allocator.ahead_bytes" => options.ahead_bytes = size(value)?,
            "allocator.zombie_bytes" => options.zombie_bytes = size(value)?,
            "checks" => options.checks = value.parse().ok()?,
            "log" => options.log = value.parse().ok()?,
            _ => {
                options.checks = value.parse().ok()?;
                options.log = options.checks;
            }
        }
        Some(())
    }
}

/// `40GiB`, `512 MiB`, `1.5GiB`, `1048576`.
fn size(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    // Below 2^53 a float holds every whole number of bytes.
    (bytes.is_finite() && bytes < 9e15).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_by_name_and_by_alias() {
        let config = Config::parse(
            "gmlake.enabled=false, memory_pool.size = 1.5GiB # half of it\ngmlake.defrag_threshold=0.25,debug=true\n",
        )
        .unwrap();
        assert!(!config.enabled && config.options.checks && config.options.log);
        assert_eq!(config.options.max_bytes, Some(3 << 29));
        assert_eq!(config.options.remap_slack_ratio, 0.25);
        assert_eq!(Config::parse("\n # nothing\n").unwrap(), Config::default());
        let none = Config::parse("allocator.max_bytes=40GiB,allocator.max_bytes=none").unwrap();
        assert_eq!(none.options.max_bytes, None);
    }

    #[test]
    fn a_wrong_option_is_named_with_what_is_expected() {
        for (text, expected) in [
            ("alocator.enabled=true", "allocator.enabled"),
            ("checks", "name=value"),
            ("checks=yes", "true or false"),
            ("allocator.max_bytes=40GB", "40GiB"),
            ("allocator.max_bytes=-1", "a size"),
            ("allocator.handle_bytes=0", "a size"),
            ("allocator.remap_slack_ratio=7", "ratio"),
            ("allocator.max_bytes=99999999999TiB", "a size"),
            ("=1", "there is no option"),
        ] {
            let e = Config::parse(text).unwrap_err();
            assert_eq!(e.kind(), Kind::BadInput);
            let all = format!("{} {}", e.chain(), e.remedy_text().unwrap_or_default());
            assert!(all.contains(expected), "{text}: {all}");
        }
    }
}
