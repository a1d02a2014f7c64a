//! When each hold is to be checked next, in the order of time: a check costs by the holds that are due, not
//! by all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::{Hold, State};
use crate::engine::lock::TimerSlot;
use crate::engine::policy::renewal_period;
use crate::time::Moment;

/// The place of a hold, as of `now`.
pub(crate) fn slot_of(hold: &Hold, state: &State, now: Moment) -> TimerSlot {
    let (soon, lease) = (now.plus(Duration::from_millis(1)), hold.renewed_lease());
    if state.has_lapsed {
        return TimerSlot::Check(now.plus(lease)); // its thread may end without asking for it
    }
    if hold.is_releasing() {
        return TimerSlot::Check(now.plus(renewal_period(lease)));
    }
    let until = hold.until();
    // The watchdog will renew this hold, but does not have it in its list yet.
    let (due, is_renewed) = (hold.due_in(state), hold.is_renewable_in(state) && !state.is_queued);
    if is_renewed && due < until && !hold.is_orphaned() {
        return TimerSlot::Renewal(due.max(soon));
    }
    if !hold.is_of_any_thread() {
        return TimerSlot::Check(until.max(soon));
    }
    // Checks whether the thread lives: the more rarely, the longer the rest of the lease.
    let check = now.plus(renewal_period(lease).max(until.since(now) / 16));
    TimerSlot::Check(until.min(check).max(soon))
}

#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    renewals: BTreeMap<TimerKey, Arc<Hold>>,
    checks: BTreeMap<TimerKey, Arc<Hold>>,
}

/// A moment, and the part by which holds of the same moment differ: where each is in memory.
type TimerKey = (Moment, usize);

fn key(at: Moment, hold: &Arc<Hold>) -> TimerKey {
    (at, Arc::as_ptr(hold).addr())
}

impl TimerQueue {
    /// Puts a hold there, wherever it has been. The caller has locked its lock.
    pub(crate) fn put(&mut self, hold: &Arc<Hold>, state: &mut State, slot: TimerSlot) {
        match std::mem::replace(&mut state.slot, slot) {
            TimerSlot::Out => {}
            TimerSlot::Renewal(at) => drop(self.renewals.remove(&key(at, hold))),
            TimerSlot::Check(at) => drop(self.checks.remove(&key(at, hold))),
        }
        match slot {
            TimerSlot::Out => {}
            TimerSlot::Renewal(at) => drop(self.renewals.insert(key(at, hold), Arc::clone(hold))),
            TimerSlot::Check(at) => drop(self.checks.insert(key(at, hold), Arc::clone(hold))),
        }
    }

    pub(crate) fn remove(&mut self, mut state: State) {
        let hold = Arc::clone(&state.hold);
        self.put(&hold, &mut state, TimerSlot::Out);
    }

    /// Removes a hold that its lock does not have any more: a waiter that panicked has taken it along.
    pub(crate) fn forget(&mut self, hold: &Arc<Hold>) {
        let is_other = |other: &mut Arc<Hold>| !Arc::ptr_eq(other, hold);
        self.renewals.retain(|_, other| is_other(other));
        self.checks.retain(|_, other| is_other(other));
    }

    /// Some of the holds whose time has come. They stay where they are until they are put elsewhere.
    ///
    /// With a renewal that is due, those within `slack` go along, so that many holds make few rounds.
    pub(crate) fn due(&self, now: Moment, slack: Duration, most: usize) -> Vec<Arc<Hold>> {
        let until = |moment: Moment| ..=(moment, usize::MAX);
        let mut due: Vec<_> =
            self.checks.range(until(now)).take(most).map(|(_, hold)| Arc::clone(hold)).collect();
        if self.renewals.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            let along = self.renewals.range(until(now.plus(slack)));
            let along = along.filter(|((at, _), hold)| *at <= now.plus(hold.slack()));
            due.extend(along.take(most).map(|(_, hold)| Arc::clone(hold)));
        }
        due
    }

    /// All that are to be renewed at some time.
    pub(crate) fn renewed(&self) -> Vec<Arc<Hold>> {
        self.renewals.values().cloned().collect()
    }

    /// When the first is due.
    pub(crate) fn first(&self) -> Moment {
        let at = |first: Option<(&TimerKey, &Arc<Hold>)>| first.map_or(Moment::NEVER, |((at, _), _)| *at);
        at(self.renewals.first_key_value()).min(at(self.checks.first_key_value()))
    }

    /// When the first renewal is due.
    pub(crate) fn first_renewal(&self) -> Moment {
        self.renewals.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }
}
