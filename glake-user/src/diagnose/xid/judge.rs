//! What to do about a record, given what came before it on this host.

use super::condition::Condition;
use super::record::Record;
use crate::events::xid::catalogue::{self, Action};
use std::collections::BTreeSet;

/// An earlier record, as much as judging needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// Unix time in ns.
    pub at_ns: u64,
    /// Where.
    pub pci: Option<String>,
    /// Which.
    pub code: u32,
    /// Under which workload.
    pub workload: Option<String>,
    /// Rows that had been remapped by then.
    pub rows: Option<u32>,
    /// A remapping had failed by then.
    pub remap_failed: bool,
    /// The place in memory that failed.
    pub memory_site: Option<String>,
}

impl Past {
    /// Of a record.
    pub fn of(record: &Record) -> Past {
        Past {
            at_ns: record.at.realtime_ns,
            pci: record.pci.clone(),
            code: record.code,
            workload: record.who.as_ref().and_then(|w| w.workload.clone().or_else(|| w.name.clone())),
            rows: record.condition.as_ref().and_then(Condition::rows),
            remap_failed: record.condition.as_ref().is_some_and(|c| c.remap_failure == Some(true)),
            memory_site: record.memory_site.clone(),
        }
    }
}

/// What the driver asks for after a reset that helped.
const NOTHING: &str = "nothing";

/// How far back repeats count.
pub const WINDOW_NS: u64 = 30 * 24 * 3600 * 1_000_000_000;
/// So many records of the same code on one device under different jobs are the device's fault.
const REPEATS: usize = 3;

/// The judgement: the action's label and the sentence.
pub fn judge(record: &Record, past: &[Past]) -> (Action, String) {
    let since = record.at.realtime_ns.saturating_sub(WINDOW_NS);
    let recent: Vec<&Past> = past.iter().filter(|p| p.at_ns >= since).collect();
    let (action, mut text) = match record.code {
        _ if record.nvswitch => {
            (Action::CheckNvlink, "follow NVIDIA's NVSwitch procedure for this SXid".to_owned())
        }
        13 | 31 => program_or_device(record, &recent),
        154 if record.recovery_asked() == Some(NOTHING) => {
            (Action::Ignore, "nothing: the driver takes back what it asked for before".to_owned())
        }
        code if catalogue::is_memory(code) => memory(record, &recent),
        code => (catalogue::action(code), catalogue::action(code).sentence().to_owned()),
    };
    if let Some(note) =
        catalogue::look_up(record.code).map(|e| e.note).filter(|n| !n.is_empty() && !record.nvswitch)
    {
        text.push_str(&format!(". {note}"));
    }
    // 154 only tells what the driver now asks for: it belongs to the record's action.
    if record.codes.contains_key(&154)
        && let Some(asked) = record.recovery_asked().filter(|asked| record.code != 154 || *asked != NOTHING)
    {
        text.push_str(&format!(". The driver now asks: {asked}"));
    }
    if record.codes.contains_key(&62) && record.code != 62 {
        text.push_str(". A microcontroller halted too (62): if the reset is refused, power-cycle");
    }
    let other = hardware_before(record, &recent);
    if !other.is_empty() && !catalogue::is_memory(record.code) {
        text.push_str(&format!(
            ". This GPU has a history ({other}): suspect hardware and power before software, and retest on another GPU"
        ));
    }
    (action, text)
}

impl Record {
    /// What a 154 in this record asks for, in words.
    fn recovery_asked(&self) -> Option<&'static str> {
        let fact = self.before.iter().rev().find(|f| f.family == "xid" && f.text.starts_with("Xid 154"));
        let text = fact.map_or(self.message.as_str(), |f| f.text.as_str());
        catalogue::recovery_action(text)
    }
}

