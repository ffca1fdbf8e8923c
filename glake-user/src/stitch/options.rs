//! The allocator's options, and their names.

use super::budget::Budget;
use crate::error::{Error, Kind, Result};
use crate::suggest::nearest;

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
    /// `allocator.handles_per_block`: a block of more handles than this lies apart from the others, so that it can grow where it
    /// is: a block of 256 handles that must be put together anew takes about 13 ms on an H200.
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
            remap_slack_ratio: 0.015,
            handle_bytes: 16 << 20,
            handles_per_block: 32,
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

impl Options {
    /// Blocks from this size on lie apart.
    pub(crate) fn vast_bytes(&self) -> u64 {
        self.handles_per_block.saturating_mul(self.handle_bytes)
    }
}

/// What a user sets, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `allocator.enabled`: off leaves every allocation to the program's own allocator. For whoever makes the heap.
    pub enabled: bool,
    /// The heap's options.
    pub options: Options,
    /// What was set of [`LATER`], in its order.
    later: [Option<String>; LATER.len()],
}

impl Default for Config {
    fn default() -> Self {
        Config { enabled: true, options: Options::default(), later: Default::default() }
    }
}

/// One option as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionInfo {
    /// Its name.
    pub name: &'static str,
    /// An older name that is understood too; empty if there is none.
    pub alias: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// Its value now, as [`Config::set`] takes it.
    pub value: String,
    /// False: the part of GLake that would follow it does not exist yet.
    pub works: bool,
}

/// Every name, its alias, and what it takes.
const NAMES: [(&str, &str, &str); 10] = [
    ("allocator.enabled", "gmlake.enabled", "true or false"),
    ("allocator.remap_slack_ratio", "gmlake.defrag_threshold", "a ratio from 0 to 1, as in 0.1"),
    ("allocator.max_bytes", "memory_pool.size", "a size, as in 40GiB, or none"),
    ("allocator.handle_bytes", "", "a size, as in 16MiB"),
    ("allocator.handles_per_block", "", "a whole number from 1, as in 32"),
    ("allocator.ahead_bytes", "", "a size, as in 64MiB"),
    ("allocator.zombie_bytes", "", "a size, as in 64GiB"),
    ("checks", "", "true or false"),
    ("log", "", "true or false"),
    ("debug", "", "true or false; sets checks and log"),
];

/// An option of a part that does not exist yet.
struct Later {
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    fits: fn(&str) -> bool,
}

/// Options of the data paths and of the KV cache, which are still to come: they are kept, and nothing follows them.
const LATER: [Later; 5] = [
    Later { name: "multi_path.enabled", takes: "true or false", default: "false", fits: is_bool },
    Later {
        name: "multi_path.num_channels",
        takes: "a whole number from 1 to 64",
        default: "4",
        fits: |v| v.parse().is_ok_and(|n: u32| (1..=64).contains(&n)),
    },
    Later {
        name: "multi_path.chunk_size",
        takes: "a size from 64KiB to 1GiB, as in 8MiB",
        default: "8MiB",
        fits: |v| size(v).is_some_and(|s| (64 << 10..=1 << 30).contains(&s)),
    },
    Later { name: "kvcache.optimization", takes: "true or false", default: "false", fits: is_bool },
    Later {
        name: "kvcache.max_pinned_blocks",
        takes: "a whole number, or auto",
        default: "auto",
        fits: |v| v == "auto" || v.parse::<u64>().is_ok(),
    },
];

fn is_bool(value: &str) -> bool {
    value.parse::<bool>().is_ok()
}

