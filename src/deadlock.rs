//! Threads that wait for each other in a cycle, as values and as text.

use std::fmt;
use std::time::Duration;

use crate::inspect::{Location, own, span};

/// Threads that wait for each other in a cycle: each waits for a lock that the next thread holds, and the
/// last for a lock that the first holds. From [`LockClient::deadlocks`](crate::LockClient::deadlocks) and
/// [`Event::Deadlock`](crate::Event::Deadlock). The text names the threads, their holds and their waits.
///
/// # Examples
/// ```
/// for deadlock in leasehold::LockClient::in_memory().deadlocks()? {
///     println!("{deadlock}");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Deadlock {
    /// The threads in order: each waits for a lock that the next one holds, the last for a lock of the first.
    pub steps: Vec<DeadlockStep>,
    /// Whether only threads of the cycle can release its locks. If `false`, an owned guard or `leasehold run`
    /// holds one of them, which a thread outside the cycle may release: the cycle may be no deadlock.
    pub is_certain: bool,
}

/// A thread of a [`Deadlock`].
///
/// # Examples
/// ```
/// for step in leasehold::LockClient::in_memory().deadlocks()?.iter().flat_map(|deadlock| &deadlock.steps) {
///     println!("{} holds {} and waits for {}", step.location, step.holds, step.waits_for);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeadlockStep {
    /// The owner under which the thread waits, `client:number`.
    pub owner: String,
    /// The id of the wait, unique within the client.
    pub wait_id: u64,
    /// The location of the waiting thread; empty if not known.
    pub location: Location,
    /// Whether the thread belongs to the client that found the deadlock.
    pub by_this_client: bool,
    /// The lock that the thread holds, and for which the thread of the step before waits.
    pub holds: String,
    /// The lock for which the thread waits.
    pub waits_for: String,
    /// The kind of the lock for which the thread waits, as [`Event`](crate::Event) names kinds.
    pub kind: String,
    /// How long the thread has waited.
    pub waiting_for: Duration,
    /// Whether this wait is the shortest of the cycle, not counting conditions' waits that re-acquire a lock.
    /// A client that [breaks deadlocks](crate::ClientBuilder::break_deadlocks) ends this wait.
    pub is_youngest: bool,
}

impl fmt::Display for DeadlockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.owner, own(self.by_this_client))?;
        if !self.location.host.is_empty() {
            write!(f, " {}", self.location)?;
        }
        let waited = span(self.waiting_for);
        write!(f, " holds {:?} and has waited {waited} for {:?}", self.holds, self.waits_for)
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.steps.len();
        match (self.is_certain, count) {
            (true, 1) => f.write_str("a thread waits for itself")?,
            (false, 1) => f.write_str("a thread may wait for itself")?,
            (true, _) => write!(f, "{count} threads wait for each other")?,
            (false, _) => write!(f, "{count} threads may wait for each other")?,
        }
        self.steps.iter().try_for_each(|step| write!(f, "; {step}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_deadlock_names_each_thread_and_lock() {
        let step = |owner: &str, holds: &str, waits_for: &str| DeadlockStep {
            owner: owner.to_owned(),
            wait_id: 7,
            location: Location::new("ada".into(), 12, "main".into()),
            by_this_client: owner == "c:1",
            holds: holds.to_owned(),
            waits_for: waits_for.to_owned(),
            kind: "lock".to_owned(),
            waiting_for: Duration::from_millis(3_240),
            is_youngest: false,
        };
        let mut deadlock =
            Deadlock { steps: vec![step("c:1", "a", "b"), step("d:2", "b", "a")], is_certain: true };
        let expected = "2 threads wait for each other; c:1 (this client) on ada in process 12, thread main holds \"a\" and has \
                        waited 3.2 s for \"b\"; d:2 on ada in process 12, thread main holds \"b\" and has waited 3.2 s for \"a\"";
        assert_eq!(deadlock.to_string(), expected);
        deadlock.is_certain = false;
        assert!(deadlock.to_string().starts_with("2 threads may wait for each other; c:1"), "{deadlock}");
    }
}
