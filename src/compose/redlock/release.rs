//! What came of a release, for whoever waits for it and for nobody.

use std::fmt;
use std::sync::Arc;

use super::keeper::Keeper;
use super::votes::{Votes, say_release};
use crate::lock::store::{Answer, Claim, Release, Sink};
use crate::sync::Mutex;

/// What the answers to a release come to. What a server did not answer and may still hold is seen to.
pub(super) fn released(keeper: &Keeper, claim: &Claim, left: u32, votes: &Votes<Release>) -> Answer<Release> {
    if left > 0 {
        let still = votes.count(|release| *release == Release::StillHeld);
        return if still >= votes.majority() {
            Answer::Done(Release::StillHeld)
        } else if votes.not_held() >= votes.veto() {
            Answer::Done(Release::NotHeld { by: votes.other_holder() })
        } else {
            votes.too_few("unlock", &keeper.places(), still > 0, say_release)
        };
    }
    let is_lost = votes.not_held() >= votes.veto();
    if !is_lost && votes.done().count() < votes.majority() {
        let freed = votes.count(|release| matches!(release, Release::Freed { .. }));
        return votes.too_few("unlock", &keeper.places(), freed > 0, say_release);
    }
    // Settled for the caller. What did not answer may hold it still, unless it was out when the hold began.
    keeper.owe_where(claim, |at, node| match votes.0.get(at) {
        Some(Answer::Done(_)) | None => false,
        Some(Answer::Unknown(_)) => true,
        Some(Answer::Refused(_)) => node.may_hold(claim.owner),
    });
    Answer::Done(if is_lost {
        Release::NotHeld { by: votes.other_holder() }
    } else {
        Release::Freed { others: votes.others() }
    })
}

/// The answers to a release that nobody waits for, as they come in; the last one settles it.
pub(super) struct Gathering {
    keeper: Arc<Keeper>,
    claim: Claim,
    state: Mutex<State>,
}

struct State {
    answers: Vec<Option<Answer<Release>>>,
    done: Option<Sink>,
}

impl Gathering {
    pub(super) fn new(keeper: &Arc<Keeper>, claim: &Claim, done: Sink) -> Arc<Gathering> {
        let answers = keeper.places().iter().map(|_| None).collect();
        let state = Mutex::new(State { answers, done: Some(done) });
        Arc::new(Gathering { keeper: Arc::clone(keeper), claim: claim.clone(), state })
    }

    pub(super) fn take(&self, at: usize, answer: Answer<Release>) {
        let answer = match self.keeper.node(at) {
            Some(node) => self.keeper.noted(node, &self.claim, answer),
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
        done(released(&self.keeper, &self.claim, 0, &votes));
    }
}

impl fmt::Debug for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathering").field("claim", &self.claim).finish_non_exhaustive()
    }
}
