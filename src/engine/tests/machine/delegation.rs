//! The policy of caching: whether a hold stays in the store after its last level, and how long.

use crate::engine::tests::machine::{CachedFor, Hold, Slot, Step};
use crate::time::Moment;

impl Step<'_> {
    /// Whether the thread that ends the last level of this hold leaves the hold in the store.
    pub(super) fn caches(&self, hold: &Hold, dropped: bool) -> Option<CachedFor> {
        let waiting = self.lock.queue.iter().filter(|ticket| !ticket.leaving).count();
        if hold.is_in_doubt {
            return None;
        }
        if waiting == 0 && hold.unrecalled.is_some() {
            return Some(CachedFor::UntilRecall);
        }
        let slice = self.lock.slice?;
        let parts = u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        let is_part_over = self.inputs.now >= slice.part_ends(parts);
        // `unlock` promises a free lock unless the call asked for caching.
        let may_stay = (dropped || hold.caches) && !hold.is_renewing && self.inputs.reacquires;
        (may_stay && !is_part_over).then_some(CachedFor::TimeSlice)
    }

    /// Until when an unused hold stays.
    pub(super) fn unused_until(&self, why: CachedFor, since: Moment) -> Moment {
        self.lock.unused_until(why, since, self.inputs.rules)
    }

    /// Whether a sibling may have the lock: neither the limit of hand-offs nor the time slice has been
    /// reached.
    pub(super) fn may_pass(&self) -> bool {
        let is_slice_over = self.lock.slice.is_some_and(|slice| self.inputs.now >= slice.ends);
        let rules = self.inputs.rules;
        !rules.all_ask && !is_slice_over && self.lock.handed_off < rules.local_handoffs
    }

    /// Notes a recall that came since the hold was granted.
    pub(super) fn note_recalls(&mut self) {
        let recalls = self.inputs.recalls;
        if let Slot::Held(hold) | Slot::Cached { hold, .. } = &mut self.lock.slot
            && hold.unrecalled != recalls
        {
            hold.unrecalled = None;
        }
    }
}
