//! How listeners are notified of a loss.

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Hold;
use crate::engine::hold::listeners::List;
use crate::observe::Loss;
use crate::observe::reporter::{OnLost, Reporter};
use crate::sync::atomic::Ordering;

impl Hold {
    fn known_loss(&self) -> Option<Loss> {
        let reason = self.phase.loss()?;
        Some(Loss { name: self.name().given().to_owned(), owner: self.owner(), reason })
    }

    /// Notifies all. Called once, after the phase says that the hold is lost: later listeners check the
    /// phase.
    pub(super) fn notify(&self, loss: &Loss, reporter: &Reporter) {
        let (callbacks, senders) = self.listeners.take(|_| false);
        for sender in senders {
            drop(sender.try_send(loss.clone())); // room for one; nobody may be listening any more
        }
        for callback in callbacks {
            let loss = loss.clone();
            reporter.run_later(move || callback(&loss));
        }
    }

    /// Adds a listener. If the hold has ended, returns it with what is to be done at once.
    fn listen<T>(&self, listener: T, add: impl FnOnce(&mut List, T)) -> Option<(T, Option<Loss>)> {
        let mut list = self.listeners.list.lock();
        // Sets first, looks second. Pairs with `lose` and `forget_listeners`, which change first and look
        // second.
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

    /// Gets the loss, if there is one, and is disconnected when the hold ends.
    pub(crate) fn loss_channel(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        self.send_loss(sender);
        receiver
    }

    /// `sender` gets the loss, if there is one, and is dropped when the hold ends.
    pub(crate) fn send_loss(&self, sender: Sender<Loss>) {
        if let Some((sender, Some(loss))) = self.listen(sender, |list, added| list.senders.push(added)) {
            drop(sender.try_send(loss));
        }
    }

    /// From now on a release leaves the listeners here or not, for
    /// [`hand_listeners_to`](Self::hand_listeners_to) the hold that follows.
    pub(crate) fn keep_listeners(&self, are_kept: bool) {
        self.listeners.list.lock().cached = are_kept;
    }

    pub(crate) fn keeps_listeners(&self) -> bool {
        self.listeners.list.lock().cached
    }

    /// This hold ended by release: its listeners get the next hold's loss instead.
    pub(crate) fn hand_listeners_to(&self, next: &Hold, reporter: &Reporter) {
        self.keep_listeners(false);
        let (callbacks, senders) = self.listeners.take(|_| false);
        callbacks.into_iter().for_each(|callback| next.on_lost(callback, reporter));
        senders.into_iter().for_each(|sender| next.send_loss(sender));
    }

    /// The hold ended by release. Callbacks are dropped where they would have run.
    pub(crate) fn forget_listeners(&self, reporter: &Reporter) {
        self.listeners.released.store(true, Ordering::SeqCst);
        let (callbacks, senders) = self.listeners.take(|list| list.cached);
        drop(senders);
        if !callbacks.is_empty() {
            reporter.drop_later(callbacks);
        }
    }
}
