//! The lock by name, the fenced lock, the read-write lock, and the options of a lock.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{debug_fields, setters};
use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Backoff, Granted, LockConfig};
use crate::engine::hold::LocalLock;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, FencingToken, LockName, unbound_number};
use crate::inspect::Holder;
use crate::interrupt::Interrupt;
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::options::AcquireOptions;
use crate::seam::{Claim, Counting, Kind, Snapshot};
use crate::time::{Lease, Moment};

/// A lock by name: reentrant, blocking, owned by the calling thread. On Redis this lock is Redisson's
/// `RLock`, on [several Redis](crate::LockClient::redlock) Redlock, elsewhere the store's lock of that name.
///
/// [`LockClient::get_lock`](crate::LockClient::get_lock) makes this handle, which is cheap to clone and has
/// no state: any number of handles for one name are one lock. Two ways of use, which may be mixed, act on the
/// calling thread's hold: Java's ([`lock`](Self::lock) … [`unlock`](Self::unlock)) and Rust's
/// ([`acquire`](Self::acquire) gives a [`Guard`]). [`AcquireOptions`] has deadlines and interrupts with
/// leases.
///
/// A lease given with a call belongs to that hold and is never renewed. Without one, the client
/// renews the hold until it is released, its thread ends, or it is lost. Re-entering never shortens a hold.
///
/// # Blocking
/// Every wait ends in time: `try_lock_for(wait)` returns within `wait` and one command time-out (default 3
/// s), whatever the network does. Other calls are one round trip each. While the server cannot be used, calls
/// without a deadline try for the client's retry time-out (default 10 s), and then return the error.
///
/// # Guarantees
/// While the server keeps its data and clocks agree within 1 %, no two owners hold a lock at once. A lease
/// lock cannot promise more: see the
/// [guarantees](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/guarantees.md). With a [`FencedLock`]
/// a resource can refuse late writes.
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
/// // The Rust way: busy is None, not an error, and dropping the guard releases.
/// if let Some(guard) = lock.try_acquire_for(Duration::from_secs(3))? {
///     guard.check()?; // still held? no round trip
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "`get_lock` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
pub struct RedisLock {
    pub(crate) engine: Arc<Engine>,
    pub(crate) kind: Kind,
    config: LockConfig,
    given: Arc<str>,
    /// If the name is bad: the error, which each use returns.
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
        RedisLock { config: LockConfig { non_reentrant: false, ..self.config }, ..self }
    }

    /// The name, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.given
    }

    /// Releases one level of the calling thread's hold; the last level releases the lock. Levels without a
    /// guard end first. If only guards' levels are left, the call ends one of them; its guard is then
    /// [`Lost`](crate::HoldState::Lost).
    ///
    /// # Blocking
    /// One round trip; without an answer, up to the client's retry time-out or the end of the lease.
    ///
    /// # Errors
    /// - [`is_not_held`](Error::is_not_held): this thread does not hold the lock;
    ///   [`not_held`](Error::not_held) says why.
    /// - [`outcome_unknown`](Error::outcome_unknown): no answer came; the client repeats the release until it
    ///   is answered or the lease is over.
    ///
    /// No error of this call [`is_retryable`](Error::is_retryable). If the thread had a level to end, the
    /// error says [`work_ran`](Error::work_ran).
    ///
    /// # Guarantees
    /// `Ok` means that this call ended this thread's level. The call never ends another owner's hold, nor a
    /// later hold of this thread.
    pub fn unlock(&self) -> Result<()> {
        let (name, local) = self.found("unlock")?;
        self.engine.unlock("unlock", (self.kind, name), local)
    }

    /// Frees the lock, whoever holds it; `false` if it was free. For operators: the holder is not asked.
    ///
    /// # Errors
    /// The server could not be used. Of kind [`WrongType`](crate::ErrorKind::WrongType), with nothing done,
    /// if the key is no lock: on Redis a hash with other fields than owners. (Every string may be a token
    /// lock.) After an [unknown outcome](Error::outcome_unknown) the request is not repeated.
    pub fn force_unlock(&self) -> Result<bool> {
        self.engine.force("force_unlock", self.kind, self.checked("force_unlock")?)
    }

    /// Whether anyone holds the lock, as the server says.
    ///
    /// # Errors
    /// The server could not be used.
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.seen("is_locked")?.is_some())
    }

    /// The holder, as the server says; `None` if the lock is free.
    ///
    /// For a [token lock](crate::LockClient::get_token_lock) the holder is the lock's token, whichever
    /// library wrote it: a secret, since the token releases the lock.
    /// ([`inspect`](crate::LockClient::inspect) shows only tokens that this crate wrote.)
    ///
    /// # Errors
    /// The server could not be used, or the key is another kind of object.
    pub fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.seen("holder")?.map(|snapshot| Holder {
            by_this_client: snapshot
                .holder
                .rsplit_once(':')
                .is_some_and(|(client, _)| ClientId::read(client) == Some(self.engine.id)),
            remaining: Some(snapshot.remaining.unwrap_or(Duration::MAX)),
            ..Holder::new(snapshot.holder)
        }))
    }

    /// Whether the calling thread holds the lock, as the server says. If the server says no, a hold that this
    /// client still counted on is lost from then on.
    ///
    /// # Blocking
    /// One round trip; [`Guard::check`] needs none.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    pub fn is_held_by_current_thread(&self) -> Result<bool> {
        Ok(self.seen("is_held_by_current_thread")?.is_some_and(|snapshot| snapshot.count > 0))
    }

    /// The number of levels that the calling thread holds.
    ///
    /// # Errors
    /// As [`is_held_by_current_thread`](Self::is_held_by_current_thread).
    pub fn hold_count(&self) -> Result<u32> {
        Ok(self.seen("hold_count")?.map_or(0, |snapshot| snapshot.count))
    }

    /// The remaining lease of the holder, whoever it is: `None` if the lock is free, `Some(Duration::MAX)` if
    /// the key never expires; this crate writes no such key.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        Ok(self.seen("remaining_lease")?.map(|snapshot| snapshot.remaining.unwrap_or(Duration::MAX)))
    }

    fn seen(&self, action: &'static str) -> Result<Option<Snapshot>> {
        self.engine.inspect(action, self.kind, self.checked(action)?)
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
        limit: Moment,
        interrupt: Option<&'a Interrupt>,
    ) -> Result<AcquireCall<'a>> {
        let ((name, local), kind, config) = (self.found(action)?, self.kind, self.config);
        let call = AcquireCall::new(action, kind, (name, local), limit);
        Ok(AcquireCall { lease, interrupt, config, by_thread: true, ..call })
    }

    pub(super) fn enter(&self, action: &'static str, options: &AcquireOptions) -> Result<Option<Granted>> {
        self.engine.acquire(&self.asked(action, options)?)
    }

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
        self.seen(action).map(drop)
    }

    pub(crate) fn count(&self, action: &'static str, what: &Counting) -> Result<Option<i64>> {
        let name = self.checked(action)?;
        self.engine.usable(action)?;
        self.engine.count(action, &unbound_claim(&self.engine, self.kind, name), what)
    }

    pub(crate) fn derived(&self, kind: Kind, given: &str) -> Result<Arc<LockName>> {
        let lock = self.checked("condition")?;
        Error::require("condition", !given.is_empty(), || "the name is empty")?;
        // The length keeps keys apart: without it two pairs of lock and condition could have the same key.
        let name = LockName::new(&Arc::from(given), format!("{}:{given}:{}", lock.key(), given.len()))?;
        self.engine.store.check_name(kind, &name)?;
        Ok(Arc::new(name))
    }

    pub(crate) fn unending(&self, action: &'static str) -> Error {
        unending(action, &self.given)
    }

    pub(super) fn leave_open(_granted: Granted) {}

    pub(crate) fn guard(&self, entered: Granted) -> Guard {
        entered.hold.guard_level(entered.level);
        Guard::new(&self.engine, entered)
    }
}

