//! The seam of questions that people ask: who holds a lock, and what there is under a name.

use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::failure::Answer;
use crate::seam::kind::Kind;
use crate::seam::snapshot::Snapshot;
use crate::time::Moment;

/// Questions about locks. They change nothing.
pub(crate) trait Inspect {
    /// The known facts about a lock; `None` if it is free.
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>>;

    /// Describes the object under a name, of any kind, for people.
    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection>;
}
