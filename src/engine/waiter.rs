//! A waiting thread, as seen by its lock and by the search for deadlocks; and the hand-off to it.
//!
//! In a hand-off the releaser sends the request, the waiter reads the answer, and the releaser gets the
//! outcome from the waiter. So the waiter wakes up while the request is on its way.

use std::sync::Arc;
use std::time::Duration;

use crate::config::debug_fields;
use crate::deadlock::Deadlock;
use crate::directory::WaitRecord;
use crate::engine::lock::Waits;
use crate::error::Error;
use crate::ident::ThreadMarker;
use crate::seam::{Answer, Claim, Failure, Handoff, Kind, Pending, Release};
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::{Clock, Moment};

#[derive(Debug, Default)]
pub(crate) struct LocalWaiter {
    pub(crate) wait: Arc<Wait>,
    pub(crate) sleeper: Option<Sleeper>,
    // `offer` and `handed` are boxed to keep a waiter small: each acquire moves one, and few ever sleep.
    pub(crate) offer: Option<Box<Claim>>,
    pub(crate) handed: Option<Box<PendingHandoff>>,
}

#[derive(Debug, Default)]
pub(crate) struct Wait {
    /// Set before the thread first sleeps.
    waker: OnceLock<Waker>,
    /// Set once the wait has an id for the client's entry.
    pub(crate) published: OnceLock<WaitRecord>,
    pub(crate) ends_for: OnceLock<Arc<Deadlock>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Sleeper {
    pub(crate) number: u64,
    pub(crate) thread: Arc<ThreadMarker>,
    pub(crate) since: Moment,
    pub(crate) kind: Kind,
    pub(crate) takes_again: bool,
    pub(crate) writers_first: bool,
}

impl Waits for LocalWaiter {
    fn wake(&mut self) {
        self.wait.wake();
    }
}

impl LocalWaiter {
    /// Notes that the waiter is about to sleep. `true`: for the first time under this owner number.
    pub(crate) fn note_sleeper(&mut self, sleeper: Sleeper) -> bool {
        let number = sleeper.number;
        let before = self.sleeper.replace(sleeper);
        before.is_none_or(|before| before.number != number)
    }
}

impl Wait {
    /// Sets the waker. The thread must then check for changes, because earlier events could not wake it.
    /// Pairs with `Ticket::tell`, which notes the change before it wakes.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// The record of the wait in the client's entry; the first call makes it. Called under the local lock's
    /// mutex, so a waiter that has left the queue knows whether it was published. Pairs with
    /// `Waiting::take_or_give_up`.
    pub(crate) fn publish(&self, make: impl FnOnce() -> WaitRecord) -> WaitRecord {
        self.published.get_or_init(make).clone()
    }

    pub(crate) fn end_for(&self, ring: &Arc<Deadlock>) {
        // The reason is set first, so that the woken thread finds it in `Waiting::step`.
        self.ends_for.get_or_init(|| Arc::clone(ring));
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

pub(crate) struct PendingHandoff {
    pub(crate) pending: Box<dyn Pending>,
    /// When the request was sent, and the new hold's window begins.
    pub(crate) sent: Moment,
    pub(crate) to: Claim,
    pub(crate) releaser: Releaser,
}

/// Passes the outcome of a hand-off to the releaser, once. `StillHeld`: the waiter got the lock, which was
/// never free for other processes.
pub(crate) struct Releaser {
    settle: Option<Box<dyn FnOnce(Answer<Release>) + Send>>,
    /// Whether the releaser waits for the outcome, and releases the lock itself after a refused hand-off.
    pub(crate) waits: bool,
}

impl PendingHandoff {
    pub(crate) fn receive(self) -> Answer<Handoff> {
        let PendingHandoff { pending, mut releaser, .. } = self;
        let answer = pending.wait();
        let outcome = answer.as_ref().map(|handoff| match handoff {
            Handoff::Granted { .. } => Release::StillHeld,
            Handoff::Lost => Release::NotHeld { holder: None },
        });
        releaser.settle(outcome.map_err(Failure::copy));
        answer
    }
}

impl Releaser {
    pub(crate) fn new(waits: bool, settle: impl FnOnce(Answer<Release>) + Send + 'static) -> Releaser {
        Releaser { settle: Some(Box::new(settle)), waits }
    }

    fn settle(&mut self, outcome: Answer<Release>) {
        if let Some(settle) = self.settle.take() {
            settle(outcome);
        }
    }
}

impl Drop for Releaser {
    /// Makes the outcome unknown for the releaser if the waiter panicked before it read the answer. If the
    /// store made the waiter the owner, the end of the lease frees the lock.
    fn drop(&mut self) {
        if self.settle.is_some() {
            self.settle(untold());
        }
    }
}

fn untold() -> Answer<Release> {
    let words = "the thread that was handed the lock did not tell what came of it";
    let error = Error::new(crate::ErrorKind::TimedOut, "unlock", words);
    Err(Failure::Unknown(error.with_unknown_outcome()))
}

#[derive(Debug, Clone, Default)]
pub(crate) struct HandoffResult {
    outcome: Arc<Mutex<Option<Answer<Release>>>>,
    waker: Waker,
}

impl HandoffResult {
    /// Returns a `Releaser` that passes the outcome to the thread in [`wait`](Self::wait). If that thread has
    /// given up by then, it has treated the outcome as unknown.
    pub(crate) fn releaser(&self) -> Releaser {
        let HandoffResult { outcome, waker } = self.clone();
        Releaser::new(true, move |ended| {
            *outcome.lock() = Some(ended);
            waker.wake();
        })
    }

    pub(crate) fn wait(&self, limit: Duration) -> Answer<Release> {
        let until = Clock::System.after(limit);
        loop {
            let outcome = self.outcome.lock().take();
            let left = until.since(Clock::System.now());
            if outcome.is_some() || left.is_zero() {
                return outcome.unwrap_or_else(untold);
            }
            self.waker.sleep(Some(left));
        }
    }
}

debug_fields!(PendingHandoff, |it| to: it.to);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_keeps_its_first_id_in_the_directory() {
        let wait = Wait::default();
        assert!(wait.published.get().is_none());
        let names = [1, 2].map(|id| wait.publish(|| WaitRecord { id, ..WaitRecord::default() }).id);
        assert!(wait.published.get().is_some());
        assert_eq!(names, [1, 1]);
    }

    #[test]
    fn a_waiter_is_new_to_the_deadlock_search_once_per_owner_number() {
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