/// Cases E09: the same code on one device under different jobs, or under one job on many devices.
fn program_or_device(record: &Record, recent: &[&Past]) -> (Action, String) {
    let me = Past::of(record);
    let same: Vec<&&Past> = recent.iter().filter(|p| p.code == record.code).collect();
    let here: Vec<&&&Past> = same.iter().filter(|p| p.pci == record.pci).collect();
    let jobs: BTreeSet<&Option<String>> =
        here.iter().map(|p| &p.workload).chain([&me.workload]).filter(|w| w.is_some()).collect();
    let places: BTreeSet<&Option<String>> = same
        .iter()
        .filter(|p| me.workload.is_some() && p.workload == me.workload)
        .map(|p| &p.pci)
        .chain([&me.pci])
        .collect();
    if here.len() + 1 >= REPEATS && jobs.len() >= 2 {
        let text = format!(
            "run field diagnostics on this GPU: Xid {} came {} times in 30 days here, under {} different jobs",
            record.code,
            here.len() + 1,
            jobs.len()
        );
        return (Action::ContactSupport, text);
    }
    if places.len() >= 2 {
        let text = format!(
            "check the application: under this job it came on {} GPUs of this host. Restart it",
            places.len()
        );
        return (Action::RestartApp, text);
    }
    let seen = if here.is_empty() {
        "first in 30 days".to_owned()
    } else {
        format!("{} before in 30 days", here.len())
    };
    let text = format!(
        "restart the application (NVIDIA catalogue: RESTART_APP). Not hardware unless it repeats here under other \
         jobs ({seen})"
    );
    (Action::RestartApp, text)
}

/// Case E03: the same memory fails again and again, whatever runs.
fn memory(record: &Record, recent: &[&Past]) -> (Action, String) {
    let before = recent.iter().filter(|p| p.pci == record.pci && catalogue::is_memory(p.code)).count();
    // An explicit action wins over one that a detail code has not got.
    let own = record
        .codes
        .keys()
        .map(|c| catalogue::action(*c))
        .filter(|a| !matches!(a, Action::Unknown | Action::Ignore | Action::SeeOther))
        .max_by_key(|a| a.needs_hands())
        .unwrap_or_else(|| catalogue::action(record.code));
    if let Some((action, text)) = by_condition(record, recent) {
        return (action, text + &same_site(record, recent));
    }
    if before >= 2 {
        let text = format!(
            "drain this GPU and have it replaced: memory errors came {} times in 30 days here, so the memory is \
             degrading. Software is not suspect{}",
            before + 1,
            same_site(record, recent)
        );
        return (Action::ContactSupport, text);
    }
    (own, own.sentence().to_owned())
}

/// One place that fails again is one failing part; nothing is said where a place is not told or they differ.
fn same_site(record: &Record, recent: &[&Past]) -> String {
    let Some(site) = &record.memory_site else { return String::new() };
    let here = recent.iter().filter(|p| p.pci == record.pci && catalogue::is_memory(p.code));
    let told: Vec<&String> = here.filter_map(|p| p.memory_site.as_ref()).collect();
    if told.is_empty() || told.iter().any(|earlier| *earlier != site) {
        return String::new();
    }
    format!(". It is the same place each time: {site}")
}

/// What NVML knows and no code tells: spare rows that ran out (case E07), and remapping that worked and had to go on (case E03).
fn by_condition(record: &Record, recent: &[&Past]) -> Option<(Action, String)> {
    let now = record.condition.as_ref()?;
    let here = || recent.iter().filter(|p| p.pci == record.pci && catalogue::is_memory(p.code));
    let rows = now.rows().map_or(String::new(), |rows| format!(", {rows} rows remapped"));
    if now.remap_failure == Some(true) && here().any(|p| p.remap_failed) {
        let text = format!(
            "drain this GPU and have it replaced: NVML's remap failure flag was set at an earlier event too{rows}. No spare row \
             is left and a reset does not cure that. Software is not suspect"
        );
        return Some((Action::ContactSupport, text));
    }
    if now.remap_failure == Some(true) {
        let text = format!(
            "drain the GPU and reset it, once: NVML's remap failure flag is set{rows}. Have the GPU replaced if the flag stays; \
             where it cannot be reset (a cloud instance), replace the instance"
        );
        return Some((Action::ResetGpu, text));
    }
    let earlier = here().filter_map(|p| p.rows).min()?;
    let rows = now.rows().filter(|rows| *rows > earlier)?;
    let text = format!(
        "drain this GPU, take it out of use and have it replaced: rows remapped rose from {earlier} to {rows} over its memory \
         errors of the last 30 days, so remapping works and does not end it. Software is not suspect"
    );
    Some((Action::ContactSupport, text))
}

