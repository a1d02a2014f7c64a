//! The crate's error type.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The result of an operation of this crate.
///
/// # Examples
/// ```
/// fn sell(client: &leasehold::LockClient) -> leasehold::Result<u32> {
///     client.with_lock("stock:42", |_guard| 1)
/// }
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// An error: the action, the lock, and the reason.
///
/// The text leaves out the cause, which is the [`source`](StdError::source). Programs decide by the
/// predicates ([`is_lost`](Error::is_lost), [`is_not_held`](Error::is_not_held),
/// [`is_retryable`](Error::is_retryable), [`outcome_unknown`](Error::outcome_unknown)) or the
/// [`kind`](Error::kind). No text has a password.
///
/// # Examples
/// ```
/// use leasehold::{Error, ErrorKind, LockClient};
///
/// fn answer(error: &Error) -> u16 {
///     match error.kind() {
///         _ if error.is_retryable() => 503, // nothing was done under the lock: try again
///         ErrorKind::InvalidInput => 400,
///         _ => 500,
///     }
/// }
///
/// let error = LockClient::in_memory().get_lock("stock:42").unlock().unwrap_err();
/// assert_eq!((error.kind(), error.lock_name()), (ErrorKind::NotHeld, Some("stock:42")));
/// assert_eq!(answer(&error), 500); // a fault of the program: it never took the lock
/// ```
pub struct Error {
    inner: Box<ErrorParts>,
}

#[derive(Clone)]
struct ErrorParts {
    kind: ErrorKind,
    action: &'static str,
    lock: Option<String>,
    detail: String,
    not_held: Option<NotHeld>,
    outcome_unknown: bool,
    work_ran: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of failure.
///
/// # Examples
/// ```
/// use leasehold::{ErrorKind, LockClient};
///
/// let client = LockClient::in_memory();
/// client.shutdown()?;
/// assert_eq!(client.get_lock("stock:42").lock().unwrap_err().kind(), ErrorKind::ShutDown);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, duration, URL or option cannot be used; nothing was sent.
    InvalidInput,
    /// The caller does not hold the lock; see [`Error::not_held`].
    NotHeld,
    /// A hold was lost while the caller used it. (The error of `unlock()` for a hold that ended earlier is of
    /// kind `NotHeld`; [`Error::is_lost`] is true for both.)
    Lost,
    /// An [`Interrupt`](crate::Interrupt) ended the wait.
    Interrupted,
    /// The call would wait for its own thread, or for another task that this thread runs (feature `tokio`);
    /// or an observer called its client within a call of the same thread.
    WouldDeadlock,
    /// The key holds something other than this kind of lock.
    WrongType,
    /// The semaphore does not exist: call [`try_set_permits`](crate::Semaphore::try_set_permits) first.
    NotSetUp,
    /// The server cannot be reached or the connection broke.
    Unreachable,
    /// No answer came within the command time-out.
    TimedOut,
    /// The server wants another user or password.
    Authentication,
    /// The provider of [credentials](crate::ClientBuilder::credentials) failed, or gave no answer in time.
    Credentials,
    /// No TLS session: one side does not accept the other's certificate, or does not speak TLS.
    Tls,
    /// The user lacks a permission; the detail names it where the server does.
    NoPermission,
    /// The server is out of memory or disk space and refuses writes.
    OutOfMemory,
    /// The server is a read-only replica.
    ReadOnly,
    /// The server is loading, busy with a script, failing over or short of replicas. (A call that finds the
    /// lock held by another owner returns `None` or `false`, not this error.)
    Busy,
    /// The wait was the youngest of a deadlock, and the client [breaks
    /// deadlocks](crate::ClientBuilder::break_deadlocks): release what the thread holds and begin again. Or
    /// the database broke a deadlock: roll the transaction back and run it again.
    Deadlock,
    /// The server is older than the oldest supported version.
    TooOld,
    /// The store or the client's settings cannot do this.
    Unsupported,
    /// Clients of another version keep locks here in another format, so this client cannot be built.
    IncompatibleFormat,
    /// The server's answer broke the protocol.
    Protocol,
    /// The list of the ring's nodes changed, and this client has an older list; see
    /// [`LockClient::change_ring`](crate::LockClient::change_ring).
    StaleRing,
    /// The server refused the request with an error that no other kind covers.
    Refused,
    /// The client was shut down.
    ShutDown,
    /// The process was forked after it had made a client: in the child no client works, not even a new one.
    Forked,
    /// The system could not start a thread, or lacked another resource.
    Resource,
}

