//! The goals of the allocator, and whether this run met them.

use anyhow::{Result, anyhow};
use glake_tests::steps;

use super::hot::Speed;
use super::limits::Tight;
use super::policy::Row;

/// Below this peak a share says little: then the bytes that are not used count.
const SMALL_PEAK: u64 = 4 << 30;
const SMALL_WASTE: u64 = 64 << 20;

/// One line per goal.
#[derive(Default)]
pub(crate) struct Goals(Vec<(String, bool, String)>);

impl Goals {
    fn judge(&mut self, goal: &str, met: bool, found: String) {
        self.0.push((goal.to_owned(), met, found));
    }

    /// Both training runs, at every run-ahead and scale.
    pub(crate) fn of_runs(&mut self, rows: &[Row]) {
        let (recorded, scaled): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.scale == 1.0);
        for (what, rows, goal) in [("as recorded", recorded, 98.5), ("at other sizes", scaled, 98.0)] {
            let (worst, reach) = count(&rows, |row| ratio(row) * 100.0, |percent| percent >= goal, f64::min);
            let goal = format!("allocated/reserved at least {goal} %, {what}");
            self.judge(
                &goal,
                reach == rows.len(),
                format!("worst {worst:.2} %, {reach} of {} runs", rows.len()),
            );
        }
        let all: Vec<&Row> = rows.iter().collect();
        let late = |row: &Row| row.outcome.late_driver_share().unwrap_or(f64::NAN) * 100.0;
        let stall = |row: &Row| row.outcome.largest_stall_ns as f64 / 1e6;
        let warm = |row: &Row| row.outcome.warm_up_foreground_ns as f64 / row.expandable_ns as f64;
        self.most(&all, "late driver time under 0.1 %", 0.1, " %", late);
        self.most(&all, "longest stall under 5 ms", 5.0, " ms", stall);
        self.most(&all, "warm-up at most twice that of expandable segments", 2.0, " times", warm);
    }

    fn most(&mut self, rows: &[&Row], goal: &str, most: f64, unit: &str, of: impl Fn(&Row) -> f64) {
        let (worst, reach) = count(rows, of, |value| value < most, f64::max);
        self.judge(
            goal,
            reach == rows.len(),
            format!("worst {worst:.3}{unit}, {reach} of {} runs", rows.len()),
        );
    }

    /// Snapshots of users.
    pub(crate) fn of_snapshots(&mut self, rows: &[Row]) {
        let good = |row: &&Row| {
            let out = &row.outcome;
            let waste = out.peak_reserved.saturating_sub(out.peak_requested);
            if out.peak_requested < SMALL_PEAK { waste <= SMALL_WASTE } else { ratio(row) >= 0.98 }
        };
        let reach = rows.iter().filter(good).count();
        let goal = "users' snapshots: 98 %, or 64 MiB where the peak is below 4 GiB";
        self.judge(goal, reach == rows.len(), format!("{reach} of {}", rows.len()));
    }

    /// Runs under limits.
    pub(crate) fn of_limits(&mut self, tight: &Tight) {
        let found = format!("at {} limits; at {} only they finish", tight.only_glake, tight.only_expandable);
        self.judge("finishes where expandable segments do not", tight.only_glake > 0, found);
    }

    /// A step that repeats.
    pub(crate) fn of_steps(&mut self) -> Result<()> {
        let calls = steps::calls_by_round(8, steps::training).map_err(|e| anyhow!(e.chain()))?;
        println!("{calls:?}");
        let met = calls.iter().skip(3).all(|calls| *calls == 0);
        self.judge("a repeating step needs no driver call after the third", met, format!("{calls:?}"));
        Ok(())
    }

    /// The time of a pair on one thread.
    pub(crate) fn of_hot_path(&mut self, speeds: &[Speed]) {
        if let Some(one) = speeds.iter().find(|speed| speed.threads == 1) {
            let met = one.median_ns < 150.0 && one.p99_ns < 1000.0;
            let found = format!("{:.0} ns, {:.0} ns on this host", one.median_ns, one.p99_ns);
            self.judge("allocate + free: median under 150 ns, p99 under 1 us", met, found);
        }
    }

    pub(crate) fn print(&self) {
        println!("\nGoals");
        for (goal, met, found) in &self.0 {
            println!("{:<8} {goal:<66} {found}", if *met { "met" } else { "MISSED" });
        }
    }
}

fn ratio(row: &Row) -> f64 {
    row.outcome.allocated_to_reserved_ratio().unwrap_or(f64::NAN)
}

/// The worst value, and how many are good.
fn count(
    rows: &[&Row],
    of: impl Fn(&Row) -> f64,
    good: impl Fn(f64) -> bool,
    worse: fn(f64, f64) -> f64,
) -> (f64, usize) {
    let values: Vec<f64> = rows.iter().map(|row| of(row)).collect();
    let worst = values.iter().copied().reduce(worse).unwrap_or(f64::NAN);
    (worst, values.into_iter().filter(|value| good(*value)).count())
}
