//! Which way a file takes to the GPU, and why not another. A pure decision from what was found out about the file, the host
//! and the GPU, and from what was measured here before.

use serde::{Deserialize, Serialize};

use super::rates::Rate;

/// The ways this version can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Out of the page cache into the pinned ring by threads, on by the GPU's copy engine.
    PageCache,
    /// From the disk past the page cache into the pinned ring by io_uring, on by the GPU's copy engine.
    Disk,
    /// What a program does without a ring: read into plain memory and let the driver copy that. A reference only.
    Plain,
}

impl Way {
    /// As people read it.
    pub fn label(self) -> &'static str {
        match self {
            Way::PageCache => "page cache staging",
            Way::Disk => "disk staging",
            Way::Plain => "plain copy",
        }
    }

    /// How many of so many other GPUs carry parts of it too: the plain copy has one way.
    pub fn helped_by(self, peers: usize) -> usize {
        if self == Way::Plain { 0 } else { peers }
    }

    /// As `--route` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Way::PageCache => "page_cache",
            Way::Disk => "disk",
            Way::Plain => "plain",
        }
    }
}

/// What was found out.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Bytes to copy.
    pub size: u64,
    /// The share of them in the page cache; `None`: the kernel does not say.
    pub cached: Option<f64>,
    /// Whether reads past the page cache work on this file, by trying.
    pub direct: Result<(), String>,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Other GPUs whose links carry parts too.
    pub peers: usize,
    /// The best measurement of each way on this host, GPU and disk.
    pub measured: Vec<Rate>,
}

/// Where a way stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is taken.
    Chosen,
    /// It could be taken, and is not.
    Rejected,
    /// It cannot be taken here.
    Unavailable,
    /// It is never taken; for comparison.
    Reference,
    /// This version of GLake has no such way.
    NotBuilt,
}

impl State {
    /// As people read it.
    pub fn label(self) -> &'static str {
        match self {
            State::Chosen => "chosen",
            State::Rejected => "rejected",
            State::Unavailable => "unavailable",
            State::Reference => "reference",
            State::NotBuilt => "not built",
        }
    }
}

/// A line of the explanation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub way: &'static str,
    /// Bytes a second where it was measured on this host.
    pub bytes_per_second: Option<f64>,
    /// Where it stands.
    pub state: State,
    /// Why, and what would change it.
    pub why: String,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Which way.
    pub way: Way,
    /// Threads.
    pub lanes: usize,
    /// Bytes of a part.
    pub part_bytes: usize,
    /// Parts for each thread.
    pub parts_per_lane: usize,
    /// Seconds it should take, where this way was measured here.
    pub expected_seconds: Option<f64>,
    /// Every way.
    pub rows: Vec<Row>,
}

/// From this share on, a file counts as cached where nothing was measured.
const MOSTLY: f64 = 0.5;
/// Threads for the page cache: on an H200 host 12 of 4 MiB reached 51.3 GB/s, 16 no more (`docs/benchmarks.md`).
const CACHE_LANES: usize = 12;
/// Threads for the disk: the queue is deep, not wide.
const DISK_LANES: usize = 4;
const PART: usize = 4 << 20;

/// Decides. `wanted` takes a way that the user named, if it can be taken at all.
pub fn decide(facts: &Facts, wanted: Option<Way>) -> Decision {
    let (by_rule, reason) = by_rule(facts);
    let (way, reason) = match wanted {
        Some(way) => (way, "asked for by --route".to_owned()),
        None => (by_rule, reason),
    };
    let rate = measured(facts, way);
    let usual = if way == Way::Disk { DISK_LANES } else { CACHE_LANES };
    Decision {
        way,
        lanes: rate.map_or(usual, |r| r.lanes).min(facts.cpus.max(1)),
        part_bytes: rate.map_or(PART, |r| r.part_bytes),
        parts_per_lane: if way == Way::Disk { 8 } else { 2 },
        expected_seconds: rate.map(|r| facts.size as f64 / r.bytes_per_second),
        rows: rows(facts, way, &reason),
    }
}

fn measured(facts: &Facts, way: Way) -> Option<&Rate> {
    facts.measured.iter().find(|r| r.way == way)
}

/// The way by itself, and why.
fn by_rule(facts: &Facts) -> (Way, String) {
    let Some(cached) = facts.cached else {
        return (
            Way::PageCache,
            "the kernel does not say how much is cached: the page cache is right either way".into(),
        );
    };
    let percent = format!("{:.0} % of the file is in the page cache", cached * 100.0);
    if facts.direct.is_err() {
        return (Way::PageCache, format!("{percent}, and there is no way past it"));
    }
    let (Some(cache), Some(disk)) = (measured(facts, Way::PageCache), measured(facts, Way::Disk)) else {
        let way = if cached >= MOSTLY { Way::PageCache } else { Way::Disk };
        return (way, format!("{percent}; not measured here: `glake bench copy FILE` does it"));
    };
    // What is not cached comes from the disk on either way, on this one at its rate at best.
    let through_cache = cached / cache.bytes_per_second + (1.0 - cached) / disk.bytes_per_second;
    let past_cache = 1.0 / disk.bytes_per_second;
    if cached < MOSTLY && through_cache > 0.9 * past_cache {
        return (Way::Disk, format!("{percent}: reading past it costs no more, and leaves it to others"));
    }
    if through_cache <= past_cache {
        (Way::PageCache, format!("{percent}, and it is the faster source here"))
    } else {
        (Way::Disk, format!("{percent}, but this disk is faster than copying out of it"))
    }
}