/// Why a caller does not hold the lock.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, NotHeld};
///
/// let error = LockClient::in_memory().get_lock("stock:42").unlock().unwrap_err();
/// assert_eq!(error.not_held(), Some(&NotHeld::Free));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotHeld {
    /// The caller held the lock, and the lease ran out or the server lost the lock.
    Expired,
    /// Another owner holds the lock; the text is the owner as the store shows it.
    HeldBy(String),
    /// Nobody holds the lock.
    Free,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, action: &'static str, detail: impl Into<String>) -> Error {
        Error {
            inner: Box::new(ErrorParts {
                kind,
                action,
                lock: None,
                detail: detail.into(),
                not_held: None,
                outcome_unknown: false,
                work_ran: false,
                source: None,
            }),
        }
    }

    pub(crate) fn invalid(action: &'static str, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, action, detail)
    }

    /// Refuses to build a client unless an option is possible.
    pub(crate) fn unless<W: Into<String>>(is_possible: bool, words: impl FnOnce() -> W) -> Result<()> {
        Error::require("connect", is_possible, words)
    }

    pub(crate) fn require<W: Into<String>>(
        action: &'static str,
        is_met: bool,
        words: impl FnOnce() -> W,
    ) -> Result<()> {
        Error::when(!is_met, ErrorKind::InvalidInput, action, words)
    }

    pub(crate) fn when<W: Into<String>>(
        fails: bool,
        kind: ErrorKind,
        action: &'static str,
        words: impl FnOnce() -> W,
    ) -> Result<()> {
        if fails { Err(Error::new(kind, action, words())) } else { Ok(()) }
    }

    pub(crate) fn not_holding(action: &'static str, name: &str, why: NotHeld) -> Error {
        let detail = match &why {
            NotHeld::Expired => {
                "the caller no longer holds the lock: its lease ran out, or the server lost it".to_owned()
            }
            NotHeld::HeldBy(owner) => {
                format!("{owner} holds the lock, and only that thread, task or guard can release it")
            }
            NotHeld::Free => "nobody holds the lock: it was released already, or never acquired".to_owned(),
        };
        let mut error = Error::new(ErrorKind::NotHeld, action, detail).on(name);
        error.inner.not_held = Some(why);
        error
    }

    pub(crate) fn on(mut self, name: &str) -> Error {
        if self.inner.lock.is_none() {
            self.inner.lock = Some(shortened(name));
        }
        self
    }

    pub(crate) fn during(mut self, action: &'static str) -> Error {
        self.inner.action = action;
        self
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.inner.source = Some(Arc::from(source.into()));
        self
    }

    /// Marks that the request may have been carried out, or may still be.
    pub(crate) fn with_unknown_outcome(mut self) -> Error {
        self.inner.outcome_unknown = true;
        self
    }

    /// Marks that the request changed nothing, or that other code undoes its change.
    pub(crate) fn with_known_outcome(mut self) -> Error {
        self.inner.outcome_unknown = false;
        self
    }

    /// Marks that work under the lock had run before this failed.
    pub(crate) fn after_work(mut self) -> Error {
        self.inner.work_ran = true;
        self
    }

    pub(crate) fn copy(&self) -> Error {
        Error { inner: self.inner.clone() }
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The action that failed, for example `"lock"` or `"unlock"`.
    #[must_use]
    pub fn action(&self) -> &str {
        self.inner.action
    }

    /// The reason, without the action and the lock, for users who do not know this crate's methods.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.inner.detail
    }

    /// The lock, if there is one; a long name is cut.
    #[must_use]
    pub fn lock_name(&self) -> Option<&str> {
        self.inner.lock.as_deref()
    }

    /// Why the caller does not hold the lock, for [`ErrorKind::NotHeld`].
    #[must_use]
    pub fn not_held(&self) -> Option<&NotHeld> {
        self.inner.not_held.as_ref()
    }

    /// Whether a hold of the caller was lost, so that work under it is no longer protected:
    /// [`ErrorKind::Lost`], or [`ErrorKind::NotHeld`] from the release of a hold that had ended earlier.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.kind == ErrorKind::Lost || self.inner.not_held == Some(NotHeld::Expired)
    }

    /// Whether the caller does not hold the lock that it wanted to release.
    #[must_use]
    pub fn is_not_held(&self) -> bool {
        self.inner.kind == ErrorKind::NotHeld
    }

    /// Whether an [`Interrupt`](crate::Interrupt) ended the wait.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.inner.kind == ErrorKind::Interrupted
    }

    /// Whether the [`action`](Error::action) may succeed later without a change by the caller. The answer is
    /// about this action only: a retry of a larger function also repeats what the function did before.
    ///
    /// `false` if [`work_ran`](Error::work_ran), and therefore for every error of a release: a retry would
    /// run the work again, and the client goes on releasing by itself.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::{Busy, Credentials, OutOfMemory, ReadOnly, StaleRing, TimedOut, Unreachable};
        !self.inner.work_ran
            && matches!(
                self.inner.kind,
                Unreachable | TimedOut | Credentials | OutOfMemory | ReadOnly | Busy | StaleRing
            )
    }

    /// Whether the program held the lock before the action failed, so that work under it had run and its
    /// effects stay. True for every error of a release; of [`with_lock`](crate::AcquireOptions::with_lock)
    /// and [`run_once`](crate::LockClient::run_once) after their work; and of a
    /// [`Condition`](crate::Condition)'s wait that released the lock and did not get it back.
    ///
    /// The work was protected, unless the error [`is_lost`](Error::is_lost) as well.
    #[must_use]
    pub fn work_ran(&self) -> bool {
        self.inner.work_ran
    }

    pub(crate) fn is_silence(&self) -> bool {
        matches!(self.inner.kind, ErrorKind::Unreachable | ErrorKind::TimedOut)
    }

    /// `before`, the error of an earlier attempt, if the server answered only that attempt; otherwise `self`.
    pub(crate) fn or_answer(self, before: Option<Error>) -> Error {
        before.filter(|before| self.is_silence() && !before.is_silence()).unwrap_or(self)
    }

    /// Whether the request may have been carried out although no answer came.
    ///
    /// The client resolves this by itself: it undoes an acquire and repeats a release, until answered or
    /// until the lease is over; on ZooKeeper, where nothing has a lease, until answered.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.inner.outcome_unknown
    }
}

