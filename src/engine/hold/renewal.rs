//! Whether, when, and for which lease a hold is renewed.

use std::time::Duration;

use super::{Hold, State};
use crate::engine::pace::renewal_period;
use crate::seam::Claim;
use crate::time::{Moment, SHORTEST_LEASE, window};

impl Hold {
    /// The claim of a renewal that is sent at once; [`end_renewal`](Self::end_renewal) follows. `None`: none
    /// is due or wanted.
    pub(crate) fn begin_renewal(&self, now: Moment) -> Option<Claim> {
        self.with(|state| {
            let claim = self.renewal_in(state, now);
            state.begin_renewal(claim.is_some()).then_some(claim)?
        })
    }

    pub(crate) fn end_renewal(&self) {
        self.with(|state| state.is_under_way = false);
    }

    pub(super) fn renewal_in(&self, state: &State, now: Moment) -> Option<Claim> {
        let lease = if self.needs_keepalive(state) {
            self.window_end().since(now).max(SHORTEST_LEASE)
        } else if self.is_renewed_in(state) {
            let lease = self.within_ceiling(self.renewed_lease(), now);
            // Readers share one expiry, so a short renewal would cut a longer lease of another level.
            if self.kind().shares_its_end() { lease.max(self.window_end().since(now)) } else { lease }
        } else {
            return None;
        };
        Some(Claim { lease, ..self.claim.clone() })
    }

    /// When a third of a renewed lease is over. Computed from the window's end, which a level with a shorter
    /// lease does not move.
    pub(crate) fn due(&self) -> Moment {
        self.with(|state| Some(self.due_in(state))).unwrap_or(Moment::NEVER)
    }

    pub(crate) fn due_in(&self, state: &State) -> Moment {
        let kept_until = state.kept_alive_at.plus(renewal_period(self.renewed_lease()));
        if self.needs_keepalive(state) {
            return kept_until;
        }
        let lease = self.renewed_lease();
        let due = self.window_end().minus(window(lease) - renewal_period(lease));
        if self.kind().shares_its_end() { due.min(kept_until) } else { due }
    }

    /// Whether the client must renew a hold that asks for no renewals. Readers share one expiry in the store,
    /// which renewals by Redisson's readers may shorten.
    fn needs_keepalive(&self, state: &State) -> bool {
        self.kind().shares_its_end() && state.levels.renewed == 0
    }

    pub(crate) fn is_renewable(&self) -> bool {
        self.with(|state| self.is_renewable_in(state))
    }

    pub(crate) fn is_renewable_in(&self, state: &State) -> bool {
        // The store keeps no record of a hold without a lease, and would answer that it is gone.
        self.kind().is_leased() && (self.is_renewed_in(state) || self.needs_keepalive(state))
    }

    pub(super) fn next_check(&self, state: &State, now: Moment) -> Moment {
        let (soon, lease) = (now.plus(Duration::from_millis(1)), self.renewed_lease());
        if state.has_lapsed {
            return now.plus(lease); // checks whether the thread has ended
        }
        if self.is_releasing() {
            return now.plus(renewal_period(lease));
        }
        let until = self.until();
        // A hold that is queued for renewal needs no check for renewals.
        let is_renewed = self.is_renewable_in(state) && !state.is_queued && !self.is_orphaned();
        // Checks now and then whether the thread still exists; less often for long holds.
        let seldom = || now.plus(renewal_period(lease).max(until.since(now) / 16));
        let check = if is_renewed { self.due_in(state) } else { seldom() };
        until.min(check).max(soon)
    }

    pub(crate) fn plan_check(&self, now: Moment) -> Moment {
        let mut state = self.local.state();
        let Some(own) = state.state_of(self.serial) else { return Moment::NEVER };
        let look = self.next_check(own, now);
        own.check_at = look;
        self.local.check_by(&mut state, look);
        look
    }
}
