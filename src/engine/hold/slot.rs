//! The place of a hold in the agenda of the timer.

use crate::time::Moment;

/// The place of a hold in the agenda. Changed under the agenda's mutex alone.
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