/// A claim under an owner number of its own, for a request that concerns no thread's hold.
pub(super) fn unbound_claim(engine: &Engine, kind: Kind, name: &Arc<LockName>) -> Claim {
    engine.claim(&engine.store.capabilities, (kind, name), unbound_number(), engine.options.lease)
}

/// The error for a case that cannot happen: a wait without a limit ended without the lock.
pub(crate) fn unending(action: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::TimedOut, action, "a wait without end ended").on(name)
}

impl From<&RedisLock> for RedisLock {
    fn from(lock: &RedisLock) -> RedisLock {
        lock.clone()
    }
}

debug_fields!(RedisLock, |it| name: it.given, kind: it.kind);

/// A [`RedisLock`] whose grants each have a fencing token, larger than all earlier tokens: Redisson's
/// `RFencedLock`.
///
/// The lock is the same as the [`RedisLock`] of the name, and the two exclude each other; but only grants
/// through this type have tokens, so all holders of a fenced lock must use it. A re-entry has its hold's
/// token (a re-entry in Java has a new one).
///
/// # Guarantees
/// Tokens grow in grant order, even after the server lost its data or a lagging replica was promoted: each
/// token is the larger of the next value of Redisson's counter and the server's time in µs.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let lock = client.get_fenced_lock("ledger");
/// let first = lock.lock_and_get_token()?;
/// lock.unlock()?;
/// let guard = lock.acquire()?;
/// assert!(guard.fencing_token() > Some(first));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_fenced_lock` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
pub struct FencedLock {
    lock: RedisLock,
}

