//! When each hold is to be looked at next, in the order of time: looking costs what is due, not what is held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::hold::Hold;
use crate::time::Moment;

/// Where a hold stands in the agenda. Changed under the table's mutex alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nowhere: the table does not have it (any more).
    Out,
    /// It is to be renewed then.
    Renewal(Moment),
    /// Its window, or its thread, may have ended by then.
    Look(Moment),
}

impl Slot {
    /// When it is to be looked at.
    pub(crate) fn moment(self) -> Moment {
        match self {
            Slot::Out => Moment::NEVER,
            Slot::Renewal(at) | Slot::Look(at) => at,
        }
    }
}

impl Slot {
    /// Where a hold belongs, as of `now`.
    pub(crate) fn of(hold: &Hold, now: Moment) -> Slot {
        let soon = now.plus(Duration::from_millis(1));
        let lease = hold.renewed_lease();
        if hold.has_lapsed() {
            return Slot::Look(now.plus(lease)); // its thread may end without asking for it
        }
        if hold.is_releasing() {
            return Slot::Look(now.plus(lease / 3));
        }
        let (due, until) = (hold.due(), hold.until());
        if hold.is_renewable() && !hold.is_queued() && !hold.is_orphaned() && due < until {
            return Slot::Renewal(due.max(soon));
        }
        if !hold.is_of_any_thread() {
            return Slot::Look(until.max(soon));
        }
        // Now and then whether the thread lives: less and less often the longer it still has.
        let look = now.plus((lease / 3).max(until.since(now) / 16));
        Slot::Look(until.min(look).max(soon))
    }
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    renewals: BTreeMap<Key, Arc<Hold>>,
    looks: BTreeMap<Key, Arc<Hold>>,
}

/// A moment, and what tells holds of the same moment apart: where each is in memory.
type Key = (Moment, usize);

fn key(at: Moment, hold: &Arc<Hold>) -> Key {
    (at, Arc::as_ptr(hold).addr())
}

impl Agenda {
    /// Puts a hold there, wherever it has been.
    pub(super) fn put(&mut self, hold: &Arc<Hold>, slot: Slot) {
        match hold.replace_slot(slot) {
            Slot::Out => {}
            Slot::Renewal(at) => drop(self.renewals.remove(&key(at, hold))),
            Slot::Look(at) => drop(self.looks.remove(&key(at, hold))),
        }
        match slot {
            Slot::Out => {}
            Slot::Renewal(at) => drop(self.renewals.insert(key(at, hold), Arc::clone(hold))),
            Slot::Look(at) => drop(self.looks.insert(key(at, hold), Arc::clone(hold))),
        }
    }

    pub(super) fn remove(&mut self, hold: &Arc<Hold>) {
        self.put(hold, Slot::Out);
    }

    /// Some of the holds whose time has come. They stay where they are until they are put elsewhere.
    ///
    /// Where a renewal is due, those that would be within `slack` go along, so that many holds make few rounds.
    pub(super) fn due(&self, now: Moment, slack: Duration, most: usize) -> Vec<Arc<Hold>> {
        let until = |moment: Moment| ..=(moment, usize::MAX);
        let mut due: Vec<_> =
            self.looks.range(until(now)).take(most).map(|(_, hold)| Arc::clone(hold)).collect();
        if self.renewals.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            let along = self.renewals.range(until(now.plus(slack)));
            let along = along.filter(|((at, _), hold)| *at <= now.plus(hold.slack()));
            due.extend(along.take(most).map(|(_, hold)| Arc::clone(hold)));
        }
        due
    }

    /// All that are to be renewed at some time.
    pub(super) fn renewed(&self) -> Vec<Arc<Hold>> {
        self.renewals.values().cloned().collect()
    }

    /// When the first is due.
    pub(super) fn first(&self) -> Moment {
        let at = |first: Option<(&Key, &Arc<Hold>)>| first.map_or(Moment::NEVER, |((at, _), _)| *at);
        at(self.renewals.first_key_value()).min(at(self.looks.first_key_value()))
    }

    /// When the first renewal is due.
    pub(super) fn first_renewal(&self) -> Moment {
        self.renewals.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }
}
