//! What a store of rows can besides: see connections end, stand in a line, keep locks until others ask, sweep.

use std::time::Duration;

use crate::seam::capabilities::{ConnectionWatch, Keeping, KeptLook, Lines, Sweeping};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Failure, Store, named};
use crate::stores::sql::rows::{RowStore, Rows};
use crate::sync::Waker;
use crate::time::Moment;

impl<D: Rows> ConnectionWatch for RowStore<D> {
    fn hung_up(&self) -> Option<bool> {
        self.pool().database().hung_up()
    }
}

impl<D: Rows> Lines for RowStore<D> {
    fn is_refused(&self) -> bool {
        self.pool().database().is_line_refused()
    }

    fn leave_line(&self, claim: &Claim, deadline: Moment) {
        // An entry that stays is passed over when its client has not asked for a while.
        let left = self.pool().with(deadline, |database, link| database.leave_line(link, claim, deadline));
        drop(left);
    }
}

impl<D: Rows> Keeping for RowStore<D> {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(&claim.by_own_turn(), waker)
    }

    fn look(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>> {
        let outcomes = self.pool().with_renewals(claims.len(), deadline, |database, link| {
            database.look_kept(link, claims, deadline)
        });
        let outcomes = claims.iter().zip(outcomes);
        outcomes.map(|(claim, outcome)| named(outcome, "renew", claim.name.given())).collect()
    }
}

impl<D: Rows> Sweeping for RowStore<D> {
    fn old_versions(&self, age: Duration, deadline: Moment) -> Answer<Vec<String>> {
        self.pool().with(deadline, |database, link| database.old_versions(link, age, deadline))
    }

    fn sweep(&self, age: Duration, deadline: Moment) -> Answer<u64> {
        match self.pool().with(deadline, |database, link| database.sweep(link, age, deadline)) {
            Ok(removed) => Ok(removed),
            Err(Failure::Refused(error)) => Err(Failure::Refused(error.during("sweep"))),
            Err(Failure::Unknown(error)) => {
                Err(Failure::Unknown(error.during("sweep").with_unknown_outcome()))
            }
        }
    }
}