impl FencedLock {
    pub(crate) fn new(lock: RedisLock) -> FencedLock {
        FencedLock { lock }
    }

    /// Acquires the lock, waiting as long as it takes, and returns the hold's token.
    ///
    /// # Errors
    /// As [`RedisLock::lock`].
    pub fn lock_and_get_token(&self) -> Result<FencingToken> {
        let action = "lock_and_get_token";
        let entered = self.lock.enter(action, &AcquireOptions::new())?;
        self.token(action, &entered.ok_or_else(|| self.lock.unending(action))?)
    }

    /// Acquires the lock, waiting at most `wait`, and returns the hold's token; `None` if the lock is busy.
    ///
    /// # Errors
    /// As [`RedisLock::try_lock_for`].
    pub fn try_lock_and_get_token(&self, wait: Duration) -> Result<Option<FencingToken>> {
        let action = "try_lock_and_get_token";
        let entered = self.lock.enter(action, &AcquireOptions::new().wait(wait))?;
        entered.map(|entered| self.token(action, &entered)).transpose()
    }

    fn token(&self, action: &'static str, entered: &Granted) -> Result<FencingToken> {
        entered.hold.fencing_token().ok_or_else(|| {
            self.lock.engine.drop_level(&entered.hold, entered.level);
            Error::new(ErrorKind::Protocol, action, "the store granted a fenced lock without a token")
                .on(self.lock.name())
        })
    }
}

impl Deref for FencedLock {
    type Target = RedisLock;

    fn deref(&self) -> &RedisLock {
        &self.lock
    }
}

impl From<FencedLock> for RedisLock {
    /// The same lock. Its grants still get fencing tokens.
    fn from(lock: FencedLock) -> RedisLock {
        lock.lock
    }
}

impl From<&FencedLock> for RedisLock {
    fn from(lock: &FencedLock) -> RedisLock {
        lock.lock.clone()
    }
}

/// Many readers or one writer, across threads, processes and languages: Redisson's `RReadWriteLock`.
///
/// The halves are reentrant [`RedisLock`]s, with guards, leases, renewals, and fencing tokens for writers. A
/// writing thread may also read, and go on reading after it stopped writing (downgrade). A reading thread
/// cannot begin to write (upgrade): the call is refused at once, since two such threads would deadlock.
///
/// # Guarantees
/// - While one owner writes, no other reads or writes.
/// - Readers and writers take turns: once a writer has waited for 50 ms, readers that come later wait behind
///   it, and `try_lock` of the read half returns `false`; when a write ends, the readers that waited go
///   together, and then the next writer. Java's readers, and readers of older versions, do not take turns,
///   and may go first. On ZooKeeper all wait in order of arrival.
/// - A re-entry never waits for a writer. A reader deadlocks if it waits for another thread that wants to
///   read, and a writer began to wait before that thread.
/// - A read hold with an explicit lease lasts that long, even if a Java reader's renewals would shorten it.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let cache = client.get_read_write_lock("cache");
/// drop(cache.read().acquire()?);
/// let writing = cache.write().acquire()?;
/// // … rebuild …
/// let reading = cache.read().acquire()?; // downgrade: nobody writes in between
/// drop(writing);
/// drop(reading);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_read_write_lock` acquires nothing: `read().acquire()` or `write().acquire()` on the handle returns a guard"]
pub struct ReadWriteLock {
    read: RedisLock,
    write: RedisLock,
    config: LockConfig,
}

impl ReadWriteLock {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> ReadWriteLock {
        ReadWriteLock {
            read: RedisLock::new(engine, Kind::Read, name),
            write: RedisLock::new(engine, Kind::Write, name),
            config: LockConfig::default(),
        }
    }

