//! The request of one call to the store: under which number it asks, and what an answer is worth.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::AcquireCall;
use crate::engine::acquire::outcome::AttemptOutcome;
use crate::engine::acquire::terms::Terms;
use crate::engine::hold::caching::KeepTerms;
use crate::ident::{ThreadMark, unbound_number};
use crate::inspect::Location;
use crate::seam::{Answer, Attempt, Claim, Failure, HoldNote, ListensFor, Turn};
use crate::time::{Moment, window};

/// Whether an answer that took so long leaves less than a quarter of the lease.
pub(super) fn is_late(lease: Duration, took: Duration) -> bool {
    took > window(lease) * 3 / 4
}

/// The request of one call, made again and again if need be.
pub(crate) struct Request<'a> {
    pub(super) engine: &'a Engine,
    pub(super) call: &'a AcquireCall<'a>,
    pub(super) thread: &'a Arc<ThreadMark>,
    pub(super) lease: Duration,
    pub(super) begun: Moment,
    /// By when the call is to return: a command time-out after the caller's time.
    pub(super) latest: Moment,
    /// The owner number, where the owner is not the thread.
    pub(super) unbound: Option<u64>,
    /// Of a hold that is to be kept until others ask: the recalls that had come before the last claim was
    /// made.
    heard: Option<u64>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        call: &'a AcquireCall<'a>,
        lease: Duration,
        thread: &'a Arc<ThreadMark>,
        begun: Moment,
    ) -> Request<'a> {
        // A token is compared, not counted: were it reused, a late release could free the next hold.
        let is_threads = call.by_thread && !call.kind.is_token();
        let unbound = (!is_threads).then(|| call.number.unwrap_or_else(unbound_number));
        let latest = call.limit.moment(begun).max(begun).plus(engine.options.command_timeout);
        Request { engine, call, thread, lease, begun, latest, unbound, heard: None }
    }

    /// The same under a number of its own, although the owner is the thread: what is asked by another way
    /// than the thread's other requests about the lock could come before them, and is not to meet what they
    /// are about.
    pub(crate) fn under(mut self, number: u64) -> Request<'a> {
        self.unbound = Some(number);
        self
    }

    /// The claim of this caller. Made anew for each attempt: the number may have been given up since the
    /// last.
    pub(super) fn claim(&mut self, waits: bool, turn: Turn, listens_for: ListensFor) -> Claim {
        let (engine, call) = (self.engine, self.call);
        let number = engine.next_number(self.thread, &mut self.unbound);
        let claim = engine.claim(call.kind, call.name, number, self.lease);
        let Terms { writers_first, max_hold, leads, .. } = call.terms;
        let note = max_hold.map(|max_hold| HoldNote { max_hold, place: Arc::new(Location::here()) });
        // Counted first, asked second: a recall that comes from here on may be about this claim's hold.
        self.heard = if call.keeps() { engine.heard(call.entry, &claim) } else { None };
        Claim {
            keeps: self.heard.is_some() && self.unbound.is_none(),
            waits,
            turn,
            listens_for,
            units: call.units,
            leads,
            writers_first,
            note,
            wants_fence: call.wants_fence(),
            ..claim
        }
    }

    /// The terms on which the hold of a grant is kept until others ask for it, out of a line in which so many
    /// stood. `None`: it is not.
    pub(super) fn keep_terms(&self, claim: &Claim, in_line: u32) -> Option<KeepTerms> {
        let heard = self.heard.filter(|_| claim.keeps)?;
        Some(KeepTerms { heard, is_wanted: in_line > 1 }) // the client itself stood in it
    }

    /// The claim under which another thread may hand the lock to this one: whoever is handed it keeps it for
    /// a turn at most, as others here want it.
    pub(super) fn to_be_handed(&self, claim: Claim) -> Claim {
        Claim { keeps: false, ..claim }
    }

    /// By when the answer to an attempt is to come that is sent at `sent`.
    pub(super) fn deadline(&self, sent: Moment) -> Moment {
        sent.plus(self.engine.options.command_timeout).min(self.latest)
    }

    /// The outcome of an answer that was read just now, to an attempt that was sent at `sent`.
    pub(super) fn judge(&self, claim: &Claim, sent: Moment, answer: Answer<Attempt>) -> AttemptOutcome {
        let engine = self.engine;
        let is_granted = matches!(answer, Ok(Attempt::Granted { .. }));
        // Asked once for each grant, and never of a claim that has none: the hold keeps the answer.
        let bound = match engine.store.capabilities().sessions {
            Some(sessions) if is_granted => sessions.bound(claim),
            _ => None,
        };
        let bound_until = bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        let since = if is_granted { self.renewed_if_late(claim, sent) } else { Some(sent) };
        let is_open = |since: &Moment| engine.clock.now() < bound_until.min(since.plus(window(claim.lease)));
        // A release under this number failed meanwhile, and will be repeated: it must not find this hold. Of
        // another lock it finds nothing here; but the halves of a read-write lock are to be under one number.
        let number = claim.owner.number();
        let is_given_up = self.unbound.is_none()
            && self.thread.number() != number
            && (self.call.entry.given_up.has(number)
                || claim.kind.other_half().is_some()
                || engine.store.capabilities().majority.is_some());
        let answer = if claim.kind.only_asks() { answer.map_err(Failure::of_reading) } else { answer };
        AttemptOutcome::of(answer, since.filter(is_open).filter(|_| !is_given_up), bound)
    }

    /// The moment from which the lease of a grant counts that was asked for at `sent`; `None`: it cannot be
    /// counted on. A grant of whose lease less than a quarter is left, since its thread waited for a
    /// connection, say, is renewed here: the watchdog would hardly come in time.
    fn renewed_if_late(&self, claim: &Claim, sent: Moment) -> Option<Moment> {
        let engine = self.engine;
        let now = engine.clock.now();
        let left = sent.plus(window(claim.lease)).since(now);
        let is_renewed = self.call.lease.is_renewed() && claim.kind.is_leased() && !claim.kind.only_asks();
        if !is_renewed || !is_late(claim.lease, now.since(sent)) {
            return Some(sent);
        }
        let renew = || engine.store.renew(std::slice::from_ref(claim), now.plus(left)).pop();
        (!left.is_zero() && matches!(renew(), Some(Ok(true)))).then_some(now)
    }

    /// Goes on under another number: something may yet come under that of `claim`.
    pub(super) fn give_up_number(&mut self, claim: &Claim) {
        match &mut self.unbound {
            Some(number) => *number = unbound_number(),
            None => {
                self.call.entry.given_up.add(claim.owner.number());
                self.thread.retire(claim.owner.number());
            }
        }
    }
}
