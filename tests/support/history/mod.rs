//! Histories of locks, their checker, and a recorder for one process.
//!
//! A test claims a hold only from the *return* of its lock call to the *call* of unlock, or to the end of
//! the promised validity. So each finding means a broken lock, whatever the scheduler did.

pub mod checker;
pub mod operations;

use super::now;
use operations::{Doing, Model, Operation};
use parking_lot::Mutex;
use std::fmt;
use std::time::Instant;

/// The holds of one lock, recorded by the threads of one process.
pub struct History {
    origin: Instant,
    operations: Mutex<Vec<Operation>>,
}

/// A hold that has not ended, for [`History::released`] or [`History::ends`].
#[derive(Debug)]
#[must_use = "a hold that is never ended lasts for ever"]
pub struct Open(u64);

impl History {
    pub fn new() -> History {
        History { origin: now(), operations: Mutex::default() }
    }

    fn at(&self, time: Instant) -> u64 {
        u64::try_from(time.saturating_duration_since(self.origin).as_nanos()).unwrap()
    }

    /// Records a grant. Call this after the lock call has returned.
    pub fn acquired(&self, owner: impl fmt::Display, token: Option<u64>) -> Open {
        let time = self.at(now());
        let mut operations = self.operations.lock();
        let hold = operations.len() as u64;
        let made = Operation::new("lock", Model::Mutex, Doing::Acquire, hold, (time, Some(time)));
        operations.push(Operation { owner: owner.to_string(), fence: token, ..made });
        Open(hold)
    }

    /// Records a release. Call this before the unlock call.
    pub fn released(&self, open: Open) {
        self.ends(open, now());
    }

    /// Records the end of a hold that may have ended by itself: it was promised until `end`.
    pub fn ends(&self, open: Open, end: Instant) {
        let time = (self.at(end), None);
        self.operations.lock().push(Operation::new("lock", Model::Mutex, Doing::End, open.0, time));
    }

    pub fn grants(&self) -> usize {
        self.operations.lock().iter().filter(|operation| operation.f == Doing::Acquire).count()
    }

    pub fn findings(&self) -> Vec<String> {
        checker::check(&self.operations.lock()).into_values().flatten().collect()
    }

    /// Panics with all faults, and also below `at_least` holds, since few holds prove nothing.
    #[track_caller]
    pub fn assert_good(&self, at_least: usize) {
        let (grants, found) = (self.grants(), self.findings());
        assert!(grants >= at_least, "{grants} holds are fewer than {at_least}");
        assert!(found.is_empty(), "{} violations in {grants} holds:\n{}", found.len(), found.join("\n"));
    }
}
