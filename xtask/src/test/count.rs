//! Counting what Rust's test harness prints.
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::cmd;

/// How many tests ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that ran and held.
    pub passed: u64,
    /// Those that ran and did not, and whatever kept tests from running.
    pub failed: u64,
    /// Those that could not run here; each says why.
    pub skipped: u64,
}

impl Counts {
    /// One test that held, or did not.
    pub fn one(passed: bool) -> Self {
        Self { passed: passed.into(), failed: (!passed).into(), skipped: 0 }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The form in which CI reads a run's result.
impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs `cargo test …` with `--show-output` and counts. Failures are printed as they come, the rest is left out.
pub fn run(cargo_test: &mut Command) -> Result<Counts> {
    cargo_test.args(["--", "--show-output"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let shown = cmd::shown(cargo_test);
    let mut child = cargo_test.spawn().with_context(|| shown.clone())?;
    let mut harness = Harness::default();
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        if let Some(line) = harness.line(&line?) {
            eprintln!("{line}");
        }
    }
    let status = child.wait()?;
    if !status.success() && harness.counts.failed == 0 {
        eprintln!("{shown}: {status}");
        harness.counts.failed += 1;
    }
    Ok(harness.counts)
}

/// Follows the harness line by line.
///
/// The harness knows no skipping at run time: a test that cannot run here prints `skipped: WHY` and returns, and is
/// counted by that line.
#[derive(Debug, Default)]
struct Harness {
    counts: Counts,
    part: Part,
    /// The test whose output is being shown.
    test: String,
    /// Tests of this binary that said that they were skipped; the harness counts them as passed.
    skipped: BTreeSet<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Tests,
    Successes,
    Failures,
}

impl Harness {
    /// Takes a line; answers what a person should see of it.
    fn line(&mut self, line: &str) -> Option<String> {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.part = Part::Tests;
            let mut counts = result_counts(result);
            let skipped = std::mem::take(&mut self.skipped).len() as u64;
            counts.passed = counts.passed.saturating_sub(skipped);
            counts.skipped += skipped;
            self.counts += counts;
            return None;
        }
        match (&self.part, line) {
            (Part::Tests, "successes:") => self.part = Part::Successes,
            (Part::Tests | Part::Successes, "failures:") => self.part = Part::Failures,
            (Part::Failures, _) => return Some(line.to_owned()),
            (Part::Successes, _) => return self.success(line),
            (Part::Tests, _) if line.contains(" ... FAILED") => return Some(line.to_owned()),
            (Part::Tests, _) => return ignored(line),
        }
        None
    }

    fn success(&mut self, line: &str) -> Option<String> {
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----")) {
            name.clone_into(&mut self.test);
        }
        let why = line.strip_prefix("skipped: ")?;
        self.skipped.insert(self.test.clone());
        Some(format!("skipped {}: {why}", self.test))
    }
}

/// `test NAME ... ignored, WHY`.
fn ignored(line: &str) -> Option<String> {
    let (name, why) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some(format!("skipped {name}: {}", why.strip_prefix(", ").unwrap_or("no reason given")))
}

/// `ok. 34 passed; 0 failed; 1 ignored; 0 measured; …`
fn result_counts(result: &str) -> Counts {
    let number = |what: &str| {
        let mut words = result.split([';', '.']).map(str::trim);
        words.find_map(|w| w.strip_suffix(what)?.trim().parse().ok()).unwrap_or(0)
    };
    Counts { passed: number(" passed"), failed: number(" failed"), skipped: number(" ignored") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Counts, Vec<String>) {
        let mut harness = Harness::default();
        let shown = text.lines().filter_map(|l| harness.line(l)).collect();
        (harness.counts, shown)
    }

    #[test]
    fn results_of_several_binaries_are_summed() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... ok\n\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                    running 1 test\ntest c ... ok\n\
                    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.1s\n";
        assert_eq!(read(text), (Counts { passed: 3, failed: 0, skipped: 0 }, vec![]));
    }

    #[test]
    fn a_test_that_says_it_was_skipped_counts_as_skipped_with_its_reason() {
        let text = "test a ... ok\ntest b ... ok\n\nsuccesses:\n\n---- a stdout ----\nskipped: no tracefs\nskipped: really\n\n\
                    ---- b stdout ----\nnot skipped: fine\n\nsuccesses:\n    a\n    b\n\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (counts, shown) = read(text);
        assert_eq!(counts, Counts { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(shown[0], "skipped a: no tracefs");
    }

    #[test]
    fn an_ignored_test_is_shown_with_its_reason() {
        let text =
            "test gpu ... ignored, needs a GPU\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured\n";
        let (counts, shown) = read(text);
        assert_eq!(counts, Counts { passed: 0, failed: 0, skipped: 1 });
        assert_eq!(shown, ["skipped gpu: needs a GPU"]);
    }

    #[test]
    fn a_failure_is_counted_and_shown_with_its_output() {
        let text = "test a ... FAILED\n\nsuccesses:\n\nsuccesses:\n\nfailures:\n\n---- a stdout ----\nleft: 1\n\nfailures:\n    a\n\n\
                    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n";
        let (counts, shown) = read(text);
        assert_eq!(counts, Counts { passed: 0, failed: 1, skipped: 0 });
        assert!(shown.contains(&"left: 1".to_owned()) && shown.contains(&"test a ... FAILED".to_owned()));
    }

    #[test]
    fn a_run_that_never_reached_its_tests_has_failed() {
        let counts = run(Command::new("sh").args(["-c", "exit 101"])).unwrap();
        assert_eq!(counts, Counts { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn the_summary_has_the_form_that_ci_reads() {
        let counts = Counts { passed: 3, failed: 1, skipped: 2 };
        assert_eq!(counts.to_string(), "3 passed, 1 failed, 2 skipped");
    }
}
