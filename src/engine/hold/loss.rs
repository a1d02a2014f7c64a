//! A hold's notifications: to listeners of its loss, and callbacks when others want its lock.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::Hold;
use crate::engine::hold::phase::{List, OnContended, forget};
use crate::observe::event::Event;
use crate::observe::reporter::{OnLost, Reporter};
use crate::observe::{Loss, LossReason};
use crate::sync::atomic::Ordering;
use crate::time::{Clock, Moment};

impl Hold {
    /// Records the loss, retires the owner number, and notifies all listeners, once; returns whether this
    /// call did. A request under the number may be on its way, and the old guard may still try to release. A
    /// write hold whose owner reads is ended in the store from here on, again and again.
    pub(crate) fn lose(&self, reason: LossReason, now: Moment, reporter: &Reporter) -> bool {
        if self.phase.loss().is_some() {
            return false;
        }
        let mut state = self.local.state();
        if self.phase.loss().is_some() {
            return false;
        }
        if state.state_of(self.serial).is_none() && reason != LossReason::ShutDown {
            self.retire_owner_in(&mut state);
        }
        // A hold that is being released, or was removed, is lost only for its listeners.
        if !state.lose(self.serial, reason) && !self.phase.lose(reason) {
            return false;
        }
        drop(state);
        if self.is_cached() {
            return true; // nobody held it
        }
        let loss = Loss { name: self.name().given().to_owned(), owner: self.owner(), reason };
        self.notify(&loss, reporter);
        let is_abandoned = self.with(|state| state.is_abandoned).unwrap_or_default();
        reporter.counters.note_loss(reason);
        let kind = self.kind().label();
        let overdue = if self.is_renewed() { now.since(self.due()) } else { Duration::ZERO };
        let (held, span) = (now.since(self.since()), self.span.end(reason.end(is_abandoned)));
        reporter.observe_later(move |observer| {
            span(&|| observer.event(&Event::Lost { loss: &loss, kind, held, overdue, is_abandoned }));
        });
        true
    }

    fn known_loss(&self) -> Option<Loss> {
        let reason = self.phase.loss()?;
        Some(Loss { name: self.name().given().to_owned(), owner: self.owner(), reason })
    }

    /// Notifies all listeners, once, after the phase says that the hold is lost: later listeners check it.
    pub(super) fn notify(&self, loss: &Loss, reporter: &Reporter) {
        let List { callbacks, senders, contended, .. } = self.listeners.take(false);
        for sender in senders {
            drop(sender.try_send(loss.clone())); // room for one; nobody may be listening any more
        }
        for callback in callbacks {
            let loss = loss.clone();
            reporter.run_later(move || callback(&loss));
        }
        forget(contended, reporter);
    }

    /// Adds a listener. If the hold has ended, returns it with what is to be done at once.
    fn listen<T>(&self, listener: T, add: impl FnOnce(&mut List, T)) -> Option<(T, Option<Loss>)> {
        let mut list = self.listeners.list.lock();
        // The flag is set before the phase is read; `lose` and `forget_listeners` do the reverse.
        self.listeners.are_there.store(true, Ordering::SeqCst);
        let loss = self.known_loss();
        if loss.is_some() || self.listeners.released.load(Ordering::SeqCst) {
            return Some((listener, loss));
        }
        add(&mut list, listener);
        None
    }

    /// Runs `callback` when the hold is lost: soon, if it is lost already.
    pub(crate) fn on_lost(&self, callback: OnLost, reporter: &Reporter) {
        if let Some((callback, Some(loss))) = self.listen(callback, |list, added| list.callbacks.push(added))
        {
            reporter.run_later(move || callback(&loss));
        }
    }

    /// A channel that gets the loss, if there is one, and is disconnected when the hold ends.
    #[cfg(test)]
    pub(crate) fn loss_channel(&self) -> crossbeam_channel::Receiver<Loss> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.send_loss(sender);
        receiver
    }

    /// `sender` gets the loss, if there is one, and is dropped when the hold ends.
    pub(crate) fn send_loss(&self, sender: Sender<Loss>) {
        if let Some((sender, Some(loss))) = self.listen(sender, |list, added| list.senders.push(added)) {
            drop(sender.try_send(loss));
        }
    }

    /// Runs `callback` whenever others want the lock, as long as the hold stands.
    pub(crate) fn on_contended(&self, callback: OnContended, reporter: &Reporter) {
        if let Some((callback, _)) = self.listen(callback, |list, added| list.contended.push(added)) {
            forget(vec![callback], reporter);
        }
    }

    /// Runs each callback by itself, so that a panic stops no other. While one runs, none is run again.
    pub(crate) fn call_back(self: &Arc<Hold>, reporter: &Reporter, clock: &Clock) {
        let callbacks = self.listeners.list.lock().contended.clone();
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

    /// `are_kept`: from now on a release leaves the listeners here, for the hold that follows.
    pub(crate) fn keep_listeners(&self, are_kept: bool) {
        self.listeners.list.lock().are_kept = are_kept;
    }

    /// Takes the listeners of this hold, which ended by release, for the next hold.
    pub(crate) fn take_listeners(&self) -> List {
        self.listeners.take(false)
    }

    /// The hold ended by release. Callbacks are dropped where they would have run.
    pub(crate) fn forget_listeners(&self, reporter: &Reporter) {
        self.listeners.released.store(true, Ordering::SeqCst);
        let List { callbacks, senders, contended, .. } = self.listeners.take(true);
        drop(senders);
        if !callbacks.is_empty() {
            reporter.drop_later(callbacks);
        }
        forget(contended, reporter);
    }
}
