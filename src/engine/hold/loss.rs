//! A hold's news for its listeners: its loss, and that others want its lock.

use std::sync::Arc;

use super::Hold;
use crate::engine::hold::phase::Listener;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::observe::{Loss, LossReason};
use crate::sync::atomic::Ordering;
use crate::time::{Clock, Moment};

impl Hold {
    /// Records the loss, and notifies all listeners of an uncached hold. `false`: the hold was lost before,
    /// or is being released and the reason is not `Gone`. Retires the owner number: see `Machine::lose`.
    pub(crate) fn lose(&self, reason: LossReason, now: Moment, reporter: &Reporter) -> bool {
        let mut state = self.local.state();
        if self.phase.loss().is_some() {
            return false;
        }
        if state.state_of(self.serial).is_none() && reason != LossReason::ShutDown {
            self.retire_owner_in(&mut state);
        }
        // If the hold is being released or was removed, only its phase changes, for its listeners.
        if !state.lose(self.serial, reason) && !self.phase.lose(reason) {
            return false;
        }
        let is_abandoned = state.state_of(self.serial).is_some_and(|own| own.is_abandoned);
        drop(state);
        if self.is_cached() {
            return true; // no thread relied on a cached hold, so nobody is notified
        }
        let loss = Loss { name: self.name().given().to_owned(), owner: self.owner(), reason };
        // The phase shows the loss by now, so `listen` notifies a listener that is added later.
        self.listeners.end().into_iter().for_each(|listener| listener.end(Some(&loss), reporter));
        reporter.counters.note_loss(reason);
        let kind = self.kind().label();
        let overdue = self.with(|own| own.overdue(now));
        let (held, span) = (now.since(self.since()), self.span.end(reason.end(is_abandoned)));
        reporter.observe_later(move |observer| {
            span(&|| observer.event(&Event::Lost { loss: &loss, kind, held, overdue, is_abandoned }));
        });
        true
    }

    /// Adds a listener. If the hold has ended, notifies the listener of a loss, or closes it, at once.
    pub(crate) fn listen(&self, listener: Listener, reporter: &Reporter) {
        let mut list = self.listeners.list.lock();
        if self.listeners.has_ended.load(Ordering::SeqCst) {
            drop(list);
            let loss = |reason| Loss { name: self.name().given().to_owned(), owner: self.owner(), reason };
            return listener.end(self.phase.loss().map(loss).as_ref(), reporter);
        }
        self.listeners.are_there.store(true, Ordering::SeqCst);
        match listener {
            Listener::Channel(_) => list.push_front(listener),
            callback => list.push_back(callback),
        }
    }

    /// Runs each `on_contended` callback by itself, so that a panic stops no other. Does nothing while an
    /// earlier run lasts.
    pub(crate) fn call_back(self: &Arc<Hold>, reporter: &Reporter, clock: &Clock) {
        let contended = |listener: &Listener| match listener {
            Listener::OnContended(callback) => Some(Arc::clone(callback)),
            Listener::Channel(_) | Listener::OnLost(_) => None,
        };
        let callbacks: Vec<_> = self.listeners.list.lock().iter().filter_map(contended).collect();
        if callbacks.is_empty() || self.listeners.is_calling.swap(true, Ordering::SeqCst) {
            return;
        }
        for callback in callbacks {
            let (hold, clock) = (Arc::clone(self), clock.clone());
            reporter.run_later(move || {
                if hold.stands(clock.now()) {
                    callback();
                }
            });
        }
        let hold = Arc::clone(self);
        reporter.run_later(move || hold.listeners.is_calling.store(false, Ordering::SeqCst));
    }

    /// `are_kept`: a release keeps the listeners, so that the next hold of the guard can take them over.
    pub(crate) fn keep_listeners(&self, are_kept: bool) {
        self.listeners.are_kept.store(are_kept, Ordering::SeqCst);
    }

    /// The hold was released: drops the listeners, unless they are kept.
    pub(crate) fn forget_listeners(&self, reporter: &Reporter) {
        if !self.listeners.are_kept.load(Ordering::SeqCst) {
            self.listeners.end().into_iter().for_each(|listener| listener.end(None, reporter));
        }
    }
}
