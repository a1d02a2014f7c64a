//! When each hold is to be looked at next, in the order of time: a look costs by the holds that are due, not
//! by all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::entry::Entered;
use crate::engine::hold::{AgendaSlot, Hold, State};
use crate::engine::policy::renewal_period;
use crate::time::Moment;

/// The place of a hold, as of `now`.
pub(crate) fn slot_of(hold: &Hold, state: &State, now: Moment) -> AgendaSlot {
    let (soon, lease) = (now.plus(Duration::from_millis(1)), hold.renewed_lease());
    if state.has_lapsed {
        return AgendaSlot::Look(now.plus(lease)); // its thread may end without asking for it
    }
    if hold.is_releasing() {
        return AgendaSlot::Look(now.plus(renewal_period(lease)));
    }
    let until = hold.until();
    // The watchdog renews it, and does not have it yet.
    let (due, is_renewed) = (hold.due_in(state), hold.is_renewable_in(state) && !state.is_queued);
    if is_renewed && due < until && !hold.is_orphaned() {
        return AgendaSlot::Renewal(due.max(soon));
    }
    if !hold.is_of_any_thread() {
        return AgendaSlot::Look(until.max(soon));
    }
    // Now and then whether the thread lives: less and less often the longer it still has.
    let look = now.plus(renewal_period(lease).max(until.since(now) / 16));
    AgendaSlot::Look(until.min(look).max(soon))
}

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    renewals: BTreeMap<AgendaKey, Arc<Hold>>,
    looks: BTreeMap<AgendaKey, Arc<Hold>>,
}

/// A moment, and the part by which holds of the same moment differ: where each is in memory.
type AgendaKey = (Moment, usize);

fn key(at: Moment, hold: &Arc<Hold>) -> AgendaKey {
    (at, Arc::as_ptr(hold).addr())
}

impl Agenda {
    /// Puts a hold there, wherever it has been. The caller has locked its entry.
    pub(crate) fn put(&mut self, hold: &Arc<Hold>, state: &mut State, slot: AgendaSlot) {
        match std::mem::replace(&mut state.slot, slot) {
            AgendaSlot::Out => {}
            AgendaSlot::Renewal(at) => drop(self.renewals.remove(&key(at, hold))),
            AgendaSlot::Look(at) => drop(self.looks.remove(&key(at, hold))),
        }
        match slot {
            AgendaSlot::Out => {}
            AgendaSlot::Renewal(at) => drop(self.renewals.insert(key(at, hold), Arc::clone(hold))),
            AgendaSlot::Look(at) => drop(self.looks.insert(key(at, hold), Arc::clone(hold))),
        }
    }

    pub(crate) fn remove(&mut self, mut entered: Entered) {
        self.put(&entered.hold, &mut entered.state, AgendaSlot::Out);
    }

    /// Some of the holds whose time has come. They stay where they are until they are put elsewhere.
    ///
    /// With a renewal that is due, those within `slack` go along, so that many holds make few rounds.
    pub(crate) fn due(&self, now: Moment, slack: Duration, most: usize) -> Vec<Arc<Hold>> {
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
    pub(crate) fn renewed(&self) -> Vec<Arc<Hold>> {
        self.renewals.values().cloned().collect()
    }

    /// When the first is due.
    pub(crate) fn first(&self) -> Moment {
        let at = |first: Option<(&AgendaKey, &Arc<Hold>)>| first.map_or(Moment::NEVER, |((at, _), _)| *at);
        at(self.renewals.first_key_value()).min(at(self.looks.first_key_value()))
    }

    /// When the first renewal is due.
    pub(crate) fn first_renewal(&self) -> Moment {
        self.renewals.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }
}