    /// The half that many owners may hold at a time. A writing thread can take this half for itself, but not
    /// for an [`OwnedGuard`], which would be another reader: that call is refused as [`write`](Self::write)
    /// says.
    #[must_use = "`read()` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
    pub fn read(&self) -> &RedisLock {
        &self.read
    }

    /// The half that one owner may hold, while no other holds either half.
    ///
    /// A thread that holds only the read half gets an error of kind
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and `false` or `None` from calls that do not wait.
    /// The read lock of an [`OwnedGuard`] belongs to no thread: a writer waits for that guard, whichever
    /// thread has it.
    #[must_use = "`write()` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
    pub fn write(&self) -> &RedisLock {
        &self.write
    }

    /// As [`write`](Self::write), with a fencing token for each grant.
    pub fn write_fenced(&self) -> FencedLock {
        FencedLock::new(self.write.clone().with_config(LockConfig { fenced: true, ..self.config }))
    }

    /// The same lock, in which a writer comes before all new readers from the first moment of its wait on. A
    /// stream of writers can then starve readers.
    ///
    /// The order is an agreement among the users: a writer announces its wait, and readers let it go first. A
    /// process without this option, Java's among them, excludes and is excluded as always, but takes no part
    /// in the agreement. Use the option with all handles of the name.
    ///
    /// A reader may re-enter, and a writer may read, whoever waits. But while a writer waits, a holder of the
    /// read lock deadlocks if it waits for another thread that wants to read, or for an
    /// [owned guard](RedisLock::acquire_owned) of its own on the read half: both queue behind the writer.
    /// Readers wait up to 6 s for a dead writer. Of several waiting writers of one client only the first is
    /// announced: readers may enter once before the next. On ZooKeeper this option changes nothing.
    pub fn writers_first(self) -> ReadWriteLock {
        let config = LockConfig { writers_first: true, ..self.config };
        ReadWriteLock { read: self.read.with_config(config), write: self.write.with_config(config), config }
    }
}

/// Options of one lock handle, each with its default; made by
/// [`LockClient::lock_builder`](crate::LockClient::lock_builder). Other handles of the name, here or
/// elsewhere, have their own options.
///
/// # Examples
/// ```
/// use leasehold::{ErrorKind, LockClient};
/// use std::time::Duration;
///
/// let client = LockClient::in_memory();
/// let import = client.lock_builder("import").non_reentrant().max_hold(Duration::from_secs(3600)).build();
/// import.lock()?;
/// assert_eq!(import.lock().unwrap_err().kind(), ErrorKind::WouldDeadlock);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing comes of it before build()"]
pub struct LockBuilder {
    engine: Arc<Engine>,
    name: String,
    is_fair: bool,
    config: LockConfig,
}

impl LockBuilder {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> LockBuilder {
        LockBuilder {
            engine: Arc::clone(engine),
            name: name.to_owned(),
            is_fair: false,
            config: LockConfig::default(),
        }
    }

    /// The lock with these options.
    pub fn build(self) -> RedisLock {
        let kind = if self.is_fair { Kind::Fair } else { Kind::Mutex };
        RedisLock::new(&self.engine, kind, &self.name).with_config(self.config)
    }

    /// The lock with these options and a fencing token for each grant.
    pub fn build_fenced(self) -> FencedLock {
        let kind = if self.is_fair { Kind::Fair } else { Kind::Fenced };
        let config = LockConfig { fenced: true, ..self.config };
        FencedLock::new(RedisLock::new(&self.engine, kind, &self.name).with_config(config))
    }

