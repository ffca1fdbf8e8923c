//! Suites that every implementation of a boundary must pass: the GPU, and the heap on it. They run in the tests on the
//! host GPU, and on a real one from `bench_alloc conformance --device cuda:0`.

pub mod device;
pub mod heap;

use anyhow::Result;

/// One rule: what it says, and the check.
pub struct Rule<'a, T: ?Sized> {
    /// A statement about behaviour.
    pub says: &'static str,
    /// Fails where it does not hold.
    pub check: &'a dyn Fn(&T) -> Result<()>,
}

/// Checks all rules; the statements that do not hold, with the reason.
pub fn broken<T: ?Sized>(rules: &[Rule<'_, T>], on: &T) -> Vec<String> {
    let one = |rule: &Rule<'_, T>| (rule.check)(on).err().map(|e| format!("{}: {e:#}", rule.says));
    rules.iter().filter_map(one).collect()
}
