//! Looks at holds that their client keeps until others ask for them. Others ask by coming to wait: the watch reports
//! their keys, see `recalls`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::subscription::Subscription;
use crate::seam::unused::to_be_told;
use crate::seam::{Answer, Claim, named};
use crate::stores::etcd::EtcdStore;
use crate::stores::etcd::members::not_sent;
use crate::stores::etcd::message::{
    BATCH, HeldKey, for_each_of, get, is_at, put_as_leased, txn, unanswered, value_unused,
};
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
        let renewed = self.prolong(claims, (0..claims.len()).map(|at| done.found(2 * at)), deadline)?;
        let mut shown = Vec::new();
        let looks = claims.iter().zip(renewed).enumerate().map(|(at, (claim, renewed))| {
            let held = done.found(2 * at).map_err(|_error| unanswered())?;
            let (true, Some(held)) = (renewed?, held) else { return Ok(KeptLook::Lost) };
            let last = done.found_front(2 * at + 1).map_err(|_error| unanswered())?;
            if last.is_some_and(|last| last.key != held.key) {
                return Ok(KeptLook::Wanted);
            }
            shown.extend(show(&held, claim.keeps.unwrap_or_default()));
            Ok(KeptLook::Stays)
        });
        let looks = looks.collect();
        if !shown.is_empty() {
            // Only for people: whether it was written does not matter.
            drop(self.txn(&self.renewals, &txn(&[], &shown, &[]), deadline));
        }
        Ok(looks)
    }
}

/// Writes for people since when a lock is unused, if they are not told that already.
fn show(held: &HeldKey, unused: Duration) -> Option<Value> {
    let since = to_be_told(unused, held.unused_since)?;
    let write = put_as_leased(&held.key, &value_unused(held, since));
    Some(json!({ "request_txn": txn(&[is_at(&held.key, held.revision)], &[write], &[]) }))
}