/// What the agent's log level may be.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The environment's name of an option: `GLAKE_ALLOCATOR_MAX_BYTES`.
pub fn variable(name: &str) -> String {
    format!("GLAKE_{}", name.replace('.', "_").to_uppercase())
}

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

    /// Options from the environment: [`variable`] of each name, as `lookup` finds it; and what is wrong, by variable: that keeps its
    /// default.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> (Config, Vec<Error>) {
        let (mut config, mut wrong) = (Config::default(), Vec::new());
        for info in config.all() {
            let variable = variable(info.name);
            let Some(value) = lookup(&variable).filter(|v| !v.is_empty()) else { continue };
            // The agent's log level has the same variable as `log`; a level is none of ours.
            if info.name == "log" && LEVELS.contains(&value.as_str()) {
                continue;
            }
            if let Err(e) = config.set(info.name, &value) {
                let remedy = e.remedy_text().unwrap_or_default().to_owned();
                let what = format!("the variable {variable} is {value:?}, so its default holds");
                wrong.push(Error::new(Kind::BadInput, what).remedy(remedy));
            }
        }
        (config, wrong)
    }

    /// Sets one option.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let known = self.info(name)?;
        self.set_known(known.name, value).ok_or_else(|| {
            Error::new(Kind::BadInput, format!("option {} is {value:?}", known.name))
                .remedy(format!("it takes {}", known.takes))
        })
    }

    /// One option, by name or alias. `BadInput` for an unknown name, with the nearest one that exists.
    pub fn info(&self, name: &str) -> Result<OptionInfo> {
        let all = self.all();
        let found = all.iter().find(|o| o.name == name || (o.alias == name && !name.is_empty()));
        found.cloned().ok_or_else(|| {
            let names = || all.iter().flat_map(|o| [o.name, o.alias]).filter(|n| !n.is_empty());
            let remedy = match nearest(name, names()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the options are {}", names().collect::<Vec<_>>().join(", ")),
            };
            Error::new(Kind::BadInput, format!("there is no option {name:?}")).remedy(remedy)
        })
    }

    /// Every option with its value.
    pub fn all(&self) -> Vec<OptionInfo> {
        let own = NAMES.iter().map(|&(name, alias, takes)| OptionInfo {
            name,
            alias,
            takes,
            value: self.value_of(name),
            works: true,
        });
        let later = LATER.iter().zip(&self.later).map(|(later, set)| OptionInfo {
            name: later.name,
            alias: "",
            takes: later.takes,
            value: set.clone().unwrap_or_else(|| later.default.to_owned()),
            works: false,
        });
        own.chain(later).collect()
    }

    fn value_of(&self, name: &str) -> String {
        let o = &self.options;
        match name {
            "allocator.enabled" => self.enabled.to_string(),
            "allocator.remap_slack_ratio" => o.remap_slack_ratio.to_string(),
            "allocator.max_bytes" => o.max_bytes.map_or_else(|| "none".to_owned(), |b| b.to_string()),
            "allocator.handle_bytes" => o.handle_bytes.to_string(),
            "allocator.handles_per_block" => o.handles_per_block.to_string(),
            "allocator.ahead_bytes" => o.ahead_bytes.to_string(),
            "allocator.zombie_bytes" => o.zombie_bytes.to_string(),
            "checks" => o.checks.to_string(),
            "log" => o.log.to_string(),
            _ => (o.checks && o.log).to_string(),
        }
    }

    /// `None`: the value is not of the option's kind.
    fn set_known(&mut self, name: &str, value: &str) -> Option<()> {
        if let Some(at) = LATER.iter().position(|later| later.name == name) {
            self.later[at] = (LATER[at].fits)(value).then(|| Some(value.to_owned()))?;
            return Some(());
        }
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
    fn every_option_can_be_read_and_set_to_what_was_read() {
        let config = Config::default();
        let mut again = Config::default();
        for info in config.all() {
            again.set(info.name, &info.value).unwrap();
            assert_eq!(again.info(info.name).unwrap().value, info.value, "{}", info.name);
        }
        assert_eq!(again.options, config.options);
    }

    #[test]
    fn an_option_of_a_part_that_does_not_exist_is_kept_and_says_so() {
        let mut config = Config::default();
        config.set("multi_path.chunk_size", "16MiB").unwrap();
        let info = config.info("multi_path.chunk_size").unwrap();
        assert_eq!((info.value.as_str(), info.works), ("16MiB", false));
        assert!(config.info("allocator.max_bytes").unwrap().works);
    }

    #[test]
    fn the_environment_sets_the_same_options_and_a_wrong_variable_is_named() {
        let set = |name: &str| (name == "GLAKE_ALLOCATOR_MAX_BYTES").then(|| "1GiB".to_owned());
        assert_eq!(Config::from_environment(set).0.options.max_bytes, Some(1 << 30));
        let (config, wrong) = Config::from_environment(|n| {
            (n == "GLAKE_CHECKS").then(|| "maybe".to_owned()).or_else(|| set(n))
        });
        assert!(wrong[0].chain().contains("GLAKE_CHECKS"), "{wrong:?}");
        assert!(wrong[0].remedy_text().unwrap().contains("true or false"));
        assert_eq!(config.options.max_bytes, Some(1 << 30), "a wrong variable costs only itself");
        let level = |name: &str| (name == "GLAKE_LOG").then(|| "warn".to_owned());
        assert!(Config::from_environment(level).1.is_empty(), "the agent's level is no mistake");
    }

    #[test]
    fn a_wrong_option_is_named_with_what_is_expected() {
        for (text, expected) in [
            ("alocator.enabled=true", "did you mean allocator.enabled?"),
            ("gmlake.enable=true", "did you mean gmlake.enabled?"),
            ("colour=red", "allocator.max_bytes"),
            ("multi_path.num_channels=0", "from 1 to 64"),
            ("multi_path.chunk_size=1KiB", "64KiB"),
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
