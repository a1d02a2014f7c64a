//! The counts of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Waits are counted in steps of 2 %: step n holds the waits from 1.02ⁿ to 1.02ⁿ⁺¹ ns.
const STEP: f64 = 1.02;

/// One thread's counts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cycles whose lock was acquired within the measured time.
    pub cycles: u64,
    /// Locks acquired since `go`, including the last one, which may come after the measured time.
    pub acquired: u64,
    /// Exclusive locks acquired since the driver's start, including those of the warm-up.
    pub entered: u64,
    pub waits: Waits,
    pub events: Vec<[u64; 3]>,
    pub errors: u64,
    pub error: Option<String>,
}

impl Tally {
    /// Counts an error; returns `false` after too many errors.
    pub fn failed(&mut self, error: impl std::fmt::Display) -> bool {
        self.errors += 1;
        self.error.get_or_insert_with(|| error.to_string());
        self.errors < 100
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    steps: BTreeMap<u32, u64>,
    max_ns: u64,
}

impl Waits {
    pub fn record(&mut self, ns: u64) {
        let step = (ns.max(1) as f64).ln() / STEP.ln();
        *self.steps.entry(step as u32).or_default() += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub fn merge(&mut self, other: &Waits) {
        for (step, count) in &other.steps {
            *self.steps.entry(*step).or_default() += count;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// The wait that this share of all waits does not exceed; `None` if nothing waited.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let all: u64 = self.steps.values().sum();
        let mut left = (all as f64 * share).ceil().max(1.0) as u64;
        for (step, count) in &self.steps {
            if *count >= left {
                let middle = STEP.powf(f64::from(*step) + 0.5);
                return Some(middle.min(self.max_ns as f64) / 1e3);
            }
            left -= count;
        }
        None
    }
}

/// A driver's answer. A driver may leave out fields that have no meaning for its kind of load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    pub version: String,
    pub seconds: f64,
    /// Cycles within the measured time, by thread.
    pub cycles: Vec<u64>,
    pub acquired: u64,
    pub entered: u64,
    /// Updates under the lock that were lost because two threads of this process held it at once.
    pub violations: u64,
    pub errors: u64,
    pub error: Option<String>,
    pub waits: Waits,
    /// CPU seconds of the process since `go`; in `held` since it holds all locks.
    pub cpu_s: f64,
    /// `handoff`: when the thread began to wait, acquired, and began to unlock, CLOCK_MONOTONIC in ns.
    pub events: Vec<[u64; 3]>,
    /// `held`: holds that were lost by the end, or whose check or release failed.
    pub lost: Option<u64>,
    /// `held`: how long it took to acquire all locks.
    pub fill_s: Option<f64>,
    /// `holder`: when the thread began to unlock; `waiters`, `crowd`: when the last thread had unlocked.
    /// CLOCK_MONOTONIC in ns.
    pub at_ns: Option<u64>,
}

impl Outcome {
    pub fn of(tallies: Vec<Tally>) -> Outcome {
        let mut outcome = Outcome::default();
        for tally in tallies {
            outcome.cycles.push(tally.cycles);
            outcome.acquired += tally.acquired;
            outcome.entered += tally.entered;
            outcome.errors += tally.errors;
            outcome.error = outcome.error.or(tally.error);
            outcome.waits.merge(&tally.waits);
            outcome.events.extend(tally.events);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::Waits;

    #[test]
    fn quantiles_are_right_within_two_percent() {
        let mut waits = Waits::default();
        for us in 1..=1000 {
            waits.record(us * 1000);
        }
        for (share, right) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = waits.quantile_us(share).unwrap();
            assert!((found / right - 1.0).abs() < 0.02, "{share}: {found}");
        }
        assert_eq!(waits.max_us(), 1000.0);
    }

    #[test]
    fn without_waits_there_is_no_quantile() {
        assert_eq!(Waits::default().quantile_us(0.5), None);
    }
}