fn rows(facts: &Facts, chosen: Way, reason: &str) -> Vec<Row> {
    let row = |way: Way, unavailable: Option<String>, otherwise: &str| {
        let (state, why) = if way == chosen {
            (State::Chosen, reason.to_owned())
        } else if let Some(why) = unavailable {
            (State::Unavailable, why)
        } else {
            (State::Rejected, otherwise.to_owned())
        };
        let rate = measured(facts, way).map(|r| r.bytes_per_second);
        Row { way: way.label(), bytes_per_second: rate, state, why }
    };
    let cache_why =
        "most of the file would have to come from the disk first, and push other files out of the cache";
    let disk_why = "the disk would read again what memory holds already";
    let mut all = vec![
        row(Way::PageCache, None, cache_why),
        row(Way::Disk, facts.direct.clone().err(), disk_why),
        Row {
            way: Way::Plain.label(),
            bytes_per_second: measured(facts, Way::Plain).map(|r| r.bytes_per_second),
            state: State::Reference,
            why: "what a program does that reads into plain memory and copies that".to_owned(),
        },
    ];
    all.push(multi_path(facts, chosen));
    for way in ["registered page cache", "cuFile (GDS)", "p2p NVMe -> GPU"] {
        let why = "this version of GLake has no such route".to_owned();
        all.push(Row { way, bytes_per_second: None, state: State::NotBuilt, why });
    }
    all.sort_by_key(|r| r.state != State::Chosen);
    all
}

/// Whether links of other GPUs help.
fn multi_path(facts: &Facts, chosen: Way) -> Row {
    let (state, why) = match facts.peers {
        _ if chosen == Way::Plain => (State::Rejected, "a plain copy has one way".to_owned()),
        0 => (State::Rejected, "no other GPU was named to relay: --relay gpu:N".to_owned()),
        n => {
            let also = format!("over {n} other GPU{} too, part by part, whichever is free", plural(n));
            (State::Chosen, also)
        }
    };
    Row { way: "multi-path", bytes_per_second: None, state, why }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(cached: Option<f64>) -> Facts {
        Facts { size: 4_290_000_000, cached, direct: Ok(()), cpus: 16, peers: 0, measured: Vec::new() }
    }

    fn rate(way: Way, lanes: usize, bytes_per_second: f64) -> Rate {
        Rate {
            way,
            gpu: String::new(),
            disk: None,
            peers: 0,
            lanes,
            part_bytes: 8 << 20,
            bytes: 0,
            bytes_per_second,
            cpu_seconds_per_gb: 0.0,
            measured_at: 0,
        }
    }

    fn both(cache: f64, disk: f64) -> Vec<Rate> {
        vec![rate(Way::PageCache, 10, cache), rate(Way::Disk, 3, disk)]
    }

    #[test]
    fn a_cached_file_comes_out_of_the_cache_and_a_cold_one_from_the_disk() {
        assert_eq!(decide(&facts(Some(1.0)), None).way, Way::PageCache);
        assert_eq!(decide(&facts(Some(0.02)), None).way, Way::Disk);
        let measured = Facts { measured: both(51e9, 2e9), ..facts(Some(1.0)) };
        assert_eq!(decide(&measured, None).way, Way::PageCache);
        assert_eq!(decide(&Facts { cached: Some(0.02), ..measured }, None).way, Way::Disk);
    }

    #[test]
    fn a_disk_faster_than_the_copy_out_of_the_cache_is_taken_though_all_is_cached() {
        let fast = Facts { measured: both(20e9, 40e9), ..facts(Some(1.0)) };
        assert_eq!(decide(&fast, None).way, Way::Disk);
    }

    #[test]
    fn without_a_way_past_the_cache_or_without_knowing_it_the_cache_serves() {
        let no = Facts { direct: Err("this file system refuses O_DIRECT".into()), ..facts(Some(0.0)) };
        let decision = decide(&no, None);
        assert_eq!(decision.way, Way::PageCache);
        let disk = decision.rows.iter().find(|r| r.way == Way::Disk.label()).unwrap();
        assert_eq!((disk.state, &*disk.why), (State::Unavailable, "this file system refuses O_DIRECT"));
        assert_eq!(decide(&facts(None), None).way, Way::PageCache);
    }

    #[test]
    fn settings_and_time_come_from_what_was_measured_and_never_from_a_guess() {
        let decision = decide(&Facts { measured: both(42.9e9, 2e9), ..facts(Some(1.0)) }, None);
        assert_eq!((decision.lanes, decision.part_bytes), (10, 8 << 20));
        assert!((decision.expected_seconds.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(decide(&facts(Some(1.0)), None).expected_seconds, None);
        let few = decide(&Facts { cpus: 2, ..facts(Some(1.0)) }, None);
        assert_eq!(few.lanes, 2);
    }

    #[test]
    fn the_way_that_was_asked_for_is_taken_and_every_way_has_its_line() {
        let decision = decide(&facts(Some(1.0)), Some(Way::Disk));
        assert_eq!(decision.way, Way::Disk);
        assert_eq!(decision.rows[0].state, State::Chosen);
        assert!(decision.rows[0].why.contains("--route"));
        assert_eq!(decision.rows.iter().filter(|r| r.state == State::Chosen).count(), 1);
        assert_eq!(decision.rows.len(), 7);
        let peers = decide(&Facts { peers: 1, ..facts(Some(1.0)) }, None);
        assert_eq!(
            peers.rows.iter().filter(|r| r.state == State::Chosen).count(),
            2,
            "a way, and more links for it"
        );
        assert_eq!(peers.rows[0].way, Way::PageCache.label());
    }
}
