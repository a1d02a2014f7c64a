//! The events of a client in a small world, and the effects that they leave.

use super::world::moment;
use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Want { thread: usize, caches: bool, once: bool },
    // A thread takes its next step: it joins the queue or tries, falls asleep, leaves, or learns an outcome.
    GoOn(usize),
    // A sleeping thread was woken, or its wake-up time has come.
    Look(usize),
    GiveUp(usize),
    End { id: Id, dropped: bool },
    Sent(Effect),
    // The request was not sent: the store cannot do it, or the thread panicked.
    NotSent(Effect),
    Answer(Request, Answer),
    // A message came: another process released the lock, or this client is next.
    Message,
    // The background threads have something to do, or a recall has come.
    Time,
}

/// An answer, and a number. For a grant: how many clients are in the store's wait queue, with this one; 0 if
/// this one had no place there. For a check: 1 if any client waits.
pub(super) type Answer = (Said, u32);

/// `Yes`: the owner number in the request has the lock, or had it before a release or hand-off. `No`: it
/// has not. `Refused`: the request changed nothing. `Unknown`: no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Said {
    Yes,
    No,
    Refused,
    Unknown,
}

/// The work that an event leaves for after the mutex's unlock: a request, a clean-up, or the report of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    Ask { thread: usize, number: Number, caches: bool, waits: bool },
    // A re-entry, after which the store counts `count` levels.
    AskCount { id: Id, count: u32 },
    // `waits`: the releaser waits for the outcome.
    HandOff { from: Id, to: usize, number: Number, waits: bool },
    Release { id: Id, left: u32, waits: bool },
    Renew { id: Id },
    Check { id: Id },
    CleanUp { number: Number },
    LeaveWaitQueue { thread: usize },
    Lost { id: Id },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) effect: Effect,
    /// When the request was sent, if a window begins then; otherwise zero, so that more states are equal.
    pub(super) sent: Moment,
}

impl Request {
    pub(super) fn new(effect: Effect, sent: Moment) -> Request {
        let may_prolong = matches!(
            effect,
            Effect::Ask { .. } | Effect::AskCount { .. } | Effect::HandOff { .. } | Effect::Renew { .. }
        );
        Request { effect, sent: if may_prolong { sent } else { moment(0) } }
    }

    pub(super) fn sent(&mut self) -> Option<&mut Moment> {
        Some(&mut self.sent).filter(|sent| **sent != moment(0))
    }

    /// Whether this is a release whose releaser does not wait, so that any thread may read the answer.
    pub(super) fn is_settled_by_others(&self) -> bool {
        matches!(self.effect, Effect::Release { waits: false, .. })
    }

    /// Whether the explorer lets the store refuse the request, besides losing its answer.
    pub(super) fn can_be_refused(&self) -> bool {
        self.grants().is_some()
    }

    /// The connection that carries the request: that of callers, or that of the watchdog.
    pub(super) fn wire(&self) -> usize {
        usize::from(matches!(
            self.effect,
            Effect::Renew { .. } | Effect::Check { .. } | Effect::CleanUp { .. }
        ))
    }

    /// The owner number that has the lock once the request is carried out; `None`: the request grants
    /// nothing.
    pub(super) fn grants(&self) -> Option<Number> {
        match self.effect {
            Effect::Ask { number, .. } | Effect::HandOff { number, .. } => Some(number),
            _ => None,
        }
    }

    /// The owner number whose hold the request needs, or ends; `None`: it needs and ends none.
    pub(super) fn concerns(&self) -> Option<Number> {
        match self.effect {
            Effect::Ask { .. } | Effect::LeaveWaitQueue { .. } | Effect::Lost { .. } => None,
            Effect::AskCount { id, .. }
            | Effect::Release { id, .. }
            | Effect::HandOff { from: id, .. }
            | Effect::Renew { id }
            | Effect::Check { id } => Some(id.number),
            Effect::CleanUp { number } => Some(number),
        }
    }

    /// Whether the request renews another hold that has the same number as `hold`.
    pub(super) fn renews_another(&self, hold: Id) -> bool {
        matches!(self.effect, Effect::Renew { id } if id.number == hold.number && id.serial != hold.serial)
    }

    pub(super) fn ends(&self, owner: Number) -> bool {
        match self.effect {
            Effect::Release { id, left: 0, .. } | Effect::HandOff { from: id, .. } => id.number == owner,
            Effect::CleanUp { number } => number == owner,
            _ => false,
        }
    }
}
