//! The meaning of an answer at the moment at which it is read: for a first hold, for a re-entry,
//! and for a lock that another thread here handed off.
//!
//! Their answers can be late, or not come at all, in the same ways. So what those ways mean is said once.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ident::FencingToken;
use crate::seam::{Answer, Attempt, Bound, Failure, Handoff, ListensFor};
use crate::time::Moment;

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum AttemptOutcome {
    /// The lock is acquired.
    Granted {
        fence: Option<FencingToken>,
        /// From when on its lease counts.
        since: Moment,
        /// As [`Attempt::Granted`] has it.
        in_line: u32,
        /// The end of the hold besides its lease.
        bound: Option<Arc<dyn Bound>>,
    },
    /// Granted, and not to be counted on. The store's part of it is to be undone.
    TooLate,
    /// Another owner has it.
    Busy { retry_after: Option<Duration> },
    /// The same, or it is kept for another client, and this one stands in the store's line.
    InLine { retry_after: Option<Duration>, listens_for: ListensFor, is_lookout: bool },
    /// The owner who was to have it already has it no longer. Nothing changed.
    Lost,
    /// Nothing changed, and nothing will.
    Failed(Error),
    /// It may have been carried out, or may yet be: to be undone, or repeated where that changes nothing.
    Unknown(Error),
}

impl AttemptOutcome {
    /// The outcome of `answer`. `since`: where the window that a grant belongs to began, if it is open and
    /// the owner number in use, as of now, when the answer has been read. For a first hold and one that was
    /// handed off that is the window which the request opened; for a re-entry the one that the hold has,
    /// since once that has ended another may have held the lock.
    pub(crate) fn of(
        answer: Answer<Attempt>,
        since: Option<Moment>,
        bound: Option<Arc<dyn Bound>>,
    ) -> AttemptOutcome {
        match answer {
            Ok(Attempt::Granted { fence, in_line }) => since.map_or(AttemptOutcome::TooLate, |since| {
                AttemptOutcome::Granted { fence, since, in_line, bound }
            }),
            Ok(Attempt::Busy { retry_after }) => AttemptOutcome::Busy { retry_after },
            Ok(Attempt::InLine { retry_after, listens_for, is_lookout }) => {
                AttemptOutcome::InLine { retry_after, listens_for, is_lookout }
            }
            Ok(Attempt::Lost) => AttemptOutcome::Lost,
            Err(Failure::Refused(error)) => AttemptOutcome::Failed(error),
            Err(Failure::Unknown(error)) => AttemptOutcome::Unknown(error),
        }
    }

    /// The failure, if it is one.
    pub(crate) fn error(&self) -> Option<&Error> {
        match self {
            AttemptOutcome::Failed(error) | AttemptOutcome::Unknown(error) => Some(error),
            _ => None,
        }
    }
}

/// A hand-off is answered as an attempt of the new owner's is.
impl From<Handoff> for Attempt {
    fn from(handoff: Handoff) -> Attempt {
        match handoff {
            Handoff::Granted { fence } => Attempt::granted(fence),
            Handoff::Lost => Attempt::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Every answer, in time and too late.
    #[test]
    fn only_a_grant_that_is_read_in_time_is_had_and_what_may_be_in_the_store_is_undone() {
        let fence = Some(FencingToken::new(7));
        let error = || Error::new(ErrorKind::TimedOut, "lock", "late");
        let retry_after = Some(Duration::from_millis(3));
        let since = Moment::from_nanos(5);
        let of =
            |answer, stands: bool| format!("{:?}", AttemptOutcome::of(answer, stands.then_some(since), None));
        let granted = || Ok(Attempt::Granted { fence, in_line: 3 });
        assert_eq!(
            of(granted(), true),
            format!("{:?}", AttemptOutcome::Granted { fence, since, in_line: 3, bound: None })
        );
        assert_eq!(of(granted(), false), format!("{:?}", AttemptOutcome::TooLate));
        for stands in [true, false] {
            let busy = Ok(Attempt::Busy { retry_after });
            assert_eq!(of(busy, stands), format!("{:?}", AttemptOutcome::Busy { retry_after }));
            assert_eq!(of(Ok(Attempt::Lost), stands), "Lost");
            assert!(matches!(
                AttemptOutcome::of(Err(Failure::Refused(error())), stands.then_some(since), None),
                AttemptOutcome::Failed(_)
            ));
            assert!(matches!(
                AttemptOutcome::of(Err(Failure::Unknown(error())), stands.then_some(since), None),
                AttemptOutcome::Unknown(_)
            ));
        }
    }

    #[test]
    fn a_hand_off_is_judged_as_an_attempt() {
        let fence = Some(FencingToken::new(7));
        let error = || Error::new(ErrorKind::TimedOut, "lock", "late");
        let of = |answer: Answer<Handoff>| {
            AttemptOutcome::of(answer.map(Attempt::from), Some(Moment::from_nanos(5)), None)
        };
        assert!(
            matches!(of(Ok(Handoff::Granted { fence })), AttemptOutcome::Granted { fence: had, .. } if had == fence)
        );
        assert!(matches!(of(Ok(Handoff::Lost)), AttemptOutcome::Lost));
        assert!(matches!(of(Err(Failure::Refused(error()))), AttemptOutcome::Failed(_)));
        assert!(matches!(of(Err(Failure::Unknown(error()))), AttemptOutcome::Unknown(_)));
    }
}
