//! How a request to a store ended.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::ident::Fence;

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// Carried out, with this result.
    Done(T),
    /// Not carried out: nothing changed, and nothing will.
    Refused(Error),
    /// It may have been carried out, or still may be. The error says so by `outcome_unknown()`.
    Unknown(Error),
}

/// The outcome of one attempt to acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The claim's owner holds it with the count asked for, for at least the claim's lease from now on.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<Fence>,
    },
    /// Another owner holds it.
    Busy {
        /// How long the holder's lease still runs; `None` if it has no end.
        retry_after: Option<Duration>,
    },
    /// A count above one was asked for, but the owner holds nothing (any more). Nothing changed.
    Lost,
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// The owner held it and now holds nothing; waiters were notified.
    Freed {
        /// How many clients other than this one were among them, as far as the store knows.
        others: u32,
    },
    /// The owner holds it with the count that was to be left.
    StillHeld,
    /// The owner did not hold it; nothing changed.
    NotHeld {
        /// The holder, where the store knows it; `None` if it is free.
        holder: Option<String>,
    },
}

/// The outcome of handing a lock off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// The new owner holds it with count one, for its claim's lease; the old one holds nothing. No waiter was notified.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<Fence>,
    },
    /// The old owner did not hold it; nothing changed.
    Lost,
}

/// A request that was sent and whose answer is still to be read, by whoever waits for it.
pub(crate) trait Pending<T = Handoff>: Send {
    /// Reads the answer; not beyond the time that the request was given. One that has come by then is read.
    fn wait(self: Box<Self>) -> Answer<T>;
}

/// An answer that is there already.
pub(crate) struct Answered<T>(pub(crate) Answer<T>);

impl<T: Send> Pending<T> for Answered<T> {
    fn wait(self: Box<Self>) -> Answer<T> {
        self.0
    }
}

/// The receiver of the answer of a release that nobody waits for.
pub(crate) type Sink = Box<dyn FnOnce(Answer<Release>) + Send>;

impl<T> Answer<T> {
    /// For questions that change nothing: an unknown outcome is just a failure.
    pub(crate) fn into_result(self) -> Result<T> {
        match self {
            Answer::Done(value) => Ok(value),
            Answer::Refused(error) | Answer::Unknown(error) => Err(error),
        }
    }
}
