//! The client: what a program makes once, clones, and takes its locks from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Options, RedisOptions};
use crate::error::Result;
use crate::ident::{ClientId, Owner, ThreadMark};
use crate::lock::engine::Engine;
use crate::lock::guard::Guard;
use crate::lock::named::{FencedLock, NamedLock, RedisLock};
use crate::lock::report::Reporter;
use crate::lock::store::{Kind, Store};
use crate::observe::Observer;
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::time::Clock;

/// A connection to where locks are kept, and one random id under which this client's threads own them.
///
/// Make one per process and clone it: clones are cheap and are the same client. Two clients are two owners, as in
/// Redisson: a thread that holds a lock through one does not hold it through the other.
///
/// Locks and guards keep the client alive. When the last clone goes, or at [`shutdown`](Self::shutdown), what it still
/// holds is released and its threads end. A client does not survive a fork: in the child every call returns an error of
/// kind [`Forked`](crate::ErrorKind::Forked).
///
/// # Examples
///
/// ```no_run
/// use leasehold::LockClient;
///
/// let client = LockClient::connect("redis://127.0.0.1:6379")?;
/// let lock = client.lock("stock:42");
/// lock.lock()?;
/// // … one thread of all processes at a time …
/// lock.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct LockClient {
    engine: Arc<Engine>,
}

impl LockClient {
    /// Connects to the Redis at `url` with all options at their defaults.
    ///
    /// URLs: `redis://[user:password@]host[:port][/database]`, `rediss://…` (TLS; feature `tls`), `redis+unix:///path`.
    ///
    /// # Blocking
    ///
    /// Up to the connect time-out (default 3 s).
    ///
    /// # Errors
    ///
    /// At once, and clearly, when the URL cannot be used, no server is there, it wants other credentials, it is older
    /// than Redis 6.2, it is a replica or a sentinel, or it refuses scripts.
    pub fn connect(url: &str) -> Result<LockClient> {
        LockClient::builder().url(url).build()
    }

    /// Starts a client with options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use leasehold::LockClient;
    /// use std::time::Duration;
    ///
    /// let client = LockClient::builder()
    ///     .url("redis://127.0.0.1:6379/3")
    ///     .lease(Duration::from_secs(10))
    ///     .key_prefix("shop:")
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Makes a client whose locks are kept in this process, for tests and examples.
    ///
    /// # Panics
    ///
    /// When the system cannot start the watchdog's thread.
    #[must_use]
    pub fn in_memory() -> LockClient {
        LockClient::in_memory_with(&MemoryStore::new())
    }

    /// Makes a client on a memory store that others may be on as well.
    ///
    /// # Panics
    ///
    /// When the system cannot start the watchdog's thread.
    #[must_use]
    #[expect(clippy::expect_used, reason = "documented; for tests, where a Result only adds noise")]
    pub fn in_memory_with(store: &MemoryStore) -> LockClient {
        LockClient::builder().build_in_memory(store).expect("the watchdog's thread starts")
    }

    fn start(
        options: Options,
        clock: Clock,
        store: Arc<dyn Store>,
        reporter: Arc<Reporter>,
    ) -> Result<LockClient> {
        Ok(LockClient { engine: Arc::new(Engine::start(options, clock, store, reporter)?) })
    }

    /// The client's id, the first part of its threads' owner ids.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.engine.id
    }

    /// Under which owner id the calling thread would take its next lock.
    #[must_use]
    pub fn current_owner(&self) -> Owner {
        Owner::new(self.engine.id, ThreadMark::current().number())
    }

    /// The reentrant lock of this name: Redisson's `RLock`.
    ///
    /// No I/O and no error: a bad name (empty, over 64 KiB, or one that belongs to another lock's bookkeeping) is an
    /// error at first use.
    #[must_use]
    pub fn lock(&self, name: &str) -> RedisLock {
        NamedLock::new(&self.engine, Kind::Mutex, name)
    }

    /// The same lock, with a fencing token for each grant: Redisson's `RFencedLock`.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock::new(NamedLock::new(&self.engine, Kind::Fenced, name))
    }

    /// The simple lock that most articles describe and most libraries use: `SET name token NX PX lease`, released by
    /// compare-and-delete. It shares locks with redis-py's `Lock` and with redsync on one node.
    ///
    /// Not reentrant (a thread that waits for its own gets an error of kind
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock)), and waits by polling each 50–100 ms, since those libraries
    /// announce no release. Everything else is as with [`lock`](Self::lock): guards, watchdog, states and errors.
    #[must_use]
    pub fn token_lock(&self, name: &str) -> NamedLock {
        NamedLock::new(&self.engine, Kind::Token, name)
    }

    /// Runs `work` under the lock of this name.
    ///
    /// # Blocking
    ///
    /// As [`NamedLock::lock`], then `work`, then one round trip.
    ///
    /// # Errors
    ///
    /// As [`NamedLock::lock`], when `work` was not run; as [`Guard::unlock`], when it was. The latter
    /// [`is_lost`](crate::Error::is_lost) if the hold did not last until the end of `work`.
    ///
    /// # Panics
    ///
    /// When `work` does; the lock is released first.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let sum = client.with_lock("sum", |_guard| 1 + 1)?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock<R>(&self, name: &str, work: impl FnOnce(&Guard) -> R) -> Result<R> {
        let guard = self.lock(name).acquire()?;
        let result = work(&guard);
        guard.unlock()?;
        Ok(result)
    }

    /// Releases what this client holds and ends its threads. Waiters return with an error, holders are told that their
    /// holds are lost, later calls return an error of kind [`ShutDown`](crate::ErrorKind::ShutDown).
    ///
    /// # Blocking
    ///
    /// One round trip for all holds together; at most about two command time-outs (default 3 s each) in all.
    ///
    /// # Errors
    ///
    /// A release failed; its lock ends with its lease.
    pub fn shutdown(&self) -> Result<()> {
        self.engine.shutdown()
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("id", &self.engine.id).finish_non_exhaustive()
    }
}

