//! The state of a waiter that looks out for what tells no line: see `waiting/lookout.rs`.

use crate::seam::subscription::Subscription;
use crate::time::Moment;

/// The state of a waiter that looks out, or is to.
#[derive(Default)]
pub(crate) struct Lookout {
    /// When to begin to look out.
    pub(crate) begins_at: Option<Moment>,
    pub(crate) subscription: Option<Subscription>,
    /// The messages that it had before the last attempt. `None`: it did not stand then.
    message_count: Option<u64>,
}

impl Lookout {
    /// Before an attempt. What comes between this and the sleep is reason for another, as of any
    /// subscription.
    pub(crate) fn note_count(&mut self) {
        self.message_count = self.count();
    }

    /// Whether something came since the last attempt; that it stands now counts too.
    pub(crate) fn has_moved(&self) -> bool {
        let count = self.count();
        count.is_some() && count != self.message_count
    }

    fn count(&self) -> Option<u64> {
        self.subscription.as_ref().filter(|at| at.is_up()).map(Subscription::message_count)
    }
}
