//! A waiting thread, as its lock and those who look for deadlocks know it.

use std::sync::Arc;

use crate::deadlock::Deadlock;
use crate::engine::handoff::PendingHandoff;
use crate::engine::lock::Waits;
use crate::ident::ThreadMarker;
use crate::seam::{Claim, Kind};
use crate::sync::{OnceLock, Waker};
use crate::time::Moment;

#[derive(Debug, Default)]
pub(crate) struct LocalWaiter {
    pub(crate) wait: Arc<Wait>,
    sleeper: Option<Sleeper>,
    pub(crate) offer: Option<Claim>,
    pub(crate) handed: Option<PendingHandoff>,
}

#[derive(Debug, Default)]
pub(crate) struct Wait {
    /// Set before the thread sleeps; a head that never sleeps needs none.
    waker: OnceLock<Waker>,
    published: OnceLock<PublishedWait>,
    ends_for: OnceLock<Arc<Deadlock>>,
}

/// A wait's name for other clients: see [`Wait::publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishedWait {
    pub(crate) id: u64,
    /// Since when it waits by this machine's wall clock, in milliseconds. Compared with other machines' to
    /// choose one of several waits; any order will do that is the same for all.
    pub(crate) at_ms: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Sleeper {
    pub(crate) number: u64,
    pub(crate) thread: Arc<ThreadMarker>,
    pub(crate) since: Moment,
    pub(crate) kind: Kind,
    /// The wait reacquires a lock that was released for a condition.
    pub(crate) takes_again: bool,
    pub(crate) writers_first: bool,
}

impl Waits for LocalWaiter {
    fn wake(&mut self) {
        self.wait.wake();
    }
}

impl LocalWaiter {
    /// The waiter is about to sleep; whether for the first time under its number.
    pub(crate) fn note_sleeper(&mut self, sleeper: Sleeper) -> bool {
        let number = sleeper.number;
        let before = self.sleeper.replace(sleeper);
        before.is_none_or(|before| before.number != number)
    }

    pub(crate) fn sleeper(&self) -> Option<&Sleeper> {
        self.sleeper.as_ref()
    }
}

impl Wait {
    /// Sets the waker. Afterwards the thread must check for changes: an earlier event found nobody to wake.
    /// Pairs with `Machine::sleep`: events change a ticket first and wake second.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// The wait's name for other clients, made by `make` the first time. Called under the local lock's mutex,
    /// so that a waiter that has left knows whether others know it. Pairs with `Waiting::take_or_give_up`.
    pub(crate) fn publish(&self, make: impl FnOnce() -> PublishedWait) -> PublishedWait {
        *self.published.get_or_init(make)
    }

    pub(crate) fn is_published(&self) -> bool {
        self.published.get().is_some()
    }

    pub(crate) fn end_for(&self, ring: &Arc<Deadlock>) {
        // Sets first, wakes second. Pairs with `Waiting::check_queue`.
        self.ends_for.get_or_init(|| Arc::clone(ring));
        self.wake();
    }

    pub(crate) fn ends_for(&self) -> Option<&Arc<Deadlock>> {
        self.ends_for.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_one_name() {
        let wait = Wait::default();
        assert!(!wait.is_published());
        let names = [1, 2].map(|id| wait.publish(|| PublishedWait { id, at_ms: 0 }).id);
        assert!(wait.is_published());
        assert_eq!(names, [1, 1]);
    }

    #[test]
    fn a_wait_is_new_once_for_each_number() {
        let mut waiter = LocalWaiter::default();
        let sleeper = |number| Sleeper {
            number,
            thread: ThreadMarker::current(),
            since: Moment::from_nanos(0),
            kind: Kind::Mutex,
            takes_again: false,
            writers_first: false,
        };
        assert_eq!(
            [1, 1, 2, 2].map(|number| waiter.note_sleeper(sleeper(number))),
            [true, false, true, false]
        );
    }
}
