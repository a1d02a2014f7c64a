//! Looks at holds that their client keeps until others ask for them. Others ask by coming to wait: the watch
//! reports their keys, see `recalls`.

use serde_json::Value;

use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, named};
use crate::stores::etcd::EtcdStore;
use crate::stores::etcd::members::not_sent;
use crate::stores::etcd::message::{BATCH, for_each_of, get, txn, unanswered};
use crate::sync::Waker;
use crate::time::Moment;

/// A look is two questions about each lock.
const BATCH_OF_LOOKS: usize = BATCH / 2;

impl Keeping for EtcdStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.watch.hear(self.line(&claim.name), waker)
    }

    fn look(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>> {
        let looks = claims.chunks(BATCH_OF_LOOKS).flat_map(|batch| match self.look_batch(batch, deadline) {
            Ok(looks) => looks,
            Err(failure) => for_each_of(batch.len(), not_sent(failure)).map(Err).collect(),
        });
        looks.zip(claims).map(|(look, claim)| named(look, "renew", claim.name.given())).collect()
    }
}

impl EtcdStore {
    fn look_batch(&self, claims: &[Claim], deadline: Moment) -> Answer<Vec<Answer<KeptLook>>> {
        let questions = |claim: &Claim| [get(&self.key(claim)), self.line(&claim.name).last(None)];
        let questions: Vec<Value> = claims.iter().flat_map(questions).collect();
        let done = self.txn(&self.renewals, &txn(&[], &questions, &[]), deadline)?;
        let looks = claims.iter().enumerate().map(|(at, claim)| {
            let held = done.found(2 * at).map_err(|_error| unanswered())?;
            let Some(held) = held.filter(|held| held.is_of(claim.owner)) else { return Ok(KeptLook::Lost) };
            let last = done.found_front(2 * at + 1).map_err(|_error| unanswered())?;
            let is_wanted = last.is_some_and(|last| last.key != held.key);
            Ok(if is_wanted { KeptLook::Wanted } else { KeptLook::Stays })
        });
        Ok(looks.collect())
    }
}
