//! The outcome of an attempt to acquire: a majority in time is a grant, and of anything else nothing stays.

use std::sync::Arc;

use crate::seam::capabilities::SPLIT_PAUSE;
use crate::seam::fallbacks::begin_release;
use crate::seam::{Answer, Attempt, Claim, Failure, granted_too_late};
use crate::time::{Clock, Moment, random_between};
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::votes::{Votes, say_attempt, validity};

impl Redlock {
    /// Takes back what an attempt without a majority got; returns whether it got something.
    fn undo(&self, claim: &Claim, votes: &Votes<Attempt>, deadline: Moment) -> bool {
        let has = |at: usize| matches!(votes.0.get(at), Some(Ok(Attempt::Granted { .. })));
        let begun: Vec<_> = self
            .shared
            .nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| has(*at))
            .map(|(at, node)| {
                let pending = node.ready().and_then(|store| {
                    Ok(begin_release(
                        store.as_ref(),
                        &node.claim(claim)?,
                        0,
                        self.node_by(claim.lease, deadline),
                    ))
                });
                (at, node, pending)
            })
            .collect();
        let got_some = !begun.is_empty();
        for (at, node, pending) in begun {
            let answer = match pending {
                Ok(pending) => self.monitor.noted(node, claim, pending.wait()),
                Err(error) => Err(Failure::Refused(error)),
            };
            if answer.is_err() {
                self.monitor.owe_where(claim, |other, _| other == at);
            }
        }
        got_some
    }

    /// A first hold was asked for. Only a majority in time is a grant; of anything else nothing may stay.
    pub(super) fn first(
        &self,
        claim: &Claim,
        votes: &Votes<Attempt>,
        sent: Moment,
        deadline: Moment,
    ) -> Answer<Attempt> {
        // Granted late, it would be in nobody's name; granted beside a majority, it is none of this hold's.
        self.monitor.owe_where(claim, |at, _| matches!(votes.0.get(at), Some(Err(Failure::Unknown(_)))));
        let granted = votes.granted();
        let took = Clock::System.now().since(sent);
        if granted >= votes.majority() && validity(claim.lease, took).is_some() {
            return Ok(Attempt::granted(votes.fencing_token()));
        }
        let got_some = self.undo(claim, votes, deadline);
        if granted >= votes.majority() {
            return Err(Failure::Refused(granted_too_late("lock", claim.lease, took).on(claim.name.given())));
        }
        let busy = votes.count(|attempt| matches!(attempt, Attempt::Busy { .. }));
        if granted + busy < votes.majority() {
            let name = claim.name.given();
            let answer = votes.too_few("lock", &self.monitor.places(), false, say_attempt);
            // Requests that may have been carried out are seen to already.
            return match answer {
                Err(Failure::Unknown(error)) => Err(Failure::Refused(error.with_known_outcome().on(name))),
                Err(Failure::Refused(error)) => Err(Failure::Refused(error.on(name))),
                done @ Ok(_) => done,
            };
        }
        let retry_after = votes.retry_after();
        if !got_some || !claim.waits {
            return Ok(Attempt::Busy { retry_after });
        }
        // Others may have got as much: who asks again at once meets them again.
        let pause = random_between(SPLIT_PAUSE);
        let until = Clock::System.after(pause);
        self.pauses.lock().push((claim.owner, Arc::clone(&claim.name), until));
        Ok(Attempt::Busy { retry_after: Some(pause) })
    }
}
