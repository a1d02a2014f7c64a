//! Events of which the calling thread notifies the observer.

use super::Waiting;
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::event::{Event, GaveUpReason};
use crate::park::Woken;

impl Waiting<'_> {
    /// A call that is about to sleep for the first time.
    pub(super) fn tell_waiting(&self) {
        if !self.is_waiting {
            let (name, kind) = (self.call.name.given(), self.call.kind.label());
            self.engine.reporter.tell(|observer| observer.event(&Event::Waiting { name, kind }));
        }
    }

    /// From now on a release here can hand it the lock: who sees it among the waiters may count on that.
    pub(super) fn count_waiter(&mut self) {
        if !std::mem::replace(&mut self.is_waiting, true) {
            self.engine.reporter.counters.begin_wait(self.call.name.given());
        }
    }

    /// A message since the last attempt says that the lock may have been released elsewhere.
    pub(super) fn note_woken(&mut self, woken: Woken) {
        let count = self.subscription.as_ref().map(|subscription| subscription.message_count());
        let is_message = matches!(woken, Woken::Signal) && count.is_some() && count != self.message_count;
        let counters = &self.engine.reporter.counters;
        match woken {
            Woken::Signal if is_message => counters.by_message.add(1),
            Woken::Signal => counters.locally.add(1),
            Woken::Time => counters.by_time.add(1),
            Woken::Interrupted => {}
        }
        self.coming = is_message.then(|| (self.engine.clock.now(), false));
    }

    pub(super) fn tell_unknown(&self, error: &Error) {
        self.engine.reporter.counters.unknown_outcomes.add(1);
        let (name, kind) = (self.call.name.given(), self.call.kind.label());
        self.engine.reporter.tell(|observer| observer.event(&Event::UnknownOutcome { name, kind, error }));
    }

    /// A call that ended without the lock.
    pub(super) fn tell_given_up(&self, ended: &Result<Option<Granted>>) {
        let reason = match ended {
            Ok(Some(_)) => return,
            Ok(None) if self.call.limit == WaitLimit::Once => GaveUpReason::Busy,
            Ok(None) => GaveUpReason::TimedOut,
            Err(error) if error.kind() == ErrorKind::Interrupted => GaveUpReason::Interrupted,
            Err(error) => GaveUpReason::Failed(error),
        };
        self.engine.reporter.counters.note_given_up();
        self.span.gave_up(&reason, self.attempts);
        if self.engine.reporter.is_observed() {
            let (name, kind, attempts) = (self.call.name.given(), self.call.kind.label(), self.attempts);
            let waited = self.engine.clock.now().since(self.started);
            let event = Event::GaveUp { name, kind, waited, attempts, reason };
            self.engine.reporter.tell(|observer| observer.event(&event));
        }
    }
}
