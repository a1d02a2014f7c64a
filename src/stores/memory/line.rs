//! The clients that wait for what several may have: the writers of a read-write lock, those who want permits.
//!
//! First come first, as on Redis: what is freed is kept for the clients that are notified of it, for as long as
//! a message and a request take.

use std::time::Duration;

use crate::ident::ClientId;
use crate::seam::{Attempt, Claim, ListensFor, PLACE_LASTS, QueueMode};
use crate::time::Moment;

/// A reservation for a notified client lasts this long.
pub(super) const KEPT: Duration = Duration::from_millis(10);

struct Place {
    client: ClientId,
    since: Moment,
    alive_until: Moment,
}

/// First come first.
#[derive(Default)]
pub(super) struct Line {
    places: Vec<Place>,
    /// Those that were notified, and until when something is kept for each.
    next: Vec<(ClientId, Moment)>,
}

impl Line {
    pub(super) fn expire(&mut self, now: Moment) {
        self.places.retain(|place| place.alive_until > now);
        self.next.retain(|(_, until)| *until > now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.next.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn first(&self) -> Option<ClientId> {
        self.places.first().map(|place| place.client)
    }

    /// Since when the first has waited.
    pub(super) fn first_since(&self) -> Option<Moment> {
        self.places.first().map(|place| place.since)
    }

    /// The number of reservations for other clients.
    pub(super) fn kept_for_others(&self, client: Option<ClientId>) -> usize {
        self.next.iter().filter(|(next, _)| Some(*next) != client).count()
    }

    /// The answer to a claim that others keep out, which stands in the line from now on if it waits.
    pub(super) fn stand(&mut self, claim: &Claim, now: Moment, retry_after: Option<Duration>) -> Attempt {
        if !claim.waits || matches!(claim.queue_mode, QueueMode::Barges | QueueMode::Yields) {
            return Attempt::Busy { retry_after };
        }
        let (client, alive_until) = (claim.owner.client(), now.plus(PLACE_LASTS));
        self.next.retain(|(next, _)| *next != client);
        match self.places.iter_mut().find(|place| place.client == client) {
            Some(place) => place.alive_until = alive_until,
            None => {
                let since = now.minus(claim.waited);
                let at = self.places.partition_point(|place| place.since <= since);
                self.places.insert(at, Place { client, since, alive_until });
            }
        }
        let is_first = self.places.first().is_some_and(|place| place.client == client);
        let retry_after = retry_after.filter(|_| is_first);
        Attempt::InWaitQueue { retry_after, listens_for: ListensFor::OwnTurn, watches: false }
    }

    /// How many stand before this client, and itself.
    pub(super) fn up_to(&self, client: ClientId) -> usize {
        self.places.iter().position(|place| place.client == client).map_or(0, |at| at + 1)
    }

    pub(super) fn leave(&mut self, client: ClientId) {
        self.places.retain(|place| place.client != client);
        self.next.retain(|(next, _)| *next != client);
    }

    /// The clients to notify of so many that are free: the first in the line behind `behind` of them.
    pub(super) fn tell(&mut self, free: usize, behind: usize, now: Moment) -> Vec<ClientId> {
        let left = free.saturating_sub(self.next.len());
        let told: Vec<ClientId> =
            self.places.iter().skip(behind).take(left).map(|place| place.client).collect();
        self.places.retain(|place| !told.contains(&place.client));
        self.next.extend(told.iter().map(|client| (*client, now.plus(KEPT))));
        told
    }
}
