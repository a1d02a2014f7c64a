//! Why a request has no result, in the words that all stores use among themselves.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::seam::answer::Answer;

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was not carried out and will not be.
    Refused(Error),
    /// It may have been carried out, or still may be.
    Unknown(Error),
}

/// How a request ended inside a store, before the lock and the action are named.
pub(crate) type Outcome<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Refused(error) | Failure::Unknown(error) => error,
        }
    }

    /// The same, for several requests that failed as one.
    pub(crate) fn copy(&self) -> Failure {
        match self {
            Failure::Refused(error) => Failure::Refused(error.copy()),
            Failure::Unknown(error) => Failure::Unknown(error.copy()),
        }
    }

    /// Whether the server said that it takes no writes.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Failure::Refused(error) if error.kind() == ErrorKind::ReadOnly)
    }

    /// The failure of a request that only reads: whether it was carried out or not, nothing changed.
    pub(crate) fn of_reading(self) -> Failure {
        Failure::Refused(self.into_error())
    }
}

/// The error of a grant that came when its lease was over, or nearly.
pub(crate) fn granted_too_late(action: &'static str, lease: Duration, took: Duration) -> Error {
    let detail = format!(
        "it was granted for a lease of {lease:?}, but the answer took {took:?}, and the lease counts from the request: ask for a lease \
         of several times as long as an answer takes"
    );
    Error::new(ErrorKind::TimedOut, action, detail)
}

/// The answer of the seam that `outcome` of a request about the lock `name` stands for.
pub(crate) fn answer<T>(outcome: Outcome<T>, action: &'static str, name: &str) -> Answer<T> {
    match outcome {
        Ok(value) => Answer::Done(value),
        Err(Failure::Refused(error)) => Answer::Refused(error.during(action).on(name)),
        Err(Failure::Unknown(error)) => Answer::Unknown(error.during(action).on(name).with_unknown_outcome()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[allow(unused_imports, reason = "imported above with some features")]
    use crate::error::ErrorKind;

    fn error() -> Error {
        Error::new(ErrorKind::TimedOut, "read", "nothing came")
    }

    #[test]
    fn an_answer_names_the_lock_and_the_action_and_says_whether_the_outcome_is_known() {
        for (failure, is_unknown) in [(Failure::Refused(error()), false), (Failure::Unknown(error()), true)] {
            let (error, is_answered_unknown) = match answer::<()>(Err(failure), "lock", "orders") {
                Answer::Refused(error) => (error, false),
                Answer::Unknown(error) => (error, true),
                Answer::Done(()) => panic!("a failure is no result"),
            };
            assert_eq!((is_answered_unknown, error.outcome_unknown()), (is_unknown, is_unknown));
            assert_eq!((error.action(), error.lock_name()), ("lock", Some("orders")));
        }
    }

    #[test]
    fn the_failure_of_a_request_that_only_reads_leaves_no_doubt() {
        assert!(matches!(Failure::Unknown(error()).of_reading(), Failure::Refused(_)));
    }
}
