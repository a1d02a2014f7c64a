//! When the timer looks at each lock next, in the order of time: a look costs by the locks that are due, not by
//! all.
//!
//! A lock has one entry at most, for the first of its holds. An entry stays when that hold ends, and moves to an
//! earlier moment only, so locks that come and go do not touch the table: the look finds out.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::hold::{Hold, LocalLock, State};
use crate::engine::policy::renewal_period;
use crate::time::Moment;

/// When the timer has to look at a hold, as of `now`.
pub(crate) fn next_look(hold: &Hold, state: &State, now: Moment) -> Moment {
    let (soon, lease) = (now.plus(Duration::from_millis(1)), hold.renewed_lease());
    if state.has_lapsed {
        return now.plus(lease); // its thread may end without asking for it
    }
    if hold.is_releasing() {
        return now.plus(renewal_period(lease));
    }
    let until = hold.until();
    // The watchdog renews it, and does not have it yet.
    let (due, is_renewed) = (hold.due_in(state), hold.is_renewable_in(state) && !state.is_queued);
    if is_renewed && due < until && !hold.is_orphaned() {
        return due.max(soon);
    }
    if !hold.is_of_any_thread() {
        return until.max(soon);
    }
    // Now and then whether the thread lives: less and less often the longer it still has.
    let check = now.plus(renewal_period(lease).max(until.since(now) / 16));
    until.min(check).max(soon)
}

/// By moment and, to tell locks of the same moment apart, by where each is in memory.
#[derive(Debug, Default)]
pub(crate) struct TimerTable(BTreeMap<(Moment, usize), Weak<LocalLock>>);

impl TimerTable {
    /// Moves the entry of a lock from `at`. The caller has locked the lock.
    pub(crate) fn put(&mut self, local: &Arc<LocalLock>, at: &mut Option<Moment>, next: Option<Moment>) {
        self.remove(&**local, *at);
        if let Some(next) = next {
            self.0.insert((next, Arc::as_ptr(local).addr()), Arc::downgrade(local));
        }
        *at = next;
    }

    pub(crate) fn remove(&mut self, local: *const LocalLock, at: Option<Moment>) {
        at.into_iter().for_each(|at| drop(self.0.remove(&(at, local.addr()))));
    }

    /// Takes out some of the locks whose moment comes by then. Each is put back by `LocalLock::look_in_time`.
    pub(crate) fn take_due(&mut self, by: Moment, most: usize) -> Vec<Arc<LocalLock>> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some(first) = self.0.first_entry()
            && first.key().0 <= by
        {
            due.extend(first.remove().upgrade());
        }
        due
    }

    pub(crate) fn first(&self) -> Option<(Moment, Weak<LocalLock>)> {
        self.0.first_key_value().map(|((at, _), local)| (*at, Weak::clone(local)))
    }
}
