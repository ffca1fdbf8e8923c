//! A median and how sure it is.

use serde_json::{Value, json};

/// The median of some values and the interval in which the true one lies in 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Median {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Takes values that are not NaN, at least one. The interval is of order statistics and so takes no distribution for
/// granted; under six values there is none of 95 %, and all of them are it.
pub fn median(values: impl Iterator<Item = f64>) -> Median {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let value = f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]);
    let skip = outside(n);
    Median { value, low: sorted[skip], high: sorted[n - 1 - skip] }
}

/// How many values at each end are outside of the interval: the largest k with P(Binomial(n, 1/2) < k) <= 0.025.
fn outside(n: usize) -> usize {
    let (mut term, mut sum) = (0.5f64.powi(n as i32), 0.0);
    for k in 0..n {
        sum += term;
        if sum > 0.025 {
            return k.saturating_sub(1);
        }
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    0
}

impl Median {
    pub fn show(&self, digits: usize) -> String {
        format!("{:.digits$} [{:.digits$}, {:.digits$}]", self.value, self.low, self.high)
    }

    pub fn json(&self) -> Value {
        json!({"median": self.value, "low": self.low, "high": self.high})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of the usual tables: for 20 values the 6th and the 15th, for 6 the ends.
    #[test]
    fn the_interval_is_the_one_of_the_tables() {
        let m = median((1..=20).rev().map(f64::from));
        assert_eq!(m, Median { value: 10.5, low: 6.0, high: 15.0 });
        let m = median((1..=6).map(f64::from));
        assert_eq!((m.low, m.high), (1.0, 6.0));
    }

    #[test]
    fn few_values_are_their_own_interval() {
        assert_eq!(median([2.0].into_iter()), Median { value: 2.0, low: 2.0, high: 2.0 });
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Median { value: 2.0, low: 1.0, high: 3.0 });
    }
}
