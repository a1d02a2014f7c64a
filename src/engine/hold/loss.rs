//! Those who are notified when a hold is lost: callbacks and channels.

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Hold;
use crate::observe::Loss;
use crate::observe::reporter::{OnLost, Reporter};

impl Hold {
    /// Notifies all, and those who come later; whether the holding thread had ended before. Called once.
    pub(super) fn notify(&self, loss: &Loss, reporter: &Reporter) -> bool {
        let mut state = self.state.lock();
        state.listeners.loss = Some(loss.clone());
        let ((callbacks, senders), is_abandoned) = (state.listeners.take(), state.is_abandoned);
        drop(state);
        for sender in senders {
            drop(sender.try_send(loss.clone())); // room for one; nobody may be listening any more
        }
        for callback in callbacks {
            let loss = loss.clone();
            reporter.run_later(move || callback(&loss));
        }
        is_abandoned
    }

    /// Has `callback` run when the hold is lost: soon, if it is lost already.
    pub(crate) fn on_lost(&self, callback: OnLost, reporter: &Reporter) {
        let mut state = self.state.lock();
        let listeners = &mut state.listeners;
        match listeners.loss.clone() {
            Some(loss) => {
                drop(state);
                reporter.run_later(move || callback(&loss));
            }
            None if listeners.released => {}
            None => listeners.callbacks.push(callback),
        }
    }

    /// A channel that gets the loss, if there is one, and is disconnected when the hold ends.
    pub(crate) fn loss_channel(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        self.send_loss(sender);
        receiver
    }

    /// Has `sender` get the loss, if there is one, and dropped when the hold ends.
    pub(crate) fn send_loss(&self, sender: Sender<Loss>) {
        let mut state = self.state.lock();
        let listeners = &mut state.listeners;
        match listeners.loss.clone() {
            Some(loss) => {
                drop(state);
                drop(sender.try_send(loss));
            }
            None if listeners.released => {}
            None => listeners.senders.push(sender),
        }
    }

    /// From now on a release leaves the listeners here, for [`hand_listeners_to`](Self::hand_listeners_to),
    /// since another hold is to follow; or it does not any more.
    pub(crate) fn keep_listeners(&self, are_kept: bool) {
        self.state.lock().listeners.kept = are_kept;
    }

    /// Has the listeners notified of the next hold's loss in the place of this one's, which ended by release.
    pub(crate) fn hand_listeners_to(&self, next: &Hold, reporter: &Reporter) {
        let mut state = self.state.lock();
        state.listeners.kept = false;
        let (callbacks, senders) = state.listeners.take();
        drop(state);
        callbacks.into_iter().for_each(|callback| next.on_lost(callback, reporter));
        senders.into_iter().for_each(|sender| next.send_loss(sender));
    }

    /// The hold ended by release. Callbacks are dropped where they would have run.
    pub(crate) fn forget_listeners(&self, reporter: &Reporter) {
        let mut state = self.state.lock();
        state.listeners.released = true;
        if state.listeners.kept {
            return;
        }
        let (callbacks, senders) = state.listeners.take();
        drop(state);
        drop(senders);
        if !callbacks.is_empty() {
            reporter.drop_later(callbacks);
        }
    }
}
