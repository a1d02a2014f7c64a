//! Whether, when, and for which lease a hold is renewed.

use std::time::Duration;

use super::{Hold, State};
use crate::engine::pace::renewal_period;
use crate::seam::Claim;
use crate::time::{Moment, SHORTEST_LEASE, window};

impl Hold {
    /// The claim of a renewal. The caller sends it at once, then calls [`end_renewal`](Self::end_renewal).
    /// `None`: the hold needs no renewal now.
    pub(crate) fn begin_renewal(&self, now: Moment) -> Option<Claim> {
        self.with(|state| {
            let claim = state.renewal(now);
            state.begin_renewal(claim.is_some()).then_some(claim)?
        })
    }

    pub(crate) fn end_renewal(&self) {
        self.with(|state| state.is_under_way = false);
    }

    pub(crate) fn plan_check(&self, now: Moment) -> Moment {
        let mut state = self.local.state();
        let Some(own) = state.state_of(self.serial) else { return Moment::NEVER };
        let look = own.next_check(now);
        own.check_at = look;
        self.local.check_by(&mut state, look);
        look
    }
}

impl State {
    /// Whether the client renews the hold: for a level, or because it may be cached until a recall. Not if
    /// the lease reaches to the end of `max_hold`.
    pub(crate) fn is_renewed(&self) -> bool {
        (self.levels.renewed > 0 || self.recallable.is_some()) && !self.hold.is_at_ceiling()
    }

    pub(super) fn renewal(&self, now: Moment) -> Option<Claim> {
        let (hold, left) = (&self.hold, self.hold.window_end().since(now));
        let lease = if self.needs_keepalive() {
            left.max(SHORTEST_LEASE)
        } else if self.is_renewed() {
            let lease = hold.within_ceiling(hold.renewed_lease(), now);
            // Redisson's readers may shorten the shared expiry, so this renews at least to the window's end.
            if hold.kind().shares_its_end() { lease.max(left) } else { lease }
        } else {
            return None;
        };
        Some(Claim { lease, ..hold.claim.clone() })
    }

    /// When a third of a renewed lease is over. Computed from the window's end, so that a re-entry with a
    /// shorter lease does not postpone the renewal.
    pub(crate) fn due(&self) -> Moment {
        let lease = self.hold.renewed_lease();
        let kept_until = self.kept_alive_at.plus(renewal_period(lease));
        if self.needs_keepalive() {
            return kept_until;
        }
        let due = self.hold.window_end().minus(window(lease) - renewal_period(lease));
        if self.hold.kind().shares_its_end() { due.min(kept_until) } else { due }
    }

    /// How long the hold's renewal has been due; zero if none is due.
    pub(crate) fn overdue(&self, now: Moment) -> Duration {
        if self.is_renewed() { now.since(self.due()) } else { Duration::ZERO }
    }

    /// Whether the client must renew a hold that asks for no renewals. Readers share one expiry in the store,
    /// which renewals by Redisson's readers may shorten.
    fn needs_keepalive(&self) -> bool {
        self.hold.kind().shares_its_end() && self.levels.renewed == 0
    }

    pub(crate) fn is_renewable(&self) -> bool {
        // The store keeps no record of a hold without a lease, and would answer that it is gone.
        self.hold.kind().is_leased() && (self.is_renewed() || self.needs_keepalive())
    }

    pub(super) fn next_check(&self, now: Moment) -> Moment {
        let (hold, lease) = (&self.hold, self.hold.renewed_lease());
        if self.has_lapsed {
            return now.plus(lease); // checks whether the thread has ended
        }
        if hold.is_releasing() {
            return now.plus(renewal_period(lease));
        }
        let until = hold.until();
        // A hold that is queued for renewal needs no check whether its renewal is due.
        let is_renewed = self.is_renewable() && !self.is_queued && !hold.is_orphaned();
        // Checks now and then whether the thread still exists; less often for long holds.
        let seldom = || now.plus(renewal_period(lease).max(until.since(now) / 16));
        let check = if is_renewed { self.due() } else { seldom() };
        until.min(check).max(now.plus(Duration::from_millis(1)))
    }
}
