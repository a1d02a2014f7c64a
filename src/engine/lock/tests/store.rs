//! The store of a small world.

use super::event::{Answer, Effect, Request, Said};
use super::world::Rules;
use super::*;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Store {
    pub(super) owner: Option<(usize, Number)>,
    count: u32,
    /// The ticks until the lease ends.
    lease: u64,
    /// Whether the next waiting client sends a recall to the owner.
    sends_recall: bool,
    pub(super) queue: Vec<usize>,
    /// While the lock is free: the client for which it is reserved, and for how many more ticks.
    reserved: Option<(usize, u64)>,
    /// Number of hand-offs since the lock was last free, while other clients were in the queue.
    pub(super) passes: u32,
}

/// The clients that get a message besides the answer: the one that is next, and one that gets a recall.
pub(super) type Told = (Option<usize>, Option<usize>);

impl Store {
    pub(super) fn take(&mut self, client: usize, request: Request, rules: &Rules) -> (Answer, Told) {
        let is_held = request.concerns().is_some_and(|number| self.owner == Some((client, number)));
        let (mut said, mut queued) = (if is_held { Said::Yes } else { Said::No }, 0);
        let mut told = (None, None);
        match request.effect {
            Effect::Ask { number, caches, waits, .. } => {
                let (granted, recalled) = self.attempt(client, number, (caches, waits), rules);
                if let Some(clients) = granted {
                    (said, queued) = (Said::Yes, clients);
                }
                told.1 = recalled;
            }
            Effect::Release { left, .. } if left > 0 => self.count = if is_held { left } else { self.count },
            Effect::Release { .. } | Effect::CleanUp { .. } if is_held => {
                self.passes = 0;
                told.0 = self.free();
            }
            Effect::HandOff { number, .. } if is_held => {
                self.passes += u32::from(!self.queue.is_empty());
                self.own(client, number, 1, rules);
            }
            Effect::AskCount { id, count } if is_held => {
                let sends_recall = self.sends_recall;
                self.own(client, id.number, count, rules);
                self.sends_recall = sends_recall;
            }
            Effect::Renew { .. } if is_held => self.lease = length(rules),
            Effect::Check { .. } if is_held => queued = u32::from(!self.queue.is_empty()),
            Effect::LeaveWaitQueue { .. } => {
                self.queue.retain(|other| *other != client);
                if self.reserved.is_some_and(|(other, _)| other == client) {
                    told.0 = self.free();
                }
            }
            _ => {}
        }
        ((said, queued), told)
    }

    fn own(&mut self, client: usize, number: Number, count: u32, rules: &Rules) {
        (self.owner, self.count, self.lease) = (Some((client, number)), count, length(rules));
        self.sends_recall = false;
    }

    /// The first value is `Some` if granted: the number of clients in the queue with this one, or 0 if this
    /// one had no place. The second is the client that gets a recall.
    fn attempt(
        &mut self,
        client: usize,
        number: Number,
        (caches, waits): (bool, bool),
        rules: &Rules,
    ) -> (Option<u32>, Option<usize>) {
        if self.owner == Some((client, number)) {
            self.own(client, number, 1, rules);
            return (Some(0), None);
        }
        // A try also takes a lock that is reserved for another client.
        if self.owner.is_none() && self.reserved.is_none_or(|(other, _)| other == client || !waits) {
            self.passes = 0;
            let stood = self.reserved.take().is_some_and(|(other, _)| other == client)
                || self.queue.contains(&client);
            self.queue.retain(|other| *other != client);
            self.own(client, number, 1, rules);
            self.sends_recall = caches;
            return (Some(if stood { self.queue.len() as u32 + 1 } else { 0 }), None);
        }
        if !waits {
            return (None, None);
        }
        if !self.queue.contains(&client) {
            self.queue.push(client);
        }
        let owner = self.owner.filter(|_| std::mem::take(&mut self.sends_recall));
        (None, owner.map(|(client, _)| client))
    }

    /// Frees the lock, reserves it for the first client in the queue, and returns that client.
    pub(super) fn free(&mut self) -> Option<usize> {
        let next = (!self.queue.is_empty()).then(|| self.queue.remove(0));
        *self = Store {
            queue: std::mem::take(&mut self.queue),
            reserved: next.map(|next| (next, 1)),
            passes: self.passes,
            ..Store::default()
        };
        next
    }

    pub(super) fn tick(&mut self) {
        if self.owner.is_some() {
            self.lease -= 1;
            if self.lease == 0 {
                (self.owner, self.count, self.sends_recall) = (None, 0, false);
            }
        }
        self.reserved = self.reserved.and_then(|(client, left)| (left > 1).then_some((client, left - 1)));
    }
}

fn length(rules: &Rules) -> u64 {
    rules.lease.as_nanos() as u64
}
