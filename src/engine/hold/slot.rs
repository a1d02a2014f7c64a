//! The place of a hold in the agenda of the timer.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::Moment;

/// Where a hold is in the agenda.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgendaSlot {
    /// Nowhere: the registry does not have it (any more).
    Out,
    /// It is to be renewed then.
    Renewal(Moment),
    /// Its window, or its thread, may have ended by then.
    Look(Moment),
}

impl AgendaSlot {
    /// When it is to be looked at.
    pub(crate) fn moment(self) -> Moment {
        match self {
            AgendaSlot::Out => Moment::NEVER,
            AgendaSlot::Renewal(at) | AgendaSlot::Look(at) => at,
        }
    }
}

/// The slot of a hold, which the hold has. Changed under the agenda's mutex alone.
#[derive(Debug)]
pub(crate) struct AgendaPlace {
    at: AtomicU64,
    renews: AtomicBool,
}

impl Default for AgendaPlace {
    fn default() -> AgendaPlace {
        AgendaPlace { at: AtomicU64::new(Moment::NEVER.nanos()), renews: AtomicBool::new(false) }
    }
}

impl AgendaPlace {
    pub(crate) fn slot(&self) -> AgendaSlot {
        match Moment::from_nanos(self.at.load(Ordering::Relaxed)) {
            Moment::NEVER => AgendaSlot::Out,
            at if self.renews.load(Ordering::Relaxed) => AgendaSlot::Renewal(at),
            at => AgendaSlot::Look(at),
        }
    }

    pub(crate) fn replace(&self, slot: AgendaSlot) -> AgendaSlot {
        let before = self.slot();
        self.at.store(slot.moment().nanos(), Ordering::Relaxed);
        self.renews.store(matches!(slot, AgendaSlot::Renewal(_)), Ordering::Relaxed);
        before
    }
}
