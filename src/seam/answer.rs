//! The outcomes of requests to a store.

use std::sync::Arc;
use std::time::Duration;

use crate::ident::FencingToken;
use crate::seam::claim::ListensFor;
use crate::seam::failure::Answer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The owner holds the lock with the wanted count, for at least the claim's lease from now on.
    Granted {
        /// A new token, if the claim wants one.
        fence: Option<FencingToken>,
        /// The length of the queue with this client; zero if it was not in it, or the store does not say.
        queued: u32,
    },
    Busy {
        /// What is left of the holder's lease; `None`: the lease has no end.
        retry_after: Option<Duration>,
    },
    /// Another owner holds the lock, or it is reserved, and this client is in the store's queue.
    InWaitQueue {
        /// When to ask again at the latest; `None`: unknown.
        retry_after: Option<Duration>,
        listens_for: ListensFor,
        /// Whether to watch releases: this client is first in the queue, which the holder does not notify.
        watches: bool,
    },
    /// The claim was for a re-entry, but the owner does not hold the lock. Nothing changed.
    Lost,
}

impl Attempt {
    pub(crate) const fn granted(fence: Option<FencingToken>) -> Attempt {
        Attempt::Granted { fence, queued: 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// The owner held the lock and now holds nothing; waiters were notified.
    Freed { others: Others },
    /// The owner holds the lock with the count that was to be left.
    StillHeld,
    /// The owner did not hold the lock; nothing changed.
    NotHeld {
        /// The holder, if known; `None`: the lock is free.
        holder: Option<String>,
    },
}

/// The other clients that a release notified, as far as the store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Others {
    Nobody,
    /// The number of listening clients, each of which may ask.
    Listen(u32),
    /// The first in the queue, for which the lock is reserved.
    Next,
}

impl Others {
    pub(crate) fn listening(count: u32) -> Others {
        if count == 0 { Others::Nobody } else { Others::Listen(count) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// The new owner holds the lock with count one, for its claim's lease; the old owner holds nothing. No
    /// waiter was notified.
    Granted {
        /// A new token, if the claim wants one.
        fence: Option<FencingToken>,
    },
    /// The old owner did not hold the lock; nothing changed.
    Lost,
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", feature = "etcd"))]
pub(crate) fn named_each<T>(
    claims: &[crate::seam::claim::Claim],
    answers: impl IntoIterator<Item = Answer<T>>,
    action: &'static str,
) -> Vec<Answer<T>> {
    let answers = claims.iter().zip(answers);
    answers.map(|(claim, answer)| crate::seam::failure::named(answer, action, claim.name.given())).collect()
}

/// A sent request whose answer is to be read: a function that reads it.
pub(crate) trait Pending<T = Handoff>: Send {
    /// Waits for the answer until the request's deadline. An answer that arrived by then is read.
    fn wait(self: Box<Self>) -> Answer<T>;
}

impl<T, F: FnOnce() -> Answer<T> + Send> Pending<T> for F {
    fn wait(self: Box<Self>) -> Answer<T> {
        self()
    }
}

pub(crate) fn ready<T: Send + 'static>(answer: Answer<T>) -> Box<dyn Pending<T>> {
    Box::new(|| answer)
}

/// Receives the answer of a release that no thread waits for.
pub(crate) struct Sink {
    answered: Box<dyn FnOnce(Answer<Release>) + Send>,
    releasing: Option<Arc<dyn Releasing>>,
}

/// A hold whose release no thread waits for.
pub(crate) trait Releasing: Send + Sync {
    /// Called when the release was not carried out and the store repeats it. A request under the same owner
    /// may arrive before the repeated release, which would end its hold: such a grant must not count. Called
    /// before the answer of any such request.
    fn overtaken(&self);
}

impl Sink {
    pub(crate) fn new(answered: impl FnOnce(Answer<Release>) + Send + 'static) -> Sink {
        Sink { answered: Box::new(answered), releasing: None }
    }

    pub(crate) fn of(self, releasing: Option<Arc<dyn Releasing>>) -> Sink {
        Sink { releasing, ..self }
    }

    pub(crate) fn releasing(&self) -> Option<Arc<dyn Releasing>> {
        self.releasing.clone()
    }

    pub(crate) fn answer(self, answer: Answer<Release>) {
        (self.answered)(answer);
    }
}
