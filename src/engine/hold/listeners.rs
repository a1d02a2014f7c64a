//! Callbacks and channels that are to hear of a loss.

use crossbeam_channel::Sender;

use crate::observe::Loss;
use crate::observe::reporter::OnLost;

/// Those who are to hear of the loss of a hold.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) loss: Option<Loss>,
    /// The hold ended by release: there will be no loss.
    pub(super) released: bool,
    /// They are for the hold that follows this one's release.
    pub(super) kept: bool,
    pub(super) callbacks: Vec<OnLost>,
    pub(super) senders: Vec<Sender<Loss>>,
}

impl Listeners {
    pub(super) fn is_empty(&self) -> bool {
        self.callbacks.is_empty() && self.senders.is_empty()
    }

    pub(super) fn take(&mut self) -> (Vec<OnLost>, Vec<Sender<Loss>>) {
        (std::mem::take(&mut self.callbacks), std::mem::take(&mut self.senders))
    }
}