/// Case E17: what makes a claim against software doubtful.
fn hardware_before(record: &Record, recent: &[&Past]) -> String {
    let mut counts = std::collections::BTreeMap::<u32, u64>::new();
    for p in recent.iter().filter(|p| p.pci == record.pci) {
        if catalogue::action(p.code).needs_hands() || catalogue::is_memory(p.code) {
            *counts.entry(p.code).or_default() += 1;
        }
    }
    let told = record.condition.as_ref().and_then(Condition::history);
    counts.iter().map(|(code, n)| format!("Xid {code} x{n}")).chain(told).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::diagnose::xid::record::{Seen, Who};

    fn record(code: u32, pci: &str, job: Option<&str>) -> Record {
        Record {
            at: Stamp { monotonic_ns: 0, realtime_ns: WINDOW_NS * 2 },
            pci: Some(pci.into()),
            code,
            codes: [(code, Seen { exact: 1, log: 0 })].into(),
            who: Some(Who { workload: job.map(str::to_owned), ..Who::default() }),
            ..Record::default()
        }
    }

    fn past(code: u32, pci: &str, job: &str) -> Past {
        let at_ns = WINDOW_NS * 2 - 1000;
        Past {
            at_ns,
            pci: Some(pci.into()),
            code,
            workload: Some(job.into()),
            rows: None,
            remap_failed: false,
            memory_site: None,
        }
    }

    /// Case E09.
    #[test]
    fn a_31_is_the_program_s_unless_it_repeats_on_one_gpu_under_different_jobs() {
        let here = "0000:3b:00.0";
        let (action, text) = judge(&record(31, here, Some("a")), &[]);
        assert_eq!(action, Action::RestartApp);
        assert!(text.contains("first in 30 days"), "{text}");

        let same_gpu: Vec<Past> = ["a", "b", "c", "d"].iter().map(|j| past(31, here, j)).collect();
        let (action, text) = judge(&record(31, here, Some("e")), &same_gpu);
        assert_eq!(action, Action::ContactSupport);
        assert!(
            text.contains("field diagnostics") && text.contains("5 times") && text.contains("5 different"),
            "{text}"
        );

        let gpus = ["0000:19:00.0", "0000:4c:00.0", "0000:5d:00.0", "0000:6e:00.0"];
        let same_job: Vec<Past> = gpus.iter().map(|g| past(31, g, "a")).collect();
        let (action, text) = judge(&record(31, here, Some("a")), &same_job);
        assert_eq!(action, Action::RestartApp);
        assert!(text.contains("check the application") && text.contains("5 GPUs"), "{text}");
    }

    #[test]
    fn repeats_longer_ago_than_the_window_do_not_count() {
        let here = "0000:3b:00.0";
        let old: Vec<Past> = ["a", "b", "c"].iter().map(|j| Past { at_ns: 5, ..past(31, here, j) }).collect();
        assert_eq!(judge(&record(31, here, Some("e")), &old).0, Action::RestartApp);
    }

    /// Case E03.
    #[test]
    fn memory_errors_that_come_again_are_the_memory_s() {
        let here = "0000:9c:00.0";
        let before = [past(48, here, "vllm"), past(94, here, "sglang")];
        let (action, text) = judge(&record(48, here, Some("trt")), &before);
        assert_eq!(action, Action::ContactSupport);
        assert!(text.contains("replaced") && text.contains("not suspect"), "{text}");
        assert_eq!(judge(&record(48, here, None), &before[..1]).0, Action::ResetGpu);
    }

    fn told(rows: u32, failure: bool) -> Option<Condition> {
        let condition =
            Condition { rows_correctable: Some(0), rows_uncorrectable: Some(rows), ..Default::default() };
        Some(Condition { remap_failure: Some(failure), ..condition })
    }

    /// Case E03: after a reboot one further row, though each remapping worked.
    #[test]
    fn rows_that_keep_being_remapped_are_the_memory_s_though_each_remapping_worked() {
        let here = "0000:9c:00.0";
        let before = [Past { rows: Some(11), ..past(48, here, "vllm") }];
        let now = Record { condition: told(12, false), ..record(63, here, Some("sglang")) };
        let (action, text) = judge(&now, &before);
        assert_eq!(action, Action::ContactSupport);
        assert!(text.contains("rose from 11 to 12") && text.contains("Software is not suspect"), "{text}");
        let same = Record { condition: told(11, false), ..record(63, here, None) };
        assert_eq!(judge(&same, &before).0, Action::Ignore, "one that worked is no reason to replace");
        let elsewhere = [Past { rows: Some(3), ..past(48, "0000:19:00.0", "vllm") }];
        assert_eq!(judge(&now, &elsewhere).0, Action::Ignore, "another GPU's rows are not this one's");
    }

    /// Case E07.
    #[test]
    fn a_failed_remap_says_reset_first_and_replace_if_the_flag_stays() {
        let (action, text) = judge(&record(64, "0000:19:00.0", None), &[]);
        assert_eq!(action, Action::ResetGpu);
        assert!(
            text.contains("reset it") && text.contains("replace the GPU if the failure flag stays"),
            "{text}"
        );
    }

    /// Case E07: uncorrectable 8, failure flag set.
    #[test]
    fn a_set_failure_flag_is_reset_once_and_then_replaced() {
        let here = "0000:19:00.0";
        let now = Record { condition: told(8, true), ..record(64, here, None) };
        let (action, text) = judge(&now, &[]);
        assert_eq!(action, Action::ResetGpu);
        assert!(text.contains("8 rows remapped") && text.contains("replaced if the flag stays"), "{text}");
        assert!(text.contains("cloud instance"), "{text}");
        let before = [Past { remap_failed: true, rows: Some(8), ..past(64, here, "x") }];
        assert_eq!(judge(&now, &before).0, Action::ContactSupport);
    }

    /// Case E17: the ECC history of the card.
    #[test]
    fn a_card_with_a_quarter_of_a_million_corrected_errors_is_suspect_before_the_software() {
        let here = "0000:19:00.0";
        let condition = Condition { ecc_corrected: Some(236_795), ..Condition::default() };
        let (_, text) = judge(&Record { condition: Some(condition), ..record(62, here, None) }, &[]);
        assert!(
            text.contains("236,795 corrected ECC errors") && text.contains("power before software"),
            "{text}"
        );
        let few = Condition { ecc_corrected: Some(12), ..Condition::default() };
        let (_, text) = judge(&Record { condition: Some(few), ..record(62, here, None) }, &[]);
        assert!(!text.contains("history"), "a dozen is part of life: {text}");
    }

    /// Case E17.
    #[test]
    fn a_gpu_s_own_history_is_told_before_software_is_blamed() {
        let here = "0000:19:00.0";
        let before: Vec<Past> = (0..6).map(|_| past(79, here, "x")).collect();
        let (_, text) = judge(&record(62, here, None), &before);
        assert!(text.contains("Xid 79 x6") && text.contains("retest on another GPU"), "{text}");
    }

    /// Case E13.
    #[test]
    fn a_lost_gpu_is_not_explained_by_guesses() {
        let (action, text) = judge(&record(79, "0000:01:00.0", None), &[]);
        assert_eq!(action, Action::RestartNode);
        assert!(!text.contains("overheat") && text.contains("does not tell why"), "{text}");
    }
}
