//! The line about NVML: what the agent's configuration asks for, tried as the agent would.

use super::{Row, Seen, reasons};
use crate::agent::config::{Layered, Request};
use crate::agent::health;
use crate::clock::{Clock, SystemClock};
use crate::events::nvml::{self, FAMILY, Health, Nvml, Reader, Settings};
use crate::events::sample::Probe;
use std::time::{Duration, Instant};

/// A reading under way is looked at this often.
const LOOK: Duration = Duration::from_millis(20);

/// NVML's line, and its probe.
pub(super) fn row() -> (Row, Option<Probe>) {
    let layered = match Layered::read(&Request::of_process(None, Vec::new())) {
        Ok(layered) => layered,
        Err(e) => {
            let why =
                format!("the agent's configuration cannot be read: {} -> glake config check", e.chain());
            return (line(Seen::Unknown, Vec::new(), vec![why]), None);
        }
    };
    let Some(settings) = health::settings(&layered.config.nvml) else {
        let probe = nvml::not_wanted();
        return (line(Seen::Off, Vec::new(), reasons(FAMILY, std::slice::from_ref(&probe))), Some(probe));
    };
    let told = tried(settings);
    let probe = told.probe();
    let why = reasons(FAMILY, std::slice::from_ref(&probe));
    let row = match told.health {
        Health::Answering => {
            let gpus = format!("{}, {} GPUs", probe.how, told.gpus.len());
            line(lost(&told), vec![gpus], unknown(&told))
        }
        Health::Starting => line(Seen::Unknown, Vec::new(), vec!["it has not answered yet".into()]),
        Health::Silent | Health::Failed => line(Seen::No, Vec::new(), why),
    };
    (row, Some(probe))
}

/// One reading, or its deadline.
fn tried(settings: Settings) -> Nvml {
    let until = Instant::now() + settings.timeout + 5 * LOOK;
    let reader = Reader::start(settings);
    loop {
        let told = reader.look(SystemClock.now());
        if told.health != Health::Starting || Instant::now() > until {
            return told;
        }
        std::thread::sleep(LOOK);
    }
}

fn lost(told: &Nvml) -> Seen {
    if told.gpus.iter().any(|gpu| gpu.lost) { Seen::Partly } else { Seen::Yes }
}

/// What GPUs do not tell, and why; GPUs with the same answer share a line.
fn unknown(told: &Nvml) -> Vec<String> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for (index, gpu) in told.gpus.iter().enumerate() {
        for (key, why) in &gpu.unknown {
            // A GPU replaces rows or retires pages, never both.
            let other = match key.as_str() {
                "retired_pages" => gpu.remapped_rows.is_some(),
                "remapped_rows" => gpu.retired_pages.double_bit.is_some(),
                _ => false,
            };
            if other {
                continue;
            }
            let text = match (key.as_str(), gpu.lost) {
                (_, true) => format!("{why} -> restart the machine; glake events says what came before"),
                ("all", _) => why.clone(),
                _ => format!("{} unknown: {why}", key.replace('_', " ")),
            };
            let name = gpu.pci.clone().unwrap_or_else(|| format!("gpu {index}"));
            match found.iter_mut().find(|(known, _)| *known == text) {
                Some((_, gpus)) => gpus.push(name),
                None => found.push((text, vec![name])),
            }
        }
    }
    let all = told.gpus.len();
    let line = |(text, gpus): (String, Vec<String>)| {
        if gpus.len() == all { text } else { format!("{}: {text}", gpus.join(", ")) }
    };
    found.into_iter().map(line).collect()
}

fn line(state: Seen, how: Vec<String>, why: Vec<String>) -> Row {
    Row {
        family: FAMILY.to_owned(),
        title: "ECC, row remap, MIG".to_owned(),
        state,
        required_missing: state == Seen::No,
        how,
        why,
    }
}
