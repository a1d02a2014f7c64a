//! Events of which the calling thread notifies the observers.

use super::Waiting;
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::event::{Event, GaveUpReason};
use crate::park::Woken;
use crate::time::Moment;

impl Waiting<'_> {
    pub(super) fn report_asked(&self, op: &'static str, sent: Moment, error: Option<&Error>) {
        let engine = self.engine;
        engine.reporter.report_request(op, sent, &engine.clock, error);
    }

    pub(super) fn report_waiting(&self) {
        if !self.is_waiting {
            let (name, kind) = (self.call.name.given(), self.call.kind.label());
            self.engine.reporter.report(|observer| observer.event(&Event::Waiting { name, kind }));
        }
    }

    /// From now on the waiter counts: a release here can hand the lock to it.
    pub(super) fn count_waiter(&mut self) {
        if !std::mem::replace(&mut self.is_waiting, true) {
            self.engine.reporter.counters.begin_wait(self.call.name.given());
            self.engine.note_waiter(self.call.local);
        }
    }

    /// Whether a message ended the sleep: the lock may have been released elsewhere. Else something in this
    /// process did, the time, an interrupt, or nothing.
    pub(super) fn note_woken(&mut self, ended: Woken) -> bool {
        let is_message = ended == Woken::Signal && self.listening.has_message();
        let counters = &self.engine.reporter.counters;
        match ended {
            Woken::Signal if is_message => counters.woken_by_message.add(1),
            Woken::Signal => counters.woken_locally.add(1),
            Woken::Time => counters.woken_by_time.add(1),
            Woken::Interrupted => {}
        }
        self.coming = is_message.then(|| (self.engine.clock.now(), false));
        is_message
    }

    pub(super) fn report_unknown(&self, error: &Error) {
        self.engine.reporter.counters.unknown_outcomes.add(1);
        let (name, kind) = (self.call.name.given(), self.call.kind.label());
        self.engine.reporter.report(|observer| observer.event(&Event::UnknownOutcome { name, kind, error }));
    }

    pub(super) fn report_given_up(&self, ended: &Result<Option<Granted>>) {
        let reason = match ended {
            Ok(Some(_)) => return,
            Ok(None) if self.call.limit == WaitLimit::Once => GaveUpReason::Busy,
            Ok(None) => GaveUpReason::TimedOut,
            Err(error) if error.kind() == ErrorKind::Interrupted => GaveUpReason::Interrupted,
            Err(error) => GaveUpReason::Failed(error),
        };
        self.engine.reporter.counters.gave_up.add(1);
        self.span.gave_up(&reason, self.attempts);
        if self.engine.reporter.is_observed() {
            let (name, kind, attempts) = (self.call.name.given(), self.call.kind.label(), self.attempts);
            let waited = self.engine.clock.now().since(self.begun);
            let event = Event::GaveUp { name, kind, waited, attempts, reason };
            self.engine.reporter.report(|observer| observer.event(&event));
        }
    }
}
