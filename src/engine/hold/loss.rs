//! Those who are notified when a hold is lost: callbacks and channels.

use crossbeam_channel::Sender;

use crate::observe::Loss;
use crate::observe::reporter::{OnLost, Reporter};
use crate::sync::Mutex;

#[derive(Default)]
pub(crate) struct LossListeners(Mutex<Listeners>);

#[derive(Default)]
struct Listeners {
    loss: Option<Loss>,
    /// The hold ended by release: there will be no loss.
    released: bool,
    /// They are for the hold that follows this one's release.
    kept: bool,
    callbacks: Vec<OnLost>,
    senders: Vec<Sender<Loss>>,
}

impl LossListeners {
    /// Notifies all, and those who come later. Called once.
    pub(super) fn notify(&self, loss: &Loss, reporter: &Reporter) {
        let (callbacks, senders) = {
            let mut listeners = self.0.lock();
            listeners.loss = Some(loss.clone());
            (std::mem::take(&mut listeners.callbacks), std::mem::take(&mut listeners.senders))
        };
        for sender in senders {
            drop(sender.try_send(loss.clone())); // room for one; nobody may be listening any more
        }
        for callback in callbacks {
            let loss = loss.clone();
            reporter.run_later(move || callback(&loss));
        }
    }

    /// From now on a release leaves them here, for [`hand_to`](Self::hand_to), since another hold is to
    /// follow; or it does not any more.
    pub(crate) fn keep(&self, are_kept: bool) {
        self.0.lock().kept = are_kept;
    }

    /// Has the listeners of the next hold be notified in the place of this one's, which ended by release.
    pub(crate) fn hand_to(&self, next: &LossListeners, reporter: &Reporter) {
        let (callbacks, senders) = {
            let mut listeners = self.0.lock();
            listeners.kept = false;
            (std::mem::take(&mut listeners.callbacks), std::mem::take(&mut listeners.senders))
        };
        callbacks.into_iter().for_each(|callback| next.add_callback(callback, reporter));
        senders.into_iter().for_each(|sender| next.add_sender(sender));
    }

    pub(super) fn add_callback(&self, callback: OnLost, reporter: &Reporter) {
        let mut listeners = self.0.lock();
        match listeners.loss.clone() {
            Some(loss) => {
                drop(listeners);
                reporter.run_later(move || callback(&loss));
            }
            None if listeners.released => {}
            None => listeners.callbacks.push(callback),
        }
    }

    pub(super) fn add_sender(&self, sender: Sender<Loss>) {
        let mut listeners = self.0.lock();
        match listeners.loss.clone() {
            Some(loss) => drop(sender.try_send(loss)),
            None if listeners.released => {}
            None => listeners.senders.push(sender),
        }
    }

    /// The hold ended by release. Callbacks are dropped where they would have run.
    pub(crate) fn forget(&self, reporter: &Reporter) {
        let (callbacks, senders) = {
            let mut listeners = self.0.lock();
            listeners.released = true;
            if listeners.kept {
                return;
            }
            (std::mem::take(&mut listeners.callbacks), std::mem::take(&mut listeners.senders))
        };
        drop(senders);
        if !callbacks.is_empty() {
            reporter.drop_later(callbacks);
        }
    }
}
