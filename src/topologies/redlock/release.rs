//! The outcome of a release, with and without a caller that waits for it.

use std::fmt;
use std::sync::Arc;

use crate::seam::{Answer, Claim, Failure, Release, Sink};
use crate::sync::Mutex;
use crate::topologies::redlock::monitor::NodeMonitor;
use crate::topologies::redlock::votes::{Votes, say_release};

/// The result of the answers to a release. A hold on a server that did not answer is cleaned up later.
pub(super) fn released(
    monitor: &NodeMonitor,
    claim: &Claim,
    left: u32,
    votes: &Votes<Release>,
) -> Answer<Release> {
    if left > 0 {
        let still = votes.count(|release| *release == Release::StillHeld);
        return if still >= votes.majority() {
            Ok(Release::StillHeld)
        } else if votes.not_held() >= votes.veto() {
            Ok(Release::NotHeld { holder: votes.other_holder() })
        } else {
            votes.too_few("unlock", &monitor.places(), still > 0, say_release)
        };
    }
    let is_lost = votes.not_held() >= votes.veto();
    if !is_lost && votes.done().count() < votes.majority() {
        let freed = votes.count(|release| matches!(release, Release::Freed { .. }));
        return votes.too_few("unlock", &monitor.places(), freed > 0, say_release);
    }
    // Settled for the caller. A server that did not answer may hold it still, unless it was out when the hold
    // began.
    monitor.owe_where(claim, |at, node| match votes.0.get(at) {
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

/// The word of a server that has nothing of the hold.
pub(super) fn not_held() -> Release {
    Release::NotHeld { holder: None }
}

/// The answers to a release that nobody waits for, as they come in; the last one settles it.
pub(super) struct PendingRelease {
    monitor: Arc<NodeMonitor>,
    claim: Claim,
    /// The servers that do not count.
    uncounted: Vec<usize>,
    state: Mutex<ReleaseState>,
}

struct ReleaseState {
    answers: Vec<Option<Answer<Release>>>,
    done: Option<Sink>,
}

impl PendingRelease {
    pub(super) fn new(
        monitor: &Arc<NodeMonitor>,
        claim: &Claim,
        uncounted: Vec<usize>,
        done: Sink,
    ) -> Arc<PendingRelease> {
        let answers = monitor.places().iter().map(|_| None).collect();
        let state = Mutex::new(ReleaseState { answers, done: Some(done) });
        Arc::new(PendingRelease { monitor: Arc::clone(monitor), claim: claim.clone(), uncounted, state })
    }

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
        done.answer(released(&self.monitor, &self.claim, 0, &votes));
    }
}

impl fmt::Debug for PendingRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathering").field("claim", &self.claim).finish_non_exhaustive()
    }
}
