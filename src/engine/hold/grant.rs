//! The facts of a grant.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::ident::{FencingToken, ThreadMarker};
use crate::seam::{Bound, Claim};
use crate::task::TaskMarker;
use crate::time::{Lease, Moment};

#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// A thread and its task; the mark is gone when the thread has ended.
    Thread { id: u64, mark: Weak<ThreadMarker>, task: TaskMarker },
    /// A transferable guard. `taker`: the thread that acquired it, and probably releases it; `None` if that
    /// ran a task, since the thread goes on to the next task.
    Guard { taker: Option<Weak<ThreadMarker>> },
}

impl Holder {
    pub(crate) fn thread(&self) -> Option<Arc<ThreadMarker>> {
        match self {
            Holder::Thread { mark, .. } => mark.upgrade(),
            Holder::Guard { .. } => None,
        }
    }

    pub(crate) fn taker(&self) -> Option<u64> {
        match self {
            Holder::Thread { .. } => None,
            Holder::Guard { taker } => Some(taker.as_ref()?.upgrade()?.id()),
        }
    }

    /// Whether the calling thread runs the task that took the lock, if any. A guard's hold is no task's.
    pub(crate) fn is_this_task(&self) -> bool {
        match self {
            Holder::Thread { task, .. } => *task == TaskMarker::current(),
            Holder::Guard { .. } => true,
        }
    }
}

pub(crate) struct Grant {
    pub(crate) claim: Claim,
    pub(crate) holder: Holder,
    /// When the granted request was sent: the window opens there.
    pub(crate) sent: Moment,
    pub(crate) lease: Lease,
    pub(crate) renewed_lease: Duration,
    pub(crate) ceiling: Option<Moment>,
    pub(crate) fence: Option<FencingToken>,
    pub(crate) bound: Option<Arc<dyn Bound>>,
    /// As [`AcquireCall::may_cache_slice`](crate::engine::acquire::call::AcquireCall::may_cache_slice) says.
    pub(crate) may_be_cached: bool,
    pub(crate) asks_to_cache: bool,
    pub(crate) leads: bool,
}
