//! Events of which the calling thread notifies the observers.

use super::Waiting;
use super::report::WokenBy;
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::event::{Event, GaveUpReason};
use crate::park;
use crate::time::Moment;

impl Waiting<'_> {
    /// A request was sent at `sent`, and answered.
    pub(super) fn tell_asked(&self, op: &'static str, sent: Moment, error: Option<&Error>) {
        let engine = self.request.engine;
        engine.reporter.tell_request(op, sent, &engine.clock, error);
    }

    /// A call that is about to sleep for the first time.
    pub(super) fn tell_waiting(&self) {
        if !self.report.is_waiting {
            let (name, kind) = (self.request.call.name.given(), self.request.call.kind.label());
            self.request.engine.reporter.tell(|observer| observer.event(&Event::Waiting { name, kind }));
        }
    }

    /// From now on a release here can hand it the lock: who sees it among the waiters may count on that.
    pub(super) fn count_waiter(&mut self) {
        if !std::mem::replace(&mut self.report.is_waiting, true) {
            self.request.engine.reporter.counters.begin_wait(self.request.call.name.given());
        }
    }

    /// Says what ended a sleep, and counts it.
    pub(super) fn note_woken(&mut self, ended: park::Woken) -> WokenBy {
        let woken = match ended {
            park::Woken::Signal if self.listening.has_message() => WokenBy::Message,
            park::Woken::Signal => WokenBy::Here,
            park::Woken::Time => WokenBy::Time,
            park::Woken::Interrupted => WokenBy::Interrupt,
        };
        let counters = &self.request.engine.reporter.counters;
        match woken {
            WokenBy::Message => counters.by_message.add(1),
            WokenBy::Here => counters.locally.add(1),
            WokenBy::Time => counters.by_time.add(1),
            WokenBy::Interrupt => {}
        }
        let is_message = woken == WokenBy::Message;
        self.report.coming = is_message.then(|| (self.request.engine.clock.now(), false));
        woken
    }

    pub(super) fn tell_unknown(&self, error: &Error) {
        self.request.engine.reporter.counters.unknown_outcomes.add(1);
        let (name, kind) = (self.request.call.name.given(), self.request.call.kind.label());
        self.request
            .engine
            .reporter
            .tell(|observer| observer.event(&Event::UnknownOutcome { name, kind, error }));
    }

    /// A call that ended without the lock.
    pub(super) fn tell_given_up(&self, ended: &Result<Option<Granted>>) {
        let reason = match ended {
            Ok(Some(_)) => return,
            Ok(None) if self.request.call.limit == WaitLimit::Once => GaveUpReason::Busy,
            Ok(None) => GaveUpReason::TimedOut,
            Err(error) if error.kind() == ErrorKind::Interrupted => GaveUpReason::Interrupted,
            Err(error) => GaveUpReason::Failed(error),
        };
        self.request.engine.reporter.counters.note_given_up();
        self.report.span.gave_up(&reason, self.report.attempts);
        if self.request.engine.reporter.is_observed() {
            let (name, kind, attempts) =
                (self.request.call.name.given(), self.request.call.kind.label(), self.report.attempts);
            let waited = self.request.engine.clock.now().since(self.request.begun);
            let event = Event::GaveUp { name, kind, waited, attempts, reason };
            self.request.engine.reporter.tell(|observer| observer.event(&event));
        }
    }
}