/// Options of a client, each with its default.
#[derive(Default)]
#[must_use = "nothing happens before build()"]
pub struct ClientBuilder {
    options: Options,
    redis: RedisOptions,
    observer: Option<Arc<dyn Observer>>,
}

impl ClientBuilder {
    /// Where the server is; see [`LockClient::connect`].
    pub fn url(mut self, url: &str) -> Self {
        url.clone_into(&mut self.redis.url);
        self
    }

    /// How long a hold without a lease of its own lasts when its process dies; renewed each third of it.
    /// Defaults to 30 s, as Redisson's; at least 100 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long one request may take. Defaults to 3 s.
    ///
    /// Past it the outcome is unknown and is resolved by the client. Keep it under a third of the lease.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.options.command_timeout = timeout;
        self.redis.command_timeout = timeout;
        self
    }

    /// How long connecting may take. Defaults to 3 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.redis.connect_timeout = timeout;
        self
    }

    /// How long calls keep trying while the server cannot be used, deadlines permitting. Defaults to 10 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// How many connections requests may use: up to 4 that all threads share, and the rest for what needs one alone (of
    /// those there is always one). Renewals and wake-ups have one more each. Defaults to 8.
    pub fn pool_size(mut self, size: u32) -> Self {
        self.redis.pool_size = size;
        self
    }

    /// The ACL user. Defaults to the URL's.
    pub fn username(mut self, username: &str) -> Self {
        self.redis.username = Some(username.to_owned());
        self
    }

    /// The password. Defaults to the URL's. Never shown in errors or `Debug`.
    pub fn password(mut self, password: &str) -> Self {
        self.redis.password = Some(password.to_owned());
        self
    }

    /// The database number. Defaults to the URL's, or 0.
    pub fn database(mut self, database: i64) -> Self {
        self.redis.database = Some(database);
        self
    }

    /// The name that the connections show in `CLIENT LIST`: printable ASCII without spaces. Defaults to none.
    pub fn client_name(mut self, name: &str) -> Self {
        self.redis.client_name = Some(name.to_owned());
        self
    }

    /// What is put before each lock's name to make its key, after mapping. Defaults to nothing.
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.options.key_prefix);
        self
    }

    /// Turns a lock's name into its key, as Redisson's `NameMapper`. Defaults to the name itself.
    pub fn map_names(mut self, map: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.options.map_names = Some(Arc::new(map));
        self
    }

    /// How long a subscription stays after its last waiter has gone. Defaults to 5 s.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.redis.linger = linger;
        self
    }

    /// Uses no scripts, for servers that refuse them: only [`LockClient::token_lock`] works then.
    pub fn without_scripts(mut self) -> Self {
        self.redis.scripts = false;
        self
    }

    /// The authorities to trust for `rediss://`, as a PEM file. Defaults to the system's.
    #[cfg(feature = "tls")]
    pub fn tls_ca(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.redis.tls_ca = Some(file.into());
        self
    }

    /// Who is told what happens to the locks. Defaults to nobody.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Connects.
    ///
    /// # Blocking
    ///
    /// Up to the connect time-out.
    ///
    /// # Errors
    ///
    /// As [`LockClient::connect`]; and, before any I/O, for options that cannot be used.
    pub fn build(self) -> Result<LockClient> {
        let options = self.options.checked()?;
        let redis = self.redis.checked()?;
        let reporter = Arc::new(Reporter::new(self.observer));
        let store = Arc::new(RedisStore::connect(&redis, Arc::clone(&reporter))?);
        LockClient::start(options, Clock::System, store, reporter)
    }

    /// Makes the client on a memory store instead; what concerns a server is not looked at.
    ///
    /// # Errors
    ///
    /// For options that cannot be used.
    pub fn build_in_memory(self, store: &MemoryStore) -> Result<LockClient> {
        let options = self.options.checked()?;
        let reporter = Arc::new(Reporter::new(self.observer));
        LockClient::start(options, store.clock().clone(), Arc::new(store.open()), reporter)
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("redis", &self.redis).finish_non_exhaustive()
    }
}
