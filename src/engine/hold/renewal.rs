//! The renewals of a hold: whether, when, and for how long.

use super::Hold;
use crate::engine::policy::renewal_period;
use crate::seam::Claim;
use crate::sync::atomic::Ordering;
use crate::time::{Moment, SHORTEST_LEASE, window};

impl Hold {
    /// As [`renewal`](Self::renewal), for what is sent at once; [`end_renewal`](Self::end_renewal) follows.
    /// `None` also if it is not to be renewed any more.
    pub(crate) fn begin_renewal(&self, now: Moment) -> Option<Claim> {
        self.is_under_way.store(true, Ordering::SeqCst);
        // Set first, looked second. Pairs with `has_left_live`.
        let claim = if self.phase.is_live() { self.renewal(now) } else { None };
        if claim.is_none() {
            self.end_renewal();
        }
        claim
    }

    /// It was answered, or failed.
    pub(crate) fn end_renewal(&self) {
        self.is_under_way.store(false, Ordering::SeqCst);
    }

    /// The claim by which the store is asked at `now` to prolong it; `None` if it is to end by itself.
    pub(crate) fn renewal(&self, now: Moment) -> Option<Claim> {
        // Whether and for how long, as of one moment: prolonged for the lease of later levels, a hold that
        // has just come to end by itself would be kept far too long. Pairs with `settle_level`.
        let _levels = self.levels.lock();
        let lease = if self.needs_keepalive() {
            self.window_end().since(now).max(SHORTEST_LEASE)
        } else if self.is_renewed() {
            let lease = self.within_ceiling(self.renewed_lease(), now);
            // As `needs_keepalive` says: of a level with a longer lease, too.
            if self.kind.shares_its_end() { lease.max(self.window_end().since(now)) } else { lease }
        } else {
            return None;
        };
        Some(Claim { lease, ..self.claim() })
    }

    /// When the watchdog should renew next: when a third of a renewed window has passed. Counted from the
    /// window's end, since a level with a short lease of its own is confirmed without moving that.
    pub(crate) fn due(&self) -> Moment {
        let lease = self.renewed_lease(); // once: `settle_level` may change it meanwhile
        let kept_alive = Moment::from_nanos(self.kept_alive_at.load(Ordering::Acquire));
        if self.needs_keepalive() {
            return kept_alive.plus(renewal_period(lease));
        }
        let due = self.window_end().minus(window(lease) - renewal_period(lease));
        if self.kind.shares_its_end() { due.min(kept_alive.plus(renewal_period(lease))) } else { due }
    }

    /// Whether the store is asked now and then to keep the hold, although its lease is its own. A read hold
    /// shares its key's time with readers of other languages, whose renewals cut it to their own; ours raises
    /// it again.
    pub(crate) fn needs_keepalive(&self) -> bool {
        self.kind.shares_its_end() && self.renewed_levels.load(Ordering::Acquire) == 0
    }

    pub(crate) fn note_keepalive(&self, sent: Moment) {
        self.kept_alive_at.store(sent.nanos(), Ordering::Release);
    }

    pub(crate) fn note_failed_renewal(&self) {
        self.renewal_has_failed.store(true, Ordering::Release);
    }

    /// Whether the watchdog renews it.
    pub(crate) fn is_renewable(&self) -> bool {
        // A hold without a lease is unknown to the store, which would answer that it is not held.
        self.kind().is_leased() && (self.is_renewed() || self.needs_keepalive())
    }
}
