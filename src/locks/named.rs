//! The lock by name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, WaitLimit};
use crate::engine::acquire::lock_config::LockConfig;
use crate::engine::hold::LocalLock;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName, unbound_number};
use crate::inspect::Holder;
use crate::interrupt::Interrupt;
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::options::AcquireOptions;
use crate::seam::{Claim, Counting, Kind};
use crate::time::Lease;

/// A lock by name: reentrant, blocking, owned by the calling thread. On Redis it is Redisson's `RLock`, over
/// [several Redis](crate::LockClient::redlock) Redlock, elsewhere that store's lock of the name.
///
/// [`LockClient::get_lock`](crate::LockClient::get_lock) makes this handle, which is cheap to clone and has
/// no state: any number of handles for one name are one lock. Two ways of use, which may be mixed, act on the
/// calling thread's hold: Java's ([`lock`](Self::lock) … [`unlock`](Self::unlock)) and Rust's
/// ([`acquire`](Self::acquire) gives a [`Guard`]). For a deadline, or an interruptible wait with a lease, see
/// [`AcquireOptions`].
///
/// A lease given with a call belongs to that hold and is never renewed. Without one, the client's watchdog
/// renews the hold until it is released, its thread ends, or it is lost. Re-entering never shortens a hold.
///
/// # Blocking
/// Every wait ends in time: `try_lock_for(wait)` returns within `wait` and one command time-out (default 3
/// s), whatever the network does. Uncontended calls are one round trip each. While the server cannot be used,
/// calls without a deadline try for the client's retry time-out (default 10 s), and then return the error.
///
/// # Guarantees
/// While the server keeps its data and clocks agree within 1 %, no two owners hold a lock at once. A lease
/// lock cannot promise more: see the
/// [guarantees](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/guarantees.md), and
/// [`FencedLock`](crate::FencedLock) for the rest.
///
/// # Examples
/// ```
/// use leasehold::LockClient;
/// use std::time::Duration;
///
/// let client = LockClient::in_memory();
/// let lock = client.get_lock("stock:42");
///
/// lock.lock()?; // the Java way
/// lock.unlock()?;
///
/// // The Rust way: busy is None, not an error, and dropping the guard releases.
/// if let Some(guard) = lock.try_acquire_for(Duration::from_secs(3))? {
///     guard.check()?; // still held? no round trip
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "`get_lock` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
pub struct RedisLock {
    engine: Arc<Engine>,
    kind: Kind,
    config: LockConfig,
    given: Arc<str>,
    /// A bad name is an error at first use.
    name: std::result::Result<(Arc<LockName>, Arc<LocalLock>), Arc<Error>>,
}

impl RedisLock {
    pub(crate) fn new(engine: &Arc<Engine>, kind: Kind, given: &str) -> RedisLock {
        let given: Arc<str> = Arc::from(given);
        let options = &engine.options;
        let mapped = options.map_names.as_ref().map(|map| map(&given));
        let key = format!("{}{}", options.key_prefix, mapped.as_deref().unwrap_or(&given));
        let name = LockName::new(&given, key)
            .and_then(|name| engine.store.check_name(kind, &name).map(|()| Arc::new(name)))
            .map(|name| (Arc::clone(&name), engine.registry.local(kind, &name)))
            .map_err(Arc::new);
        RedisLock { engine: Arc::clone(engine), kind, config: LockConfig::default(), given, name }
    }

    pub(crate) fn with_config(self, config: LockConfig) -> RedisLock {
        RedisLock { config, ..self }
    }

    pub(crate) fn reentrant(self) -> RedisLock {
        RedisLock { config: LockConfig { reentrant: true, ..self.config }, ..self }
    }

