//! Looks at holds that their client keeps until others ask for them.

use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::{Answer, Claim};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::store::RedisStore;
use crate::time::Moment;

impl Keeping for RedisStore {
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
