//! Events of which the calling thread notifies the observers.

use super::Waiting;
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::event::{Event, GaveUpReason};
use crate::park;
use crate::time::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WokenBy {
    /// A message: the lock may have been released elsewhere.
    Message,
    /// Something in this process: the queue, a hand-off, a release, the end of the client; or nothing.
    Here,
    Time,
    Interrupt,
}

impl Waiting<'_> {
    pub(super) fn report_asked(&self, op: &'static str, sent: Moment, error: Option<&Error>) {
        let engine = self.engine;
        engine.reporter.report_request(op, sent, &engine.clock, error);
    }

    /// A call that is about to sleep for the first time.
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
            self.engine.note_waiter(self.call.kind, self.call.local);
        }
    }

    pub(super) fn note_woken(&mut self, ended: park::Woken) -> WokenBy {
        let woken = match ended {
            park::Woken::Signal if self.listening.has_message() => WokenBy::Message,
            park::Woken::Signal => WokenBy::Here,
            park::Woken::Time => WokenBy::Time,
            park::Woken::Interrupted => WokenBy::Interrupt,
        };
        let counters = &self.engine.reporter.counters;
        match woken {
            WokenBy::Message => counters.by_message.add(1),
            WokenBy::Here => counters.locally.add(1),
            WokenBy::Time => counters.by_time.add(1),
            WokenBy::Interrupt => {}
        }
        let is_message = woken == WokenBy::Message;
        self.coming = is_message.then(|| (self.engine.clock.now(), false));
        woken
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
        self.engine.reporter.counters.note_given_up();
        self.span.gave_up(&reason, self.attempts);
        if self.engine.reporter.is_observed() {
            let (name, kind, attempts) = (self.call.name.given(), self.call.kind.label(), self.attempts);
            let waited = self.engine.clock.now().since(self.begun);
            let event = Event::GaveUp { name, kind, waited, attempts, reason };
            self.engine.reporter.report(|observer| observer.event(&event));
        }
    }
}
