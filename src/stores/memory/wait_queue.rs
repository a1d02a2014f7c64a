//! The wait queue of clients that want permits, or the write half of a read-write lock.
//!
//! Clients are served in order of arrival, as on Redis. After a release, what is free is reserved for the
//! notified clients, until their requests can have arrived.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ident::ClientId;
use crate::seam::{Attempt, Claim, ListensFor, PLACE_LASTS, QueueMode};
use crate::time::Moment;

pub(super) const RESERVED_FOR: Duration = Duration::from_millis(10);

/// Waiters in order of arrival, each with the time until which its place lasts unless it asks again.
pub(super) struct TimedQueue<T>(VecDeque<(T, Moment)>);

impl<T> Default for TimedQueue<T> {
    fn default() -> TimedQueue<T> {
        TimedQueue(VecDeque::new())
    }
}

impl<T: Copy + PartialEq> TimedQueue<T> {
    pub(super) fn expire(&mut self, now: Moment) {
        self.0.retain(|(_, until)| *until > now);
    }

    /// Removes expired waiters at the front only: others keep their places in case they ask again.
    pub(super) fn expire_first(&mut self, now: Moment) {
        while self.0.front().is_some_and(|(_, until)| *until <= now) {
            self.0.pop_front();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (T, Moment)> {
        self.0.iter().copied()
    }

    pub(super) fn first(&self) -> Option<T> {
        self.0.front().map(|(first, _)| *first)
    }

    pub(super) fn next(&mut self, now: Moment) -> Option<T> {
        self.expire_first(now);
        self.0.pop_front().map(|(first, _)| first)
    }

    pub(super) fn join_or_renew(&mut self, one: T, until: Moment) {
        match self.0.iter_mut().find(|(other, _)| *other == one) {
            Some(place) => place.1 = until,
            None => self.0.push_back((one, until)),
        }
    }

    /// Appends waiters, which must not have a place yet.
    pub(super) fn join(&mut self, all: impl IntoIterator<Item = T>, until: Moment) {
        self.0.extend(all.into_iter().map(|one| (one, until)));
    }

    pub(super) fn leave(&mut self, one: T) -> bool {
        let before = self.0.len();
        self.0.retain(|(other, _)| *other != one);
        self.0.len() < before
    }
}

struct Place {
    client: ClientId,
    since: Moment,
    alive_until: Moment,
}

#[derive(Default)]
pub(super) struct WaitQueue {
    places: Vec<Place>,
    /// The notified clients, each with the end of its reservation.
    next: TimedQueue<ClientId>,
}

impl WaitQueue {
    pub(super) fn expire(&mut self, now: Moment) {
        self.places.retain(|place| place.alive_until > now);
        self.next.expire(now);
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

    pub(super) fn first_since(&self) -> Option<Moment> {
        self.places.first().map(|place| place.since)
    }

    pub(super) fn kept_for_others(&self, client: Option<ClientId>) -> usize {
        self.next.iter().filter(|(next, _)| Some(*next) != client).count()
    }

    /// Refuses the claim. If it waits, its client joins the queue, except in the modes `Barges` and `Yields`.
    pub(super) fn refuse(&mut self, claim: &Claim, now: Moment, retry_after: Option<Duration>) -> Attempt {
        if !claim.waits || matches!(claim.queue_mode, QueueMode::Barges | QueueMode::Yields) {
            return Attempt::Busy { retry_after };
        }
        let (client, alive_until) = (claim.owner.client(), now.plus(PLACE_LASTS));
        self.next.leave(client);
        match self.places.iter_mut().find(|place| place.client == client) {
            Some(place) => place.alive_until = alive_until,
            None => {
                let since = now.minus(claim.waited);
                let at = self.places.partition_point(|place| place.since <= since);
                self.places.insert(at, Place { client, since, alive_until });
            }
        }
        let retry_after = retry_after.filter(|_| self.first() == Some(client));
        Attempt::InWaitQueue { retry_after, listens_for: ListensFor::OwnTurn, watches: false }
    }

    /// The client's position in the queue, counted from one; zero if it has none.
    pub(super) fn position_of(&self, client: ClientId) -> usize {
        self.places.iter().position(|place| place.client == client).map_or(0, |at| at + 1)
    }

    pub(super) fn leave(&mut self, client: ClientId) {
        self.places.retain(|place| place.client != client);
        self.next.leave(client);
    }

    /// Takes the clients to notify, one for each free, unreserved permit, and leaves out the first `skip`.
    pub(super) fn take_next(&mut self, free: usize, skip: usize, now: Moment) -> Vec<ClientId> {
        let left = free.saturating_sub(self.next.len());
        let told: Vec<ClientId> =
            self.places.iter().skip(skip).take(left).map(|place| place.client).collect();
        self.places.retain(|place| !told.contains(&place.client));
        self.next.join(told.iter().copied(), now.plus(RESERVED_FOR));
        told
    }
}
