//! Outcomes: a timely majority is a grant, and otherwise nothing may stay. Releases, with and without a
//! waiting caller.

use std::sync::Arc;

use crate::seam::capabilities::{SPLIT_PAUSE, begin_release};
use crate::seam::{Answer, Attempt, Claim, Failure, Release, Sink, granted_too_late};
use crate::sync::Mutex;
use crate::time::{Clock, Moment, random_between};
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::monitor::NodeMonitor;
use crate::topologies::redlock::votes::{Votes, not_held, say_attempt, say_release, validity};

impl NodeMonitor {
    /// The result of a release. A server that did not answer is cleaned up later.
    pub(super) fn released(&self, claim: &Claim, left: u32, votes: &Votes<Release>) -> Answer<Release> {
        if left > 0 {
            let still = votes.count(|release| *release == Release::StillHeld);
            return if still >= votes.majority() {
                Ok(Release::StillHeld)
            } else if votes.not_held() >= votes.veto() {
                Ok(Release::NotHeld { holder: votes.other_holder() })
            } else {
                votes.too_few("unlock", &self.places(), still > 0, say_release)
            };
        }
        let is_lost = votes.not_held() >= votes.veto();
        if !is_lost && votes.done().count() < votes.majority() {
            let freed = votes.count(|release| matches!(release, Release::Freed { .. }));
            return votes.too_few("unlock", &self.places(), freed > 0, say_release);
        }
        // Settled for the caller. A server that did not answer may still hold the lock, unless it was out
        // when the hold began.
        self.owe_where(claim, |at, node| match votes.0.get(at) {
            Some(Ok(_)) | None => false,
            Some(Err(Failure::Unknown(_))) => true,
            Some(Err(Failure::Refused(_))) => node.may_hold(claim.owner),
        });
        Ok(if is_lost {
            Release::NotHeld { holder: votes.other_holder() }
        } else {
            Release::Freed { others: votes.others() }
        })
    }
}

/// The answers to a release that nobody waits for, as they arrive; the last one settles it.
pub(super) struct PendingRelease {
    monitor: Arc<NodeMonitor>,
    claim: Claim,
    uncounted: Vec<usize>,
    state: Mutex<ReleaseState>,
}

struct ReleaseState {
    answers: Vec<Option<Answer<Release>>>,
    done: Option<Sink>,
}

impl PendingRelease {
    pub(super) fn take(&self, at: usize, answer: Answer<Release>) {
        let answer = match self.monitor.node(at) {
            Some(node) => self.monitor.noted(node, &self.claim, answer),
            None => answer,
        };
        let mut state = self.state.lock();
        if let Some(place) = state.answers.get_mut(at) {
            *place = Some(answer);
        }
        if state.answers.iter().any(Option::is_none) {
            return;
        }
        let votes = Votes(std::mem::take(&mut state.answers).into_iter().flatten().collect());
        let Some(done) = state.done.take() else { return };
        drop(state);
        let votes = votes.discounted(&self.uncounted, not_held);
        done.answer(self.monitor.released(&self.claim, 0, &votes));
    }
}

impl Redlock {
    /// Collects the answers for `done`, except those of servers that do not count.
    pub(super) fn gather(&self, claim: &Claim, uncounted: Vec<usize>, done: Sink) -> Arc<PendingRelease> {
        let answers = self.shared.nodes.iter().map(|_| None).collect();
        let state = Mutex::new(ReleaseState { answers, done: Some(done) });
        let monitor = Arc::clone(&self.monitor);
        Arc::new(PendingRelease { monitor, claim: claim.clone(), uncounted, state })
    }

    /// Undoes an attempt without a majority; returns whether it got anything.
    fn undo(&self, claim: &Claim, votes: &Votes<Attempt>, deadline: Moment) -> bool {
        let has = |at: usize| matches!(votes.0.get(at), Some(Ok(Attempt::Granted { .. })));
        let answers =
            self.ask_those(claim, deadline, has, |store, claim, by| begin_release(store, claim, 0, by));
        for (at, _) in answers.iter().filter(|(_, answer)| answer.is_err()) {
            self.monitor.owe_where(claim, |other, _| other == *at);
        }
        !answers.is_empty()
    }

    /// First level of a hold. Only a timely majority is a grant; otherwise nothing may stay.
    pub(super) fn first(
        &self,
        claim: &Claim,
        votes: &Votes<Attempt>,
        sent: Moment,
        deadline: Moment,
    ) -> Answer<Attempt> {
        // A late grant would be nobody's; a grant beside a majority would not belong to this hold.
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
            // Requests that may have been carried out are handled already.
            return answer.map_err(|failure| Failure::Refused(failure.into_read_error().on(name)));
        }
        let retry_after = votes.retry_after();
        if !got_some || !claim.waits {
            return Ok(Attempt::Busy { retry_after });
        }
        // Others may have got as much: retrying at once would meet them again.
        let pause = random_between(SPLIT_PAUSE);
        let until = Clock::System.after(pause);
        self.pauses.lock().push((claim.owner, Arc::clone(&claim.name), until));
        Ok(Attempt::Busy { retry_after: Some(pause) })
    }
}
