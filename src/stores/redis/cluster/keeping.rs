//! Looks at holds that their client keeps until others ask for them, each where its slot is.

use super::ClusterStore;
use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Store};
use crate::sync::Waker;
use crate::time::Moment;

impl Keeping for ClusterStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(&claim.by_own_turn(), waker)
    }

    fn look(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>> {
        self.ask_all(claims, deadline, |store, claims| store.look(claims, deadline))
    }
}
