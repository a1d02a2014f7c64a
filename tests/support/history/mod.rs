//! Histories of locks, their checker, and a recorder for one process.
//!
//! The checker assumes a hold only from the *return* of a lock call to the *call* of unlock, or to the end of
//! the promised validity. So whatever the scheduler did, each finding means a broken lock.

pub mod checker;
pub mod operations;

use super::now;
use operations::{Doing, Model, Operation};
use parking_lot::Mutex;
use std::fmt;
use std::time::Instant;

/// The holds of one lock, which threads of one process record.
pub struct History {
    origin: Instant,
    operations: Mutex<Vec<Operation>>,
}

/// A recorded hold, until [`History::released`] or [`History::ends`] records its end.
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

    /// Records a grant, after the lock call has returned.
    pub fn acquired(&self, owner: impl fmt::Display, token: Option<u64>) -> Open {
        let time = self.at(now());
        let mut operations = self.operations.lock();
        let hold = operations.len() as u64;
        let made = Operation::new("lock", Model::Mutex, Doing::Acquire, hold, (time, Some(time)));
        operations.push(Operation { owner: owner.to_string(), fence: token, ..made });
        Open(hold)
    }

    /// Records a release, before unlock is called.
    pub fn released(&self, open: Open) {
        self.ends(open, now());
    }

    /// Records that a hold was promised until `end`, and may have ended then by itself.
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

    /// Panics if the checker finds a fault, or if fewer than `at_least` grants were checked.
    #[track_caller]
    pub fn assert_good(&self, at_least: usize) {
        let (grants, found) = (self.grants(), self.findings());
        assert!(grants >= at_least, "{grants} holds are fewer than {at_least}");
        assert!(found.is_empty(), "{} violations in {grants} holds:\n{}", found.len(), found.join("\n"));
    }
}
