//! The events and counts of a wait, for its observers.

use crate::observe::spans::WaitSpan;
use crate::time::Moment;

/// The facts of a wait that its observers hear.
pub(super) struct Report {
    /// It has slept for the lock, and the observer knows.
    pub(super) is_waiting: bool,
    /// Since when the lock is on its way here, and whether from a thread of this client.
    pub(super) coming: Option<(Moment, bool)>,
    pub(super) attempts: u32,
    pub(super) span: WaitSpan,
}

impl Report {
    pub(super) fn new(span: WaitSpan) -> Report {
        Report { is_waiting: false, coming: None, attempts: 0, span }
    }
}

/// The reason for which a waiter woke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WokenBy {
    /// A message: the lock may have been released elsewhere.
    Message,
    /// Something in this process: the queue, a hand-off, a release, the end of the client; or nothing.
    Here,
    /// Its time had come.
    Time,
    /// The caller's interrupt.
    Interrupt,
}