/// Shortens a name, which may have 64 KiB, so that an error's text stays readable.
fn shortened(name: &str) -> String {
    const MOST: usize = 200;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    let mut short: String = name.chars().take(MOST).collect();
    short.push('…');
    short
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.inner.action)?;
        if let Some(lock) = &self.inner.lock {
            write!(f, "{lock:?} ")?;
        }
        write!(f, "failed: {}", self.inner.detail)?;
        if self.inner.outcome_unknown {
            write!(f, " (outcome unknown: the server may have carried out the request)")?;
        }
        if self.inner.work_ran {
            write!(f, " (the work under the lock has run: do not repeat it)")?;
        }
        Ok(())
    }
}

/// Includes kind and cause, since Rust prints this form when `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?})", self.inner.kind)?;
        match &self.inner.source {
            Some(source) => write!(f, ", caused by: {source:?}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn text_of_an_error_leaves_out_the_cause() {
        let cause = std::io::Error::other("the cause");
        let error = Error::new(ErrorKind::Unreachable, "unlock", "the connection broke")
            .on("orders")
            .with_source(cause)
            .with_unknown_outcome();
        let text = error.to_string();
        assert_eq!(
            text,
            "unlock \"orders\" failed: the connection broke (outcome unknown: the server may have carried out the request)"
        );
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the cause"));
        assert!(error.is_retryable() && error.outcome_unknown());
    }

    #[test]
    fn an_error_after_work_is_never_retryable() {
        let error = Error::new(ErrorKind::TimedOut, "with_lock", "no answer came").on("a");
        assert!(error.is_retryable() && !error.work_ran());
        let error = error.after_work();
        assert!(error.work_ran() && !error.is_retryable());
        assert!(error.copy().work_ran());
        let text =
            "with_lock \"a\" failed: no answer came (the work under the lock has run: do not repeat it)";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_long_name_is_cut_in_the_text() {
        let error = Error::invalid("lock", "too long").on(&"x".repeat(70_000));
        assert!(error.to_string().len() < 300);
    }

    #[test]
    fn an_expired_hold_counts_as_lost_and_as_not_held() {
        let error = Error::not_holding("unlock", "a", NotHeld::Expired);
        assert!(error.is_lost() && error.is_not_held());
        assert!(!Error::not_holding("unlock", "a", NotHeld::Free).is_lost());
    }
}
