//! The store of a small world, and the requests to it.

use super::driver::{Attempt, Checked, Effect, Event, Said};
use super::world::Rules;
use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Request {
    Attempt { thread: usize, number: Number, caches: bool, waits: bool, sent: Moment },
    Count { id: Id, count: u32, sent: Moment },
    Release { id: Id, left: u32, waits: bool },
    HandOff { from: Id, to: usize, number: Number, waits: bool, sent: Moment },
    Renew { id: Id, sent: Moment },
    Check { id: Id },
    CleanUp { number: Number },
    LeaveWaitQueue,
}

impl Request {
    /// The request of an effect; `None`: the driver carries it out without one.
    pub(super) fn of(effect: Effect, sent: Moment) -> Option<Request> {
        Some(match effect {
            Effect::Ask { thread, number, caches, waits } => {
                Request::Attempt { thread, number, caches, waits, sent }
            }
            Effect::AskCount { id, count } => Request::Count { id, count, sent },
            Effect::HandOff { from, to, number, waits } => Request::HandOff { from, to, number, waits, sent },
            Effect::Release { id, left, waits } => Request::Release { id, left, waits },
            Effect::Renew { id } => Request::Renew { id, sent },
            Effect::Check { id } => Request::Check { id },
            Effect::LeaveWaitQueue { .. } => Request::LeaveWaitQueue,
            Effect::CleanUp { .. } | Effect::Lost { .. } => return None,
        })
    }

    /// A release whose answer any thread reads.
    pub(super) fn is_settled_by_others(&self) -> bool {
        matches!(self, Request::Release { waits: false, .. })
    }

    /// The connection that carries the request: that of callers, or that of the watchdog.
    pub(super) fn wire(&self) -> usize {
        usize::from(matches!(self, Request::Renew { .. } | Request::Check { .. } | Request::CleanUp { .. }))
    }

    pub(super) fn sent(&mut self) -> Option<&mut Moment> {
        match self {
            Request::Attempt { sent, .. }
            | Request::Count { sent, .. }
            | Request::HandOff { sent, .. }
            | Request::Renew { sent, .. } => Some(sent),
            _ => None,
        }
    }

    /// The number that owns the lock if the request is carried out.
    pub(super) fn grants(&self) -> Option<Number> {
        match self {
            Request::Attempt { number, .. } | Request::HandOff { number, .. } => Some(*number),
            _ => None,
        }
    }

    /// The number whose hold the request needs, or ends.
    pub(super) fn concerns(&self) -> Option<Number> {
        match self {
            Request::Attempt { .. } | Request::LeaveWaitQueue => None,
            Request::Count { id, .. }
            | Request::Release { id, .. }
            | Request::HandOff { from: id, .. }
            | Request::Renew { id, .. }
            | Request::Check { id } => Some(id.number),
            Request::CleanUp { number } => Some(*number),
        }
    }

    /// Whether the request renews an earlier hold under the number of `hold`.
    pub(super) fn renews_another(&self, hold: Id) -> bool {
        matches!(self, Request::Renew { id, .. } if id.number == hold.number && id.serial != hold.serial)
    }

    pub(super) fn ends(&self, owner: Number) -> bool {
        match self {
            Request::Release { id, left: 0, .. } | Request::HandOff { from: id, .. } => id.number == owner,
            Request::CleanUp { number } => *number == owner,
            _ => false,
        }
    }

