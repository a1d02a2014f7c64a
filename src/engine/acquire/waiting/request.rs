//! The request of one call to the store: under which number it asks, and what a grant is worth.

use std::sync::Arc;
use std::time::Duration;

use super::Waiting;
use crate::engine::acquire::lock_config::LockConfig;
use crate::engine::lock::CacheTerms;
use crate::ident::unbound_number;
use crate::inspect::Location;
use crate::seam::{Bound, Claim, HoldNote, Kind};
use crate::time::{Moment, window};

pub(super) fn is_late(lease: Duration, took: Duration) -> bool {
    took > window(lease) * 3 / 4
}

impl Waiting<'_> {
    /// The claim of this caller, as it waits now. Made anew for each attempt: the number may have been given
    /// up since the last.
    pub(super) fn claim(&mut self) -> Claim {
        let Waiting { engine, call, .. } = *self;
        let number = engine.next_number(&self.capabilities, self.thread, &mut self.unbound);
        let claim = engine.claim(&self.capabilities, (call.kind, call.name), number, self.lease);
        let LockConfig { writers_first, max_hold, leads, .. } = call.config;
        let note = max_hold.map(|max_hold| HoldNote { max_hold, place: Arc::new(Location::here()) });
        // Counted first, asked second: a recall that arrives from here on may concern this claim's hold.
        self.heard = if call.caches() { engine.heard(call.local, &claim) } else { None };
        Claim {
            caches: self.heard.is_some() && self.unbound.is_none(),
            waits: self.wait_mode.waits(),
            queue_mode: self.wait_mode.queue_mode(),
            listens_for: self.listening.listens_for(),
            units: call.units,
            leads,
            writers_first,
            waited: self.waited(),
            note,
            wants_fence: call.wants_fence(),
            ..claim
        }
    }

    fn waited(&self) -> Duration {
        let Waiting { engine, call, thread, .. } = *self;
        match call.kind {
            Kind::Read if !call.by_thread && engine.live_hold(Kind::Read, call.name, thread).is_some() => {
                Duration::MAX
            }
            Kind::Read | Kind::Write | Kind::Semaphore | Kind::Permits if self.attempts > 0 => {
                // At least 1 ms, the unit of the stores: 0 stands for a first attempt.
                engine.clock.now().since(self.begun).max(Duration::from_millis(1))
            }
            _ => Duration::ZERO,
        }
    }

    /// `queued`: so many stood in the queue out of which the grant came.
    pub(super) fn cache_terms(&self, claim: &Claim, queued: u32) -> Option<CacheTerms> {
        let heard = self.heard.filter(|_| claim.caches)?;
        Some(CacheTerms { heard, is_wanted: queued > 1 }) // the client itself stood in it
    }

    pub(super) fn deadline(&self, sent: Moment) -> Moment {
        sent.plus(self.engine.options.command_timeout).min(self.latest)
    }

    /// The window of a grant that was asked for at `sent` and read just now: since when its lease counts, and
    /// what ends the hold besides. `None`: the grant cannot be counted on, and is to be undone.
    pub(super) fn window_of(&self, claim: &Claim, sent: Moment) -> Option<(Moment, Option<Arc<dyn Bound>>)> {
        // Asked once for each grant, and never of a claim that has none: the hold keeps the answer.
        let bound = self.capabilities.sessions.and_then(|sessions| sessions.bound(claim));
        let bound_until = bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        let since = self.renewed_if_late(claim, sent)?;
        // A failed release under this number will be repeated, and must not find this hold. A release of
        // another lock cannot, except that the halves of a read-write lock share one number.
        let number = claim.owner.number();
        let is_given_up = self.unbound.is_none()
            && self.thread.number() != number
            && (self.call.local.state().retired.has(number)
                || claim.kind.other_half().is_some()
                || self.capabilities.majority.is_some());
        let is_open = self.engine.clock.now() < bound_until.min(since.plus(window(claim.lease)));
        (is_open && !is_given_up).then_some((since, bound))
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

    pub(super) fn give_up_number(&mut self, claim: &Claim) {
        match &mut self.unbound {
            Some(number) => *number = unbound_number(),
            None => {
                self.call.local.state().retired.add(claim.owner.number());
                self.thread.retire(claim.owner.number());
            }
        }
    }
}
