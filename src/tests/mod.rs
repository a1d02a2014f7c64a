//! Helpers that the unit tests of several layers share.

pub(crate) mod scripted;

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ident::{ClientId, FencingToken, LockName, Owner, unbound_number};
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Others, Release, Store};
use crate::time::{Clock, Moment};

/// A store that is closed on drop.
pub(crate) struct Open<S: Deref<Target: Store>>(pub(crate) S);

impl<S: Deref<Target: Store>> Deref for Open<S> {
    type Target = S::Target;

    fn deref(&self) -> &S::Target {
        &self.0
    }
}

impl<S: Deref<Target: Store>> Drop for Open<S> {
    fn drop(&mut self) {
        self.0.close();
    }
}

pub(crate) fn name(key: &str) -> Arc<LockName> {
    Arc::new(LockName::new(&Arc::from(key), key.to_owned()).unwrap())
}

/// The claim of a new owner.
pub(crate) fn claim(kind: Kind, key: &str, lease: Duration) -> Claim {
    Claim::new(kind, &name(key), Owner::new(ClientId::random(), unbound_number()), lease)
}

/// Unwraps the result that a test expects of an answer.
pub(crate) trait Said<T> {
    fn done(self) -> T;
    fn refused(self) -> Error;
    fn unknown(self) -> Error;
}

impl<T: Debug> Said<T> for Answer<T> {
    #[track_caller]
    fn done(self) -> T {
        match self {
            Ok(value) => value,
            other => panic!("not done but {other:?}"),
        }
    }

    #[track_caller]
    fn refused(self) -> Error {
        match self {
            Err(Failure::Refused(error)) => error,
            other => panic!("not refused but {other:?}"),
        }
    }

    #[track_caller]
    fn unknown(self) -> Error {
        match self {
            Err(Failure::Unknown(error)) => error,
            other => panic!("not unknown but {other:?}"),
        }
    }
}

/// Expects the result of an attempt.
pub(crate) trait Attempted {
    fn granted(self) -> Option<FencingToken>;
    fn busy(self) -> Option<Duration>;
}

impl Attempted for Answer<Attempt> {
    #[track_caller]
    fn granted(self) -> Option<FencingToken> {
        match self.done() {
            Attempt::Granted { fence, .. } => fence,
            other => panic!("not granted but {other:?}"),
        }
    }

    #[track_caller]
    fn busy(self) -> Option<Duration> {
        match self.done() {
            Attempt::Busy { retry_after } => retry_after,
            other => panic!("not busy but {other:?}"),
        }
    }
}

/// Expects that the last level was released.
pub(crate) trait Released {
    fn freed(self) -> Others;
}

impl Released for Answer<Release> {
    #[track_caller]
    fn freed(self) -> Others {
        match self.done() {
            Release::Freed { others } => others,
            other => panic!("not freed but {other:?}"),
        }
    }
}

pub(crate) fn soon() -> Moment {
    Clock::System.after(Duration::from_secs(30))
}

/// Waits for something that another thread or a server does, which may take long on a busy machine.
#[track_caller]
pub(crate) fn eventually(mut happened: impl FnMut() -> bool) {
    let deadline = Clock::System.after(Duration::from_secs(60));
    while !happened() {
        assert!(Clock::System.now() < deadline, "it did not happen");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
