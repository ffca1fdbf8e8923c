//! All series of this moment, in the order of the table. Both text formats are made from it.

use super::{
    ledger::{Labels, Ledger, Sizes},
    table::{
        BUILD_INFO, CONFIG_RELOAD, Family, LATENCY_BOUNDS_US, PROCESS_CPU, PROCESS_MAX_FDS, PROCESS_OPEN_FDS,
        PROCESS_RSS, PROCESS_START, PROCESS_VIRTUAL, SERIES_REFUSED, SIZE_BOUNDS, TABLE, Type,
    },
};
use crate::{events::sample::Histogram, host::process::Process};

/// A family and its series.
#[derive(Debug, Clone)]
pub struct Branch {
    /// Its row in the table.
    pub family: &'static Family,
    /// Its series, sorted by labels.
    pub series: Vec<(Labels, Value)>,
}

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
    /// A histogram in seconds.
    Histogram {
        /// Cumulative counts at [`LATENCY_BOUNDS_US`].
        below: Vec<u64>,
        /// All of them.
        count: u64,
        /// Their sum in seconds.
        sum: f64,
    },
    /// A histogram of sizes.
    Sizes {
        /// Cumulative counts at [`SIZE_BOUNDS`].
        below: Vec<u64>,
        /// All of them.
        count: u64,
        /// Their sum.
        sum: u64,
    },
}

/// What the agent knows about itself.
#[derive(Debug, Clone, Default)]
pub struct Itself {
    /// Its process; `None`: /proc/self could not be read.
    pub process: Option<Process>,
    /// Whether the newest configuration is in use. `None`: it was never asked to reload.
    pub reload_ok: Option<bool>,
}

/// All series of this moment.
pub fn tree(ledger: &Ledger, itself: &Itself) -> Vec<Branch> {
    TABLE.iter().map(|family| Branch { family, series: series(family, ledger, itself) }).collect()
}

/// How many series a tree has, buckets counted one by one.
pub fn series_count(tree: &[Branch]) -> usize {
    let one = |value: &Value| match value {
        Value::Histogram { below, .. } | Value::Sizes { below, .. } => below.len() + 3,
        Value::Whole(_) | Value::Real(_) => 1,
    };
    tree.iter().flat_map(|branch| &branch.series).map(|(_, value)| one(value)).sum()
}

fn series(family: &'static Family, ledger: &Ledger, itself: &Itself) -> Vec<(Labels, Value)> {
    // Sums of times are kept in ns.
    let number =
        |n: u64| if family.unit == "seconds" { Value::Real(n as f64 / 1e9) } else { Value::Whole(n) };
    let mut series: Vec<(Labels, Value)> = match family.kind {
        Type::Counter => {
            let own = ledger.counters(family).map(|(labels, total)| (labels.clone(), number(total)));
            let workloads = ledger.workloads().series(family);
            own.chain(workloads.into_iter().map(|(labels, total)| (labels, number(total)))).collect()
        }
        Type::Gauge => {
            ledger.gauges(family).map(|(labels, value)| (labels.clone(), Value::Real(value))).collect()
        }
        Type::Histogram => {
            let times = ledger.histograms(family).map(|(labels, h)| (labels.clone(), fold(h)));
            let sizes = ledger.size_histograms(family).map(|(labels, h)| (labels.clone(), fold_sizes(h)));
            times.chain(sizes).collect()
        }
    };
    series.extend(about_itself(family, ledger, itself));
    series
}

fn about_itself(family: &'static Family, ledger: &Ledger, itself: &Itself) -> Option<(Labels, Value)> {
    if family.name == BUILD_INFO.name {
        let mut labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        labels.extend(option_env!("GLAKE_COMMIT").map(|commit| ("revision", commit.to_owned())));
        labels.push(("arch", std::env::consts::ARCH.to_owned()));
        return Some((labels, Value::Whole(1)));
    }
    if family.name == SERIES_REFUSED.name {
        return Some((Vec::new(), Value::Whole(ledger.refused())));
    }
    if family.name == CONFIG_RELOAD.name {
        return Some((Vec::new(), Value::Whole(u64::from(itself.reload_ok.unwrap_or(true)))));
    }
    let process = itself.process.as_ref()?;
    let of = |wanted: &Family, value: Value| (wanted.name == family.name).then(|| (Vec::new(), value));
    of(&PROCESS_CPU, Value::Real(process.cpu_seconds))
        .or_else(|| of(&PROCESS_RSS, Value::Whole(process.resident_bytes)))
        .or_else(|| of(&PROCESS_VIRTUAL, Value::Whole(process.virtual_bytes)))
        .or_else(|| of(&PROCESS_START, Value::Real(process.started_seconds?)))
        .or_else(|| of(&PROCESS_OPEN_FDS, Value::Whole(process.open_fds?)))
        .or_else(|| of(&PROCESS_MAX_FDS, Value::Whole(process.max_fds?)))
}

/// Slots of powers of two become the fixed bounds.
fn fold_sizes(sizes: &Sizes) -> Value {
    let below = SIZE_BOUNDS.iter().enumerate().map(|(i, _)| sizes.slots.iter().take(i + 1).sum());
    Value::Sizes { below: below.collect(), count: sizes.slots.iter().sum(), sum: sizes.sum }
}

/// The kernel's slots become the fixed bounds: every bound is the end of a slot, so nothing is moved across one.
pub(super) fn fold(histogram: &Histogram) -> Value {
    let below = LATENCY_BOUNDS_US.map(|bound| {
        let within = histogram
            .slots
            .iter()
            .enumerate()
            .filter(|(slot, _)| glake_common::hist::upper_us(*slot).is_some_and(|upper| upper <= bound));
        within.map(|(_, n)| n).sum()
    });
    Value::Histogram { below: below.into(), count: histogram.count(), sum: histogram.sum_ns as f64 / 1e9 }
}