    /// The name, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.given
    }

    /// Releases one level of the calling thread's hold; the last level releases the lock. Levels of a
    /// [`Guard`] are released only if there are no others; such a guard is then
    /// [`Lost`](crate::HoldState::Lost).
    ///
    /// # Blocking
    /// One round trip. While the server does not answer: up to the client's retry time-out (default 10 s) or
    /// the end of the lease, whichever is first.
    ///
    /// # Errors
    /// - [`is_not_held`](Error::is_not_held): this thread does not hold the lock;
    ///   [`not_held`](Error::not_held) says why.
    /// - [`outcome_unknown`](Error::outcome_unknown): no answer came; the client repeats the release until it
    ///   is answered or the lease is over.
    ///
    /// None [`is_retryable`](Error::is_retryable), and all that come from the end of a level say
    /// [`work_ran`](Error::work_ran).
    ///
    /// # Guarantees
    /// `Ok` means that this call ended this thread's level. Never ends another owner's hold, nor a later one
    /// of this thread.
    pub fn unlock(&self) -> Result<()> {
        let (name, local) = self.found("unlock")?;
        self.engine.unlock("unlock", (self.kind, name), local)
    }

    /// Frees the lock, whoever holds it; `false` if it was free. For operators: the holder is not asked.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// The server could not be used. Of kind [`WrongType`](crate::ErrorKind::WrongType), with nothing done,
    /// if the key is no lock: on Redis a hash with other fields than owners. (Every string may be a token
    /// lock.) An error with [`outcome_unknown`](Error::outcome_unknown) is not repeated.
    pub fn force_unlock(&self) -> Result<bool> {
        self.engine.force("force_unlock", self.kind, self.checked("force_unlock")?)
    }

    /// Whether anyone holds the lock, as the server says.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// The server could not be used.
    pub fn is_locked(&self) -> Result<bool> {
        let name = self.checked("is_locked")?;
        Ok(self.engine.inspect("is_locked", self.kind, name)?.is_some())
    }

    /// The holder, as the server says; `None` if the lock is free.
    ///
    /// The holder of a [token lock](crate::LockClient::get_token_lock) is its token, whichever library wrote
    /// it: a secret, since it releases the lock. ([`inspect`](crate::LockClient::inspect) shows only tokens
    /// that this crate wrote.)
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// The server could not be used, or the key is another kind of object.
    pub fn holder(&self) -> Result<Option<Holder>> {
        let snapshot = self.engine.inspect("holder", self.kind, self.checked("holder")?)?;
        Ok(snapshot.map(|snapshot| Holder {
            by_this_client: snapshot
                .holder
                .rsplit_once(':')
                .is_some_and(|(client, _)| ClientId::read(client) == Some(self.engine.id)),
            remaining: Some(snapshot.remaining.unwrap_or(Duration::MAX)),
            ..Holder::new(snapshot.holder)
        }))
    }

    /// Whether the calling thread holds the lock, as the server says. If not, a hold that this client
    /// assumed is lost from then on.
    ///
    /// # Blocking
    /// One round trip; [`Guard::check`] needs none.
    ///
    /// # Errors
    /// The server could not be used.
    pub fn is_held_by_current_thread(&self) -> Result<bool> {
        let name = self.checked("is_held_by_current_thread")?;
        let snapshot = self.engine.inspect("is_held_by_current_thread", self.kind, name)?;
        Ok(snapshot.is_some_and(|snapshot| snapshot.count > 0))
    }

    /// The number of levels that the calling thread holds, as
    /// [`is_held_by_current_thread`](Self::is_held_by_current_thread).
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// The server could not be used.
    pub fn hold_count(&self) -> Result<u32> {
        let name = self.checked("hold_count")?;
        Ok(self.engine.inspect("hold_count", self.kind, name)?.map_or(0, |snapshot| snapshot.count))
    }

    /// The remaining lease of the holder, whoever it is: `None` if the lock is free, `Some(Duration::MAX)` if
    /// the key has no end, which this crate never writes.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// The server could not be used.
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        let name = self.checked("remaining_lease")?;
        let snapshot = self.engine.inspect("remaining_lease", self.kind, name)?;
        Ok(snapshot.map(|snapshot| snapshot.remaining.unwrap_or(Duration::MAX)))
    }

    pub(crate) fn checked(&self, action: &'static str) -> Result<&Arc<LockName>> {
        Ok(self.found(action)?.0)
    }

    pub(crate) fn found(&self, action: &'static str) -> Result<(&Arc<LockName>, &Arc<LocalLock>)> {
        self.name
            .as_ref()
            .map(|(name, local)| (name, local))
            .map_err(|bad| bad.copy().during(action).on(&self.given))
    }

    pub(crate) fn want<'a>(
        &'a self,
        action: &'static str,
        lease: Lease,
        limit: WaitLimit,
        interrupt: Option<&'a Interrupt>,
    ) -> Result<AcquireCall<'a>> {
        let ((name, local), kind, config) = (self.found(action)?, self.kind, self.config);
        let call = AcquireCall::new(action, kind, (name, local), limit);
        Ok(AcquireCall { lease, interrupt, config, by_thread: true, ..call })
    }

    /// Acquires for the calling thread; `None` if the lock stayed busy.
    pub(super) fn enter(&self, action: &'static str, options: &AcquireOptions) -> Result<Option<Granted>> {
        self.engine.acquire(&self.asked(action, options)?)
    }

    /// Acquires for a guard, which becomes the owner.
    pub(super) fn own(&self, action: &'static str, options: &AcquireOptions) -> Result<Option<OwnedGuard>> {
        Ok(self.take(action, 1, options)?.map(|entered| OwnedGuard::new(&self.engine, entered)))
    }

    pub(super) fn take(
        &self,
        action: &'static str,
        units: u32,
        options: &AcquireOptions,
    ) -> Result<Option<Granted>> {
        let call = AcquireCall { units, by_thread: false, ..self.asked(action, options)? };
        self.engine.acquire(&call)
    }

    fn asked<'a>(&'a self, action: &'static str, options: &'a AcquireOptions) -> Result<AcquireCall<'a>> {
        let limit = options.limit(&self.engine.clock);
        self.want(action, options.lease_of_hold(), limit, options.interrupt.as_ref())
    }

    pub(crate) fn ask(&self, action: &'static str) -> Result<()> {
        self.engine.inspect(action, self.kind, self.checked(action)?).map(drop)
    }

    pub(crate) fn count(&self, action: &'static str, what: &Counting) -> Result<Option<i64>> {
        let name = self.checked(action)?;
        self.engine.usable(action)?;
        self.engine.count(action, &unbound_claim(&self.engine, self.kind, name), what)
    }

    pub(crate) fn derived(&self, kind: Kind, given: &str) -> Result<Arc<LockName>> {
        let lock = self.checked("condition")?;
        if given.is_empty() {
            return Err(Error::invalid("condition", "the name is empty"));
        }
        // The length keeps the keys of two locks apart.
        let name = LockName::new(&Arc::from(given), format!("{}:{given}:{}", lock.key(), given.len()))?;
        self.engine.store.check_name(kind, &name)?;
        Ok(Arc::new(name))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn unending(&self, action: &'static str) -> Error {
        unending(action, &self.given)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn leave_open(_granted: Granted) {}

    pub(crate) fn guard(&self, entered: Granted) -> Guard {
        entered.hold.guard_level(entered.level);
        Guard::new(&self.engine, entered)
    }
}

/// The claim of a request that no thread's hold is concerned with.
pub(super) fn unbound_claim(engine: &Engine, kind: Kind, name: &Arc<LockName>) -> Claim {
    engine.claim(&engine.store.capabilities(), (kind, name), unbound_number(), engine.options.lease)
}

pub(crate) fn forever() -> WaitLimit {
    WaitLimit::Deadline(crate::time::Moment::NEVER)
}

/// The error of an endless wait that ended without the lock, which cannot happen.
pub(crate) fn unending(action: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::TimedOut, action, "a wait without end ended").on(name)
}

impl From<&RedisLock> for RedisLock {
    fn from(lock: &RedisLock) -> RedisLock {
        lock.clone()
    }
}

impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock")
            .field("name", &self.given)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
