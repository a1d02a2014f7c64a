//! The outcomes of requests to a store.

use std::sync::Arc;
use std::time::Duration;

use crate::ident::FencingToken;
use crate::seam::claim::ListensFor;
use crate::seam::failure::Answer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The owner holds the lock with the wanted count, for at least the claim's lease from the request on.
    Granted {
        fence: Option<FencingToken>,
        /// The number of clients in the queue, with this client; zero if it was not queued, or if unknown.
        queued: u32,
    },
    Busy {
        /// When to ask again, such as the end of the holder's lease; `None`: no such time.
        retry_after: Option<Duration>,
    },
    /// The lock is held or reserved for others. This client is in the store's queue.
    InWaitQueue {
        /// When to ask again without a message; `None`: unknown.
        retry_after: Option<Duration>,
        listens_for: ListensFor,
        /// Whether this client is first, and so also listens for releases: those of Redisson notify no queue.
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
    /// The owner held the lock and now holds nothing. The store notified waiters.
    Freed {
        others: Others,
    },
    StillHeld,
    /// The owner did not hold the lock; nothing changed.
    NotHeld {
        /// The holder; `None` if the lock is free, or the holder unknown.
        holder: Option<String>,
    },
}

/// The other clients that the store notified of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Others {
    Nobody,
    /// Number of notified clients. Each may ask for the lock.
    Listen(u32),
    /// The first client in the queue. The lock is reserved for this client.
    Next,
}

impl Others {
    pub(crate) fn listening(count: u32) -> Others {
        if count == 0 { Others::Nobody } else { Others::Listen(count) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// The new owner holds the lock with count one, for its claim's lease. The store notified no waiter.
    Granted { fence: Option<FencingToken> },
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

/// A request that was sent, and whose answer can be read once.
pub(crate) trait Pending<T = Handoff>: Send {
    /// Waits for the answer until the request's deadline. A call after the deadline returns an answer that
    /// has already arrived.
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

/// Receives the answer to a release whose releaser does not wait for the answer.
pub(crate) struct Sink {
    answered: Box<dyn FnOnce(Answer<Release>) + Send>,
    releasing: Option<Arc<dyn Releasing>>,
}

/// A hold that is being released, while no thread waits for the answer.
pub(crate) trait Releasing: Send + Sync {
    /// The store calls this before it repeats a release that was not carried out. A later attempt of the same
    /// owner may overtake the repeated release, which would then free the new grant. So the engine must treat
    /// such a grant as void, and the store makes this call before it returns the attempt's answer.
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
