//! When the timer looks at each lock next, in the order of time: a look costs by the locks that are due, not by
//! all.
//!
//! A lock has one entry at most, for the first of its holds. An entry stays when that hold ends, and moves to an
//! earlier moment only, so locks that come and go do not touch the table: the look finds out.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::time::Moment;

/// By moment and, to tell locks of the same moment apart, by where each is in memory.
#[derive(Debug)]
pub(crate) struct TimerTable<L>(BTreeMap<(Moment, usize), Weak<L>>);

impl<L> Default for TimerTable<L> {
    fn default() -> TimerTable<L> {
        TimerTable(BTreeMap::new())
    }
}

impl<L> TimerTable<L> {
    /// Moves the entry of a lock from `at`. The caller has locked the lock.
    pub(crate) fn put(&mut self, local: &Arc<L>, at: &mut Option<Moment>, next: Option<Moment>) {
        self.remove(&**local, *at);
        if let Some(next) = next {
            self.0.insert((next, Arc::as_ptr(local).addr()), Arc::downgrade(local));
        }
        *at = next;
    }

    pub(crate) fn remove(&mut self, local: *const L, at: Option<Moment>) {
        at.into_iter().for_each(|at| drop(self.0.remove(&(at, local.addr()))));
    }

    /// Takes out some of the locks whose moment comes by then. Each is put back by `LocalLock::look_in_time`.
    pub(crate) fn take_due(&mut self, by: Moment, most: usize) -> Vec<Arc<L>> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some(first) = self.0.first_entry()
            && first.key().0 <= by
        {
            due.extend(first.remove().upgrade());
        }
        due
    }

    pub(crate) fn first(&self) -> Option<(Moment, Weak<L>)> {
        self.0.first_key_value().map(|((at, _), local)| (*at, Weak::clone(local)))
    }
}