    /// The event of an answer: `attempt` for an attempt, `answer` for other requests. `None`: no thread reads
    /// the answer, or the clean-ups do.
    fn event(self, attempt: Attempt, answer: Said) -> Option<Event> {
        Some(match self {
            Request::Attempt { thread, number, sent, .. } => {
                Event::Answer { thread, number, sent, answer: attempt }
            }
            Request::Count { id, sent, .. } => Event::Counted { id, sent, answer },
            Request::HandOff { from, to, number, waits, sent } => {
                Event::HandoffAnswer { from, to, number, waits, sent, answer }
            }
            Request::Renew { id, sent } => Event::RenewAnswer { id, sent, answer },
            Request::Check { id } => Event::CheckAnswer { id, answer: Checked::Unknown },
            Request::Release { id, waits, .. } => Event::ReleaseAnswer { id, waits, answer },
            // Only the answer matters: a clean-up is modelled as a release of no hold.
            Request::CleanUp { number } => {
                Event::ReleaseAnswer { id: Id { serial: 0, number }, waits: false, answer }
            }
            Request::LeaveWaitQueue => return None,
        })
    }

    /// No answer came.
    pub(super) fn unanswered(self) -> Option<Event> {
        self.event(Attempt::Unknown, Said::Unknown)
    }

    /// The event of a refusal, if the machine distinguishes it from a missing answer.
    pub(super) fn refused(self) -> Option<Event> {
        let is_told = matches!(self, Request::Attempt { .. } | Request::HandOff { .. });
        self.event(Attempt::Refused, Said::Refused).filter(|_| is_told)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Store {
    pub(super) owner: Option<(usize, Number)>,
    count: u32,
    /// The ticks until the lease ends.
    lease: u64,
    /// The next waiting client sends a recall to the owner.
    sends_recall: bool,
    pub(super) queue: Vec<usize>,
    /// A free lock is reserved for this client for this number of ticks.
    reserved: Option<(usize, u64)>,
    /// Hand-offs within one client while others stood in the queue.
    pub(super) passes: u32,
}

/// The clients that get a message besides the answer: the one that is next, and one that gets a recall.
pub(super) type Told = (Option<usize>, Option<usize>);

impl Store {
    pub(super) fn take(&mut self, client: usize, request: Request, rules: &Rules) -> (Option<Event>, Told) {
        let is_held = request.concerns().is_some_and(|number| self.owner == Some((client, number)));
        let (mut queued, mut told) = (None, (None, None));
        match request {
            Request::Attempt { number, caches, waits, .. } => {
                (queued, told.1) = self.attempt(client, number, (caches, waits), rules);
            }
            Request::Release { left, .. } if left > 0 => self.count = if is_held { left } else { self.count },
            Request::Release { .. } | Request::CleanUp { .. } if is_held => {
                self.passes = 0;
                told.0 = self.free();
            }
            Request::HandOff { number, .. } if is_held => {
                self.passes += u32::from(!self.queue.is_empty());
                self.own(client, number, 1, rules);
            }
            Request::Count { id, count, .. } if is_held => {
                let sends_recall = self.sends_recall;
                self.own(client, id.number, count, rules);
                self.sends_recall = sends_recall;
            }
            Request::Renew { .. } if is_held => self.lease = length(rules),
            Request::Check { id } => {
                let answer = match is_held {
                    false => Checked::NotHeld,
                    true if self.queue.is_empty() => Checked::Unwanted,
                    true => Checked::Wanted,
                };
                return (Some(Event::CheckAnswer { id, answer }), told);
            }
            Request::LeaveWaitQueue => {
                self.queue.retain(|other| *other != client);
                if self.reserved.is_some_and(|(other, _)| other == client) {
                    told.0 = self.free();
                }
            }
            _ => {}
        }
        let attempt = queued.map_or(Attempt::Busy, |queued| Attempt::Granted { queued });
        (request.event(attempt, if is_held { Said::Yes } else { Said::No }), told)
    }

    fn own(&mut self, client: usize, number: Number, count: u32, rules: &Rules) {
        (self.owner, self.count, self.lease) = (Some((client, number)), count, length(rules));
        self.sends_recall = false;
    }

    /// `Some`: granted, with the number of clients in the queue. Also returns the client that gets a recall.
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
        // A try takes the lock although it is reserved for another client.
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

    /// Frees the lock; returns the client that is next.
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
