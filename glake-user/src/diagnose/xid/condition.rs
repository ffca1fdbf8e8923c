//! The state of a GPU's memory around an event, as NVML told it: what a code alone cannot say.

use crate::clock::Stamp;
use crate::events::nvml::GpuHealth;
use crate::units::duration_ns;
use serde::{Deserialize, Serialize};

/// Corrected errors are part of life; so many are a history.
const MANY_CORRECTED: u64 = 1_000;

/// What was read last. `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// When NVML was read.
    pub read_at: Stamp,
    /// ECC errors over the GPU's life.
    pub ecc_corrected: Option<u64>,
    /// The same, uncorrected.
    pub ecc_uncorrected: Option<u64>,
    /// Rows replaced because of corrected errors.
    pub rows_correctable: Option<u32>,
    /// Rows replaced because of uncorrected errors.
    pub rows_uncorrectable: Option<u32>,
    /// A remapping waits for a reset.
    pub remap_pending: Option<bool>,
    /// A remapping failed.
    pub remap_failure: Option<bool>,
    /// Pages taken out of use, on GPUs that do that.
    pub retired_pages: Option<u32>,
    /// NVML calls the GPU lost.
    pub lost: bool,
}

impl Condition {
    /// Of one GPU.
    pub fn of(gpu: &GpuHealth, read_at: Stamp) -> Condition {
        let (rows, pages) = (gpu.remapped_rows, gpu.retired_pages);
        Condition {
            read_at,
            ecc_corrected: gpu.ecc_aggregate.corrected,
            ecc_uncorrected: gpu.ecc_aggregate.uncorrected,
            rows_correctable: rows.map(|r| r.correctable),
            rows_uncorrectable: rows.map(|r| r.uncorrectable),
            remap_pending: rows.map(|r| r.pending),
            remap_failure: rows.map(|r| r.failure),
            retired_pages: pages
                .multiple_single_bit
                .zip(pages.double_bit)
                .map(|(single, double)| single.saturating_add(double)),
            lost: gpu.lost,
        }
    }

    /// All rows that were replaced.
    pub fn rows(&self) -> Option<u32> {
        Some(self.rows_correctable?.saturating_add(self.rows_uncorrectable?))
    }

    /// What of it makes a claim against software doubtful (case E17).
    pub fn history(&self) -> Option<String> {
        let many = self.ecc_corrected.filter(|n| *n >= MANY_CORRECTED);
        many.map(|n| format!("{} corrected ECC errors over its life", grouped(n)))
    }

    /// In one line, against what it was when the event began.
    pub fn line(&self, before: Option<&Condition>, at: Stamp) -> String {
        let mut parts = Vec::new();
        if self.lost {
            parts.push("NVML calls it lost".to_owned());
        }
        if let Some((corrected, uncorrected)) = self.ecc_corrected.zip(self.ecc_uncorrected) {
            let (corrected, uncorrected) = (grouped(corrected), grouped(uncorrected));
            parts.push(format!("ECC errors over its life {corrected} corrected, {uncorrected} uncorrected"));
        }
        if let Some(rows) = self.rows() {
            let was = before.and_then(Condition::rows).filter(|was| *was != rows);
            let was = was.map_or(String::new(), |was| format!("{was} before it; "));
            let uncorrectable = self.rows_uncorrectable.unwrap_or(0);
            let pending = if self.remap_pending == Some(true) { ", one waits for a reset" } else { "" };
            let failed = if self.remap_failure == Some(true) { ", REMAPPING FAILED" } else { "" };
            parts.push(format!(
                "rows remapped {rows} ({was}{uncorrectable} for uncorrectable errors){pending}{failed}"
            ));
        }
        parts.extend(self.retired_pages.map(|pages| format!("pages retired {pages}")));
        let away = self.read_at.monotonic_ns.abs_diff(at.monotonic_ns);
        let side = if self.read_at.monotonic_ns > at.monotonic_ns { "after" } else { "before" };
        format!("{}    from: NVML, read {} {side} it", parts.join("; "), duration_ns(away))
    }

    /// Whether it says anything at all.
    pub fn is_empty(&self) -> bool {
        Condition { read_at: Stamp::default(), ..self.clone() } == Condition::default()
    }
}

/// `236,795`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::nvml::{Errors, RemappedRows};

    fn at(s: u64) -> Stamp {
        Stamp { monotonic_ns: s * 1_000_000_000, realtime_ns: 0 }
    }

    #[test]
    fn the_line_tells_what_changed_and_how_old_it_is() {
        let rows = |n, failure| RemappedRows { correctable: 1, uncorrectable: n, pending: false, failure };
        let gpu = |n, failure| GpuHealth {
            remapped_rows: Some(rows(n, failure)),
            ecc_aggregate: Errors { corrected: Some(236_795), uncorrected: Some(2) },
            ..GpuHealth::default()
        };
        let (before, after) = (Condition::of(&gpu(10, false), at(10)), Condition::of(&gpu(11, true), at(45)));
        let line = after.line(Some(&before), at(40));
        assert_eq!(
            line,
            "ECC errors over its life 236,795 corrected, 2 uncorrected; rows remapped 12 (11 before it; 11 for \
             uncorrectable errors), REMAPPING FAILED    from: NVML, read 5.00 s after it"
        );
    }

    #[test]
    fn a_gpu_that_tells_nothing_has_no_condition() {
        assert!(Condition::of(&GpuHealth::default(), at(9)).is_empty());
        assert!(!Condition::of(&GpuHealth { lost: true, ..GpuHealth::default() }, at(9)).is_empty());
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let all: Vec<String> = [0, 999, 1_000, 236_795, 1_000_000].into_iter().map(grouped).collect();
        assert_eq!(all, ["0", "999", "1,000", "236,795", "1,000,000"]);
    }
}
