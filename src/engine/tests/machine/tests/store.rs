//! The store of a small world, and the requests to it.

use crate::engine::tests::machine::*;
use crate::time::Moment;

/// A request on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Request {
    Attempt { ticket: TicketId, number: Number, caches: bool, sent: Moment },
    Count { thread: Thread, number: Number, count: u32, sent: Moment },
    Release { thread: Thread, number: Number, left: u32, waits: bool },
    HandOff { from: Number, to: Number, ticket: TicketId, sent: Moment },
    Renew { number: Number, sent: Moment },
    Check { number: Number },
    CleanUp { number: Number },
    LeaveWaitQueue,
}

impl Request {
    /// A release whose answer is read by whichever thread reads next.
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
            Request::Attempt { number, .. } | Request::HandOff { to: number, .. } => Some(*number),
            _ => None,
        }
    }

    /// The number whose hold the request needs, or ends.
    pub(super) fn concerns(&self) -> Option<Number> {
        match self {
            Request::Attempt { .. } | Request::LeaveWaitQueue => None,
            Request::Count { number, .. }
            | Request::Release { number, .. }
            | Request::HandOff { from: number, .. }
            | Request::Renew { number, .. }
            | Request::Check { number }
            | Request::CleanUp { number } => Some(*number),
        }
    }

    pub(super) fn ends(&self, owner: Number) -> bool {
        match self {
            Request::Release { number, left: 0, .. }
            | Request::HandOff { from: number, .. }
            | Request::CleanUp { number } => *number == owner,
            _ => false,
        }
    }

    /// The event of an answer: of an attempt `attempt`, of other requests `answer`.
    fn event(self, attempt: Attempt, answer: Said) -> Option<Event> {
        Some(match self {
            Request::Attempt { ticket, number, sent, .. } => {
                Event::Answer { ticket, number, sent, answer: attempt }
            }
            Request::Count { number, sent, .. } => Event::Counted { number, sent, answer },
            Request::HandOff { ticket, sent, .. } => Event::HandoffAnswer { ticket, sent, answer },
            Request::Renew { number, sent } => Event::RenewAnswer { number, sent, answer },
            Request::Check { number } => Event::CheckAnswer { number, answer: Checked::Unknown },
            Request::Release { number, .. } | Request::CleanUp { number } => {
                Event::ReleaseAnswer { number, answer }
            }
            Request::LeaveWaitQueue => return None,
        })
    }

    /// No answer came.
    pub(super) fn unanswered(self) -> Option<Event> {
        self.event(Attempt::Unknown, Said::Unknown)
    }

    /// The store refused the request, if the machine tells that from no answer.
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
    /// The next client that waits sends a recall to the owner.
    sends_recall: bool,
    pub(super) queue: Vec<usize>,
    /// A free lock is left to this client for so many ticks.
    reserved: Option<(usize, u64)>,
    /// Hand-offs within one client while others stood in the queue.
    pub(super) passes: u32,
}

/// The messages of the store besides the answer: to the client that is next, and a recall.
pub(super) type Told = (Option<usize>, Option<usize>);

impl Store {
    /// Carries a request out.
    pub(super) fn take(&mut self, client: usize, request: Request, rules: &Rules) -> (Option<Event>, Told) {
        let is_held = request.concerns().is_some_and(|number| self.owner == Some((client, number)));
        let (mut queued, mut told) = (None, (None, None));
        match request {
            Request::Attempt { number, caches, .. } => {
                (queued, told.1) = self.attempt(client, number, caches, rules);
            }
            Request::Release { left, .. } if left > 0 => self.count = if is_held { left } else { self.count },
            Request::Release { .. } | Request::CleanUp { .. } if is_held => {
                self.passes = 0;
                told.0 = self.free();
            }
            Request::HandOff { to, .. } if is_held => {
                self.passes += u32::from(!self.queue.is_empty());
                self.own(client, to, 1, rules);
            }
            Request::Count { number, count, .. } if is_held => {
                let sends_recall = self.sends_recall;
                self.own(client, number, count, rules);
                self.sends_recall = sends_recall;
            }
            Request::Renew { .. } if is_held => self.lease = length(rules),
            Request::Check { number } => {
                let answer = match is_held {
                    false => Checked::NotHeld,
                    true if self.queue.is_empty() => Checked::Unwanted,
                    true => Checked::Wanted,
                };
                return (Some(Event::CheckAnswer { number, answer }), told);
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

    /// `Some`: granted, as so many stood in the queue. And the client that gets a recall.
    fn attempt(
        &mut self,
        client: usize,
        number: Number,
        caches: bool,
        rules: &Rules,
    ) -> (Option<u32>, Option<usize>) {
        if self.owner == Some((client, number)) {
            self.own(client, number, 1, rules);
            return (Some(0), None);
        }
        if self.owner.is_none() && self.reserved.is_none_or(|(other, _)| other == client) {
            self.passes = 0;
            let stood = self.reserved.take().is_some() || self.queue.contains(&client);
            self.queue.retain(|other| *other != client);
            self.own(client, number, 1, rules);
            self.sends_recall = caches;
            return (Some(if stood { self.queue.len() as u32 + 1 } else { 0 }), None);
        }
        if !self.queue.contains(&client) {
            self.queue.push(client);
        }
        let owner = self.owner.filter(|_| std::mem::take(&mut self.sends_recall));
        (None, owner.map(|(client, _)| client))
    }

    /// Frees the lock; the client that is next.
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
