//! Looks at holds that their client keeps until others ask for them.

use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Store};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::store::RedisStore;
use crate::sync::Waker;
use crate::time::Moment;

impl Keeping for RedisStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(&claim.by_own_turn(), waker)
    }

    fn look(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>> {
        self.batch(
            claims,
            "renew",
            deadline,
            |kind, claim| kind.look_kept(claim, kind.own_listeners(&self.server, claim)),
            |_, reply| replies::looked(reply),
        )
    }
}
