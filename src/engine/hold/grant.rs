//! The facts of a grant.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::ident::{FencingToken, ThreadMark};
use crate::seam::{Bound, Claim};
use crate::task::TaskMark;
use crate::time::{Lease, Moment};

/// The holder: a thread, or a guard.
#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// A thread, and the task that it ran; its mark is gone when the thread has ended.
    Thread { id: u64, mark: Weak<ThreadMark>, task: TaskMark },
    /// The owner of the transferable guard. `taker`: the thread that acquired it, which is likely to be the
    /// one that releases it; none if that ran a task, since the thread goes on to the next task.
    Guard { taker: Option<Weak<ThreadMark>> },
}

impl Holder {
    /// The thread, if it is one and lives.
    pub(crate) fn thread(&self) -> Option<Arc<ThreadMark>> {
        match self {
            Holder::Thread { mark, .. } => mark.upgrade(),
            Holder::Guard { .. } => None,
        }
    }

    /// The thread that acquired the transferable guard, if that is known and lives.
    pub(crate) fn taker(&self) -> Option<u64> {
        match self {
            Holder::Thread { .. } => None,
            Holder::Guard { taker } => Some(taker.as_ref()?.upgrade()?.id()),
        }
    }

    /// Whether the calling thread runs the task that took the lock, or none as then. A guard's hold is no
    /// task's.
    pub(crate) fn is_this_task(&self) -> bool {
        match self {
            Holder::Thread { task, .. } => *task == TaskMark::current(),
            Holder::Guard { .. } => true,
        }
    }
}

/// The facts of a grant.
pub(crate) struct Grant {
    /// As it was asked for.
    pub(crate) claim: Claim,
    pub(crate) holder: Holder,
    /// Before the request that was granted left: the window opens there.
    pub(crate) sent: Moment,
    /// The lease of its first level.
    pub(crate) lease: Lease,
    /// The lease that renewals ask for.
    pub(crate) renewed_lease: Duration,
    /// Beyond it the hold is not renewed.
    pub(crate) ceiling: Option<Moment>,
    pub(crate) fence: Option<FencingToken>,
    /// Its end besides its lease.
    pub(crate) bound: Option<Arc<dyn Bound>>,
    /// As [`AcquireCall::may_keep`](crate::engine::acquire::call::AcquireCall::may_keep) says.
    pub(crate) may_be_kept: bool,
    /// The call asked for it to be kept, by `cached`.
    pub(crate) asks_to_keep: bool,
    /// It is kept until others ask for it.
    pub(crate) until_asked: bool,
    /// The holder leads, for those who look.
    pub(crate) leads: bool,
}
