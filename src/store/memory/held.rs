//! A lock that is held in this process, and what it says of itself.

use super::MemoryAccess;
use crate::ident::Owner;
use crate::inspection::Holder;
use crate::lock::store::{Answer, Claim, HandOver, Notice};
use crate::time::Moment;

pub(super) struct Held {
    pub(super) is_token: bool,
    pub(super) owner: Owner,
    pub(super) count: u32,
    pub(super) until: Moment,
    /// What is told of it.
    pub(super) since: Moment,
    pub(super) notice: Option<Notice>,
}

impl Held {
    pub(super) fn new(claim: &Claim, count: u32, now: Moment) -> Held {
        Held {
            is_token: claim.kind.is_token(),
            owner: claim.owner,
            count,
            until: now.plus(claim.lease),
            since: now,
            notice: claim.notice.clone(),
        }
    }

    pub(super) fn shown(&self, now: Moment) -> Holder {
        Holder {
            holds: Some(self.count),
            remaining: Some(self.until.since(now)),
            held_for: Some(now.since(self.since)),
            ends_within: self.notice.as_ref().map(|notice| self.since.plus(notice.max_hold).since(now)),
            whereabouts: self.notice.as_ref().map(|notice| notice.place.as_ref().clone()),
            ..Holder::new(self.owner.to_string())
        }
    }
}

impl MemoryAccess {
    /// Has `to` hold the lock in place of `from`.
    pub(super) fn hand_over_now(&self, from: &Claim, to: &Claim, wants_fence: bool) -> Answer<HandOver> {
        let key = to.name.key();
        self.with(to.kind, &to.name, |state, now| match state.locks.get_mut(key) {
            Some(held) if held.owner == from.owner => {
                *held = Held::new(to, 1, now);
                HandOver::Granted { fence: wants_fence.then(|| state.next_fence(key, now)) }
            }
            _ => HandOver::Lost,
        })
    }
}