    setters! {
    /// Serves waiters in order of arrival; see
    /// [`LockClient::get_fair_lock`](crate::LockClient::get_fair_lock). Off by default.
    pub fn fair(mut self) -> Self = is_fair: true;

    /// Refuses to re-enter on the thread that holds the lock, as Redisson's `RNonReentrantLock`: a call that
    /// would wait gets [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and a call that would not wait
    /// gets `false` or `None`. Defaults to reentrant.
    ///
    /// The lock is the same as the reentrant one; the handle that re-enters decides. For locks shared by
    /// tasks of an async runtime or jobs of a pool: those on one thread are one owner, and would re-enter.
    pub fn non_reentrant(mut self) -> Self = config.non_reentrant: true;

    /// Ends a hold `limit` after its request: the client stops renewing the hold, and the holder is
    /// notified of the loss with the reason [`HeldTooLong`](crate::LossReason::HeldTooLong), up to 1 % of the
    /// client's lease early. Counts from the first level. Defaults to no end; at least 1 ms.
    ///
    /// For work that may hang while its process lives. The store then also records since when the lock is
    /// held, when the hold ends, and the holder's location, for [`inspect`](crate::LockClient::inspect).
    pub fn max_hold(mut self, limit: Duration) -> Self = config.max_hold: Some(limit);

    /// Whether a dropped guard may leave the lock cached for its thread during this client's time slice.
    /// Defaults to `true`.
    ///
    /// A slice begins when the server grants a lock for which other clients queue. It lasts 2 ms, or 64 ms
    /// divided by the number of clients in the queue, if that is less; up to twice as long after a slice in
    /// which this process got too little processor time. In a slice a dropped guard sends no release if its
    /// hold was shorter than 0.5 ms and its thread recently re-acquired within 0.2 ms; the thread then
    /// re-acquires without a request. The client releases the lock at the end of the slice, after 0.3 ms
    /// without use, and before a call of this client asks the store about the lock.
    /// [`unlock`](RedisLock::unlock) and [`Guard::unlock`](crate::Guard::unlock) always release, unless the
    /// lock is [`cached`](Self::cached).
    ///
    /// With slices, contending threads acquire a lock many times as often. A client in the queue waits for
    /// the slice of each client before it: with n clients about 64 ms more, or n times 2 ms if that is less.
    /// If a program is killed during its slice, the lock stays taken until the lease ends, as during a hold.
    pub fn time_slice(mut self, is_on: bool) -> Self = config.no_time_slices: !is_on;

    /// Keeps the lock for its thread after each use, until another client wants it or the thread has not used
    /// it for 500 ms. Defaults to releasing after each use.
    ///
    /// For a thread that takes the same lock repeatedly and seldom shares it: the thread re-acquires without
    /// a request after a dropped guard and after [`unlock`](RedisLock::unlock). Therefore `unlock` does
    /// **not** promise that the lock is free: other clients find it held, by `try_lock` and
    /// [`inspect`](crate::LockClient::inspect) too. A call of this client that asks the store about the lock,
    /// such as [`is_locked`](RedisLock::is_locked), first releases the lock.
    ///
    /// A waiting client sends a message, the *recall*, or queues where the holder sees it (etcd, ZooKeeper).
    /// Then the holder releases the lock at once, or at the end of the present use. After two recalls within
    /// 100 ms the client does not cache this lock for one second. Where other clients queue, a plain lock is
    /// kept for a [time slice](Self::time_slice), by `unlock` as by a dropped guard. Waiters that send no
    /// recall (Redisson) are found by polling: 50 ms after the grant, then after twice as long each time, at
    /// most 500 ms. Another thread of this client needs two requests to take a cached lock. The first use of
    /// a lock is never cached.
    ///
    /// The client renews a cached lock. If the program dies within 500 ms of its last use, the lock stays
    /// taken for the client's lease, on ZooKeeper for its session. While cached, a lock keeps its fencing
    /// token.
    ///
    /// For plain and fenced locks on one Redis, with Sentinels, in a cluster, in a table of PostgreSQL, on
    /// etcd and on ZooKeeper; elsewhere acquiring fails with [`Unsupported`](crate::ErrorKind::Unsupported).
    /// Not with `max_hold` or `spin` ([`InvalidInput`](crate::ErrorKind::InvalidInput)). Owned guards, calls
    /// with a lease, and groups of locks are not cached.
    pub fn cached(mut self) -> Self = config.cached: true;

    /// Shows in the directory of clients that the holder leads and that waiters are candidates; see
    /// [`Holder::is_leader`](crate::Holder::is_leader). On Redis and PostgreSQL only three candidates stand
    /// in the wait queue; the others try to acquire the lock once in a third of their lease.
    /// [`LockClient::leader`](crate::LockClient::leader) sets this option by itself. Use it for a program's
    /// own election over a fenced lock, so that monitoring does not take its leader for a hold that hangs.
    pub fn election(mut self) -> Self = config.leads: true;

    /// Waits by polling instead of notifications; see
    /// [`LockClient::get_spin_lock`](crate::LockClient::get_spin_lock).
    pub fn spin(mut self, backoff: Backoff) -> Self = config.backoff: Some(backoff);
    }
}
