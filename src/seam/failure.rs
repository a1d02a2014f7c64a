//! How a request failed.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

pub(crate) type Answer<T> = std::result::Result<T, Failure>;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was not carried out, and will not be. Nothing changed.
    Refused(Error),
    /// The request may have been carried out, or may be later. Users see `outcome_unknown()`.
    Unknown(Error),
}

// There is no `From<Failure> for Error`: beside the standard library's `From<Error> for Error`, the compiler
// could not infer the error type of `?` in users' closures.
impl Failure {
    pub(crate) fn refused<T>(error: Error) -> Answer<T> {
        Err(Failure::Refused(error))
    }

    pub(crate) fn error(&self) -> &Error {
        match self {
            Failure::Refused(error) | Failure::Unknown(error) => error,
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Refused(error) | Failure::Unknown(error) => error,
        }
    }

    pub(crate) fn copy(&self) -> Failure {
        match self {
            Failure::Refused(error) => Failure::Refused(error.copy()),
            Failure::Unknown(error) => Failure::Unknown(error.copy()),
        }
    }

    pub(crate) fn each<T>(&self, count: usize) -> Vec<Answer<T>> {
        (0..count).map(|_| Err(self.copy())).collect()
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Failure::Refused(error) if error.kind() == ErrorKind::ReadOnly)
    }

    /// Makes this a refusal: a request that only reads changes nothing, whatever its outcome.
    pub(crate) fn of_reading(self) -> Failure {
        Failure::Refused(self.into_read_error())
    }

    pub(crate) fn into_read_error(self) -> Error {
        self.into_error().with_known_outcome()
    }
}

/// The failure of an attempt on a semaphore that does not exist. The attempt fails instead of waiting,
/// because perhaps no client will ever create the semaphore.
pub(crate) fn not_set_up() -> Failure {
    let words = "nobody has set the number of permits of this semaphore, or it was deleted or has expired: call try_set_permits first";
    Failure::Refused(Error::new(ErrorKind::NotSetUp, "acquire", words))
}

/// The error for a grant whose answer arrived when its lease was over or nearly over.
pub(crate) fn granted_too_late(action: &'static str, lease: Duration, took: Duration) -> Error {
    let detail = format!(
        "the store granted a lease of {lease:?}, but the answer took {took:?}, and the lease counts from \
            the request: ask for a lease several times as long as an answer takes"
    );
    Error::new(ErrorKind::TimedOut, action, detail)
}

/// Adds the action and the lock's name to an error. The code that makes the error mostly knows neither.
pub(crate) fn named<T>(answer: Answer<T>, action: &'static str, name: &str) -> Answer<T> {
    answer.map_err(|failure| match failure {
        Failure::Refused(error) => Failure::Refused(error.during(action).on(name)),
        Failure::Unknown(error) => Failure::Unknown(error.during(action).on(name).with_unknown_outcome()),
    })
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
    fn a_named_failure_contains_the_lock_and_the_action() {
        for (failure, is_unknown) in [(Failure::Refused(error()), false), (Failure::Unknown(error()), true)] {
            let (error, is_answered_unknown) = match named::<()>(Err(failure), "lock", "orders") {
                Err(Failure::Refused(error)) => (error, false),
                Err(Failure::Unknown(error)) => (error, true),
                Ok(()) => panic!("a failure is no result"),
            };
            assert_eq!((is_answered_unknown, error.outcome_unknown()), (is_unknown, is_unknown));
            assert_eq!((error.action(), error.lock_name()), ("lock", Some("orders")));
        }
    }

    #[test]
    fn a_failed_read_has_a_known_outcome() {
        assert!(matches!(Failure::Unknown(error()).of_reading(), Failure::Refused(_)));
    }
}
