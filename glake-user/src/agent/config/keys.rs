//! Every key of the configuration: how it is read, shown and explained.

use super::{Config, LogLevel, Profile, nearest};
use crate::events::ebpf::{self, UvmHooks};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// What a value looks like in TOML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// A number.
    Number,
    /// true or false.
    Flag,
    /// An array of strings; in the environment and in flags separated by commas.
    List,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Dotted, as in the file.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: Kind,
    /// Whether a change needs a restart.
    pub restart: bool,
    /// One line for people.
    pub help: &'static str,
    /// Reads a value. The error says what would be right.
    pub set: fn(&mut Config, &str) -> Result<(), String>,
    /// Shows the value.
    pub get: fn(&Config) -> String,
}

impl Key {
    /// `GLAKE_HTTP_LISTEN`.
    pub fn variable(&self) -> String {
        format!("GLAKE_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The value as it stands in a file.
    pub fn toml(&self, config: &Config) -> String {
        let value = (self.get)(config);
        match self.kind {
            Kind::Number | Kind::Flag => value,
            Kind::Text => quoted(&value),
            Kind::List => {
                let items: Vec<String> =
                    value.split(',').filter(|item| !item.is_empty()).map(quoted).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// All keys, in the order of `deploy/glake.toml`.
pub static KEYS: &[Key] = &[
    Key {
        name: "interval",
        kind: Kind::Text,
        restart: false,
        help: "Time between readings, 200ms to 60s.",
        set: |config, text| {
            let interval = duration(text)?;
            if !(Duration::from_millis(200)..=Duration::from_secs(60)).contains(&interval) {
                return Err("it must lie between 200ms and 60s".into());
            }
            config.interval = interval;
            Ok(())
        },
        get: |config| show(config.interval),
    },
    Key {
        name: "profile",
        kind: Kind::Text,
        restart: true,
        help: "light: cheap enough to leave on. full: adds IOMMU and DMA calls and NVMe submission-queue fill.",
        set: |config, text| {
            config.profile = match text {
                "light" => Profile::Light,
                "full" => Profile::Full,
                _ => return Err("it is light or full".into()),
            };
            Ok(())
        },
        get: |config| if config.profile == Profile::Light { "light".into() } else { "full".into() },
    },
    Key {
        name: "disabled_probes",
        kind: Kind::List,
        restart: true,
        help: "Probes not to attach, by the names that `glake doctor` prints.",
        set: |config, text| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            config.disabled_probes = names.map(probe).collect::<std::result::Result<_, _>>()?;
            Ok(())
        },
        get: |config| config.disabled_probes.join(","),
    },
    Key {
        name: "uvm_hooks",
        kind: Kind::Text,
        restart: true,
        help: "How nvidia_uvm is probed: auto (kprobe, or fentry where that is refused), kprobe, fentry (cheaper; holds the module while in use).",
        set: |config, text| {
            config.uvm_hooks = UvmHooks::of(text).ok_or("it is auto, kprobe or fentry")?;
            Ok(())
        },
        get: |config| config.uvm_hooks.word().into(),
    },
    Key {
        name: "slow_io",
        kind: Kind::Text,
        restart: true,
        help: "A block request that takes longer than this becomes an event of its own.",
        set: |config, text| {
            config.slow_io = duration(text)?;
            Ok(())
        },
        get: |config| show(config.slow_io),
    },
    Key {
        name: "max_cpu_percent",
        kind: Kind::Number,
        restart: true,
        help: "A probe that costs more than this share of all CPUs is taken off, and /healthz says so. 100: never.",
        set: |config, text| {
            let percent = text.parse::<f64>().ok().filter(|p| *p > 0.0 && *p <= 100.0);
            config.max_cpu_percent = percent.ok_or("it is a number above 0, at most 100")?;
            Ok(())
        },
        get: |config| config.max_cpu_percent.to_string(),
    },
    Key {
        name: "http.listen",
        kind: Kind::Text,
        restart: true,
        help: "Address and port of /metrics and /api/v1. Beyond loopback it needs http.web_config or http.allow_open.",
        set: |config, text| {
            config.listen =
                text.parse().map_err(|_| "it is an address and a port, such as 127.0.0.1:9517".to_owned())?;
            Ok(())
        },
        get: |config| config.listen.to_string(),
    },
    Key {
        name: "http.web_config",
        kind: Kind::Text,
        restart: false,
        help: "File with TLS keys and users (see web.toml beside this one). Empty: neither.",
        set: |config, text| {
            config.web_config = (!text.is_empty()).then(|| PathBuf::from(text));
            Ok(())
        },
        get: |config| config.web_config.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
    },
    Key {
        name: "http.allow_open",
        kind: Kind::Flag,
        restart: true,
        help: "Answer beyond loopback without TLS and users: anybody who reaches the port reads workload names.",
        set: |config, text| set_flag(&mut config.allow_open, text),
        get: |config| config.allow_open.to_string(),
    },
    Key {
        name: "privileges.user",
        kind: Kind::Text,
        restart: true,
        help: "User to become once the probes are attached: a name of /etc/passwd, uid, or uid:gid. Empty: stay.",
        set: |config, text| {
            config.user = (!text.is_empty()).then(|| text.to_owned());
            Ok(())
        },
        get: |config| config.user.clone().unwrap_or_default(),
    },
    Key {
        name: "privileges.seal",
        kind: Kind::Flag,
        restart: true,
        help: "Drop every capability once the probes are attached. docs/permissions.md lists what is then refused.",
        set: |config, text| set_flag(&mut config.seal, text),
        get: |config| config.seal.to_string(),
    },
    Key {
        name: "lock",
        kind: Kind::Text,
        restart: true,
        help: "File that keeps a second agent off this host.",
        set: |config, text| {
            if text.is_empty() {
                return Err("it is the path of a file".into());
            }
            config.lock = PathBuf::from(text);
            Ok(())
        },
        get: |config| config.lock.display().to_string(),
    },
    Key {
        name: "event_store",
        kind: Kind::Text,
        restart: true,
        help: "Folder that keeps GPU events over restarts, at most 16 MiB of them. Empty: they are not kept.",
        set: |config, text| {
            config.event_store = PathBuf::from(text);
            Ok(())
        },
        get: |config| config.event_store.display().to_string(),
    },
    Key {
        name: "nvml.enabled",
        kind: Kind::Flag,
        restart: true,
        help: "Ask NVML for ECC errors, replaced rows, MIG and memory. The agent then holds /dev/nvidiactl and the GPUs open.",
        set: |config, text| set_flag(&mut config.nvml.enabled, text),
        get: |config| config.nvml.enabled.to_string(),
    },
    Key {
        name: "nvml.interval",
        kind: Kind::Text,
        restart: true,
        help: "Time between two readings of NVML, 1s to 1h.",
        set: |config, text| set_between(&mut config.nvml.interval, text, 1..=3600),
        get: |config| show(config.nvml.interval),
    },
    Key {
        name: "nvml.timeout",
        kind: Kind::Text,
        restart: true,
        help: "NVML must answer within this time, 1s to 60s, else its values are unknown. Nothing else ever waits for it.",
        set: |config, text| set_between(&mut config.nvml.timeout, text, 1..=60),
        get: |config| show(config.nvml.timeout),
    },
    Key {
        name: "nvml.library",
        kind: Kind::Text,
        restart: true,
        help: "Name or path of the library, where the dynamic linker does not find the driver's own.",
        set: |config, text| {
            if text.is_empty() {
                return Err("it is a name or a path".into());
            }
            config.nvml.library = text.to_owned();
            Ok(())
        },
        get: |config| config.nvml.library.clone(),
    },
    Key {
        name: "log",
        kind: Kind::Text,
        restart: false,
        help: "How much to say on stderr: error, warn, info, debug.",
        set: |config, text| {
            let level =
                LogLevel::from_str(text).ok().filter(|l| *l != LogLevel::Off && *l != LogLevel::Trace);
            config.log = level.ok_or("it is error, warn, info or debug")?;
            Ok(())
        },
        get: |config| config.log.as_str().to_lowercase(),
    },
];

fn set_flag(to: &mut bool, text: &str) -> Result<(), String> {
    *to = match text {
        "true" | "1" => true,
        "false" | "0" => false,
        _ => return Err("it is true or false".into()),
    };
    Ok(())
}

fn set_between(to: &mut Duration, text: &str, seconds: std::ops::RangeInclusive<u64>) -> Result<(), String> {
    let time = duration(text)?;
    let (least, most) = (Duration::from_secs(*seconds.start()), Duration::from_secs(*seconds.end()));
    if !(least..=most).contains(&time) {
        return Err(format!("it must lie between {} and {}", show(least), show(most)));
    }
    *to = time;
    Ok(())
}

/// A number with a unit: `250ms`, `2s`, `1m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "it is a whole number with ms, s, m or h, such as \"2s\"".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)
}

fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

/// The name of a probe that there is.
fn probe(name: &str) -> std::result::Result<String, String> {
    let known = || ebpf::probe_table().map(|e| e.name).chain(ebpf::LOG_PROBES.iter().map(|p| p.0));
    if known().any(|k| k == name) {
        return Ok(name.to_owned());
    }
    Err(match nearest(name, known()) {
        Some(near) => format!("there is no probe {name:?}; did you mean {near}?"),
        None => format!("there is no probe {name:?}: `glake doctor --json` lists them"),
    })
}
