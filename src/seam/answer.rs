//! How a request to a store ended.

use std::sync::Arc;
use std::time::Duration;

use crate::ident::FencingToken;
use crate::seam::claim::ListensFor;
use crate::seam::failure::Answer;

/// The outcome of one attempt to acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The claim's owner holds it with the count asked for, for at least the claim's lease from now on.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<FencingToken>,
        /// If its client stood in the store's line for it: how many clients did. Zero: it did not, or the store
        /// does not say.
        in_line: u32,
    },
    /// Another owner holds it.
    Busy {
        /// How long the holder's lease still runs; `None` if it has no end.
        retry_after: Option<Duration>,
    },
    /// Another owner holds it, or it is kept for another client, and this one stands in the store's line.
    InLine {
        /// When to ask again at the latest, told or not; `None`: nothing says when.
        retry_after: Option<Duration>,
        /// The wake-ups to listen for.
        listens_for: ListensFor,
        /// Whether it is to look out for what tells no line: it is the first in it, and the holder's release
        /// would tell it.
        is_lookout: bool,
    },
    /// A count above one was asked for, but the owner holds nothing (any more). Nothing changed.
    Lost,
}

impl Attempt {
    /// A grant that knows of no line.
    pub(crate) const fn granted(fence: Option<FencingToken>) -> Attempt {
        Attempt::Granted { fence, in_line: 0 }
    }
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// The owner held it and now holds nothing; waiters were notified.
    Freed {
        /// The clients that were notified, other than this one.
        others: Others,
    },
    /// The owner holds it with the count that was to be left.
    StillHeld,
    /// The owner did not hold it; nothing changed.
    NotHeld {
        /// The holder, where the store knows it; `None` if it is free.
        holder: Option<String>,
    },
    /// The owner does not hold it, and nothing that was asked under it can come any more. Only of
    /// [`clean_up`](super::Store::clean_up).
    Never,
}

/// The other clients that were notified of a release, as far as the store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Nobody,
    /// The number of clients that listen; each of them may come.
    Listen(u32),
    /// The first in the store's line, for whom the lock is kept.
    Next,
}

impl Others {
    /// The answer for a number of listeners, which may be none.
    pub(crate) fn listening(count: u32) -> Others {
        if count == 0 { Others::Nobody } else { Others::Listen(count) }
    }
}

/// The outcome of handing a lock off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// The new owner holds it with count one, for its claim's lease; the old one holds nothing. No waiter was
    /// notified.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<FencingToken>,
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
pub(crate) struct Sink {
    answered: Box<dyn FnOnce(Answer<Release>) + Send>,
    releasing: Option<Arc<dyn Releasing>>,
}

/// A hold whose release nobody waits for.
pub(crate) trait Releasing: Send + Sync {
    /// The store did not carry the release out and sends it again. A request that this client has sent under
    /// the same owner since then comes first, so the release ends a hold that the request began: no such hold
    /// may count. Called before the answer of any such request is read.
    fn overtaken(&self);
}

impl Sink {
    pub(crate) fn new(answered: impl FnOnce(Answer<Release>) + Send + 'static) -> Sink {
        Sink { answered: Box::new(answered), releasing: None }
    }

    /// The same, of a release that ends this hold.
    pub(crate) fn of(self, releasing: Option<Arc<dyn Releasing>>) -> Sink {
        Sink { releasing, ..self }
    }

    /// The hold, for a store that passes the release on.
    pub(crate) fn releasing(&self) -> Option<Arc<dyn Releasing>> {
        self.releasing.clone()
    }

    pub(crate) fn answer(self, answer: Answer<Release>) {
        (self.answered)(answer);
    }
}
