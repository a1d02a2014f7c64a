//! The seam of questions that people ask: who holds a lock, and what is under a name.

use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::inspect::{Holder, Inspection, Mode, ObjectKind};
use crate::seam::failure::Answer;
use crate::seam::kind::{Family, Kind};
use crate::time::Moment;

/// Questions about locks. They change nothing.
pub(crate) trait Inspect {
    /// `None`: the lock is free.
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>>;

    /// For people: an object of any kind.
    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection>;
}

/// A held lock as the store sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// A holder as the store writes it; empty if the store does not say.
    pub(crate) holder: String,
    /// The hold count of the owner that was asked about; zero if it is no holder.
    pub(crate) count: u32,
    /// The rest of the lease; `None`: it has no end.
    pub(crate) remaining: Option<Duration>,
}

impl Snapshot {
    pub(crate) fn described(self, kind: Kind, name: &LockName) -> Inspection {
        let mode = match kind.family() {
            Family::Read => Some(Mode::Read),
            Family::Write => Some(Mode::Write),
            Family::Lock | Family::Token | Family::Counted => None,
        };
        let kind = match mode {
            Some(mode) => ObjectKind::ReadWriteLock { mode },
            None if kind.is_token() => ObjectKind::TokenLock,
            None => ObjectKind::Lock,
        };
        let mut seen = Inspection::new(name.given(), kind);
        seen.remaining = Some(self.remaining.unwrap_or(Duration::MAX));
        seen.holders.push(Holder { mode, remaining: self.remaining, ..Holder::new(self.holder) });
        seen
    }
}
