//! A lock that is held in this process, and what it says of itself.

use crate::ident::Owner;
use crate::inspect::Holder;
use crate::seam::{Claim, HoldNote};
use crate::time::Moment;

pub(super) struct HeldLock {
    pub(super) is_token: bool,
    pub(super) owner: Owner,
    pub(super) count: u32,
    pub(super) until: Moment,
    pub(super) since: Moment,
    pub(super) note: Option<HoldNote>,
}

impl HeldLock {
    pub(super) fn new(claim: &Claim, count: u32, now: Moment) -> HeldLock {
        HeldLock {
            is_token: claim.kind.is_token(),
            owner: claim.owner,
            count,
            until: now.plus(claim.lease),
            since: now,
            note: claim.note.clone(),
        }
    }

    pub(super) fn shown(&self, now: Moment) -> Holder {
        Holder {
            hold_count: Some(self.count),
            remaining: Some(self.until.since(now)),
            held_for: Some(now.since(self.since)),
            ends_within: self.note.as_ref().map(|note| self.since.plus(note.max_hold).since(now)),
            location: self.note.as_ref().map(|note| note.place.as_ref().clone()),
            ..Holder::new(self.owner.to_string())
        }
    }
}
