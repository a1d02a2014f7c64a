//! The client, which a program makes once, clones, and takes its locks from.

mod builder;
mod env;
mod lists;
mod open;
pub(crate) mod settings;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Options, RedlockNode};
use crate::directory::run::LastRun;
use crate::engine::acquire::call::Backoff;
use crate::engine::core::StoreCell;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::{Engine, MANY_CLIENTS};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::is_forked;
use crate::ident::derived::PING;
use crate::ident::{ClientId, NOBODY, Owner, ThreadMarker};
use crate::inspect::{Health, Inspection, Wakeups};
use crate::interrupt::Interrupt;
use crate::locks::counted::{CountDownLatch, ExpirableSemaphore, Semaphore};
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::leader::Leader;
use crate::locks::multi::{IntoLocks, MultiLock};
use crate::locks::named::{FencedLock, LockBuilder, ReadWriteLock, RedisLock};
use crate::locks::options::AcquireOptions;
use crate::locks::run_once::run_once;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::observe::stats::{Contended, Stats};
use crate::seam::Kind;
use crate::stores::memory::{Fault, MemoryAccess, MemoryStore};
use crate::time::{Clock, ManualClock};
use crate::topologies::ring::RingStore;
use crate::topologies::ring::plan::{Ring, RingNode};

pub use builder::ClientBuilder;
pub use lists::{Clients, ListCost, ListedLock, Locks};

/// A connection to a store, and the random id under which this client's threads own locks.
///
/// Make one client per process and clone it: clones are cheap and are the same client. Two clients are two
/// owners, as in Redisson: a thread that holds a lock through one does not hold the lock through the other.
///
/// Locks and guards keep the client alive. When the last clone is dropped, or at
/// [`shutdown`](Self::shutdown), the client releases what it holds and ends its threads. A client does not
/// survive a fork: in the child every call returns an error of kind [`Forked`](crate::ErrorKind::Forked), and
/// so does building another client. Fork before the first client is built, or start a program.
///
/// # Examples
/// ```no_run
/// use leasehold::LockClient;
///
/// let client = LockClient::connect("redis://127.0.0.1:6379")?;
/// let left = client.with_lock("stock:42", |_guard| {
///     // … one thread of all processes at a time …
///     41
/// })?;
/// assert_eq!(left, 41);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LockClient {
    engine: Arc<Engine>,
}

impl LockClient {
    /// Connects to the store at `url` with all options at their defaults.
    ///
    /// | URL | Store |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]`, `redis+unix:///path` | one Redis; `rediss://` with TLS |
    /// | `redis-sentinel://[user:password@]host[:port],…/master-name[/database]` | the master that these Sentinels name; `rediss-sentinel://` with TLS |
    /// | `redis-cluster://[user:password@]host[:port],…` | a Redis Cluster, by some of its members; `rediss-cluster://` with TLS |
    /// | `postgres://…`, `mysql://…`, `mariadb://…`, `sqlite:///path` | a [database](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md) |
    /// | `etcd://[user:password@]host[:port][,…][/prefix]` | an etcd cluster; `etcds://` with TLS |
    /// | `zk://[user:password@]host[:port][,…][/path]` | a ZooKeeper ensemble, with locks below the path as Curator has them; `zks://` with TLS. A name that begins with `/` is a path of its own |
    ///
    /// All but Redis need the feature of their name, and TLS the feature `tls`. A Sentinel URL has the data
    /// servers' user; [`sentinel_username`](ClientBuilder::sentinel_username) is the Sentinels' own.
    ///
    /// # Blocking
    /// Up to the connect time-out (default 3 s).
    ///
    /// # Errors
    /// At once, if the URL cannot be used, no server answers, the server refuses the credentials or scripts,
    /// is older than Redis 6.2 or etcd 3.4, or is a replica or a Sentinel. Of kind
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if this build lacks the store's feature, which the text
    /// names. With Sentinels: if none answers, or they know no such master. While that master is down,
    /// `connect` tries on until the connect time-out.
    pub fn connect(url: impl AsRef<str>) -> Result<LockClient> {
        LockClient::builder().url(url).build()
    }

    /// As [`connect`](Self::connect), but connects at first use: a server that is down is no error yet. See
    /// [`ClientBuilder::connect_lazily`].
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn connect_lazily(url: impl AsRef<str>) -> Result<LockClient> {
        LockClient::builder().url(url).connect_lazily().build()
    }

    /// Connects to several independent Redis servers and holds each lock on a majority of them: Redlock.
    ///
    /// Use three or five servers that share no replication, machine or power supply. The client is used like
    /// any other; its locks survive the loss of a minority of the servers. Use a [fencing
    /// token](Self::get_fenced_lock), and restart a server that lost its data only after the longest lease:
    /// [why](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/topologies.md#redlock-and-servers-that-forget).
    /// Options: [`ClientBuilder::redlock`].
    ///
    /// # Blocking
    /// Until a majority has answered; then as long again, at least one `node_timeout` (50 ms), for the other
    /// servers. A server that answers later joins then. Without a majority, up to the connect time-out
    /// (default 3 s) for each connection.
    ///
    /// # Errors
    /// Fewer than three servers; two URLs of one server; a member of a cluster; fewer than a majority
    /// reachable; or a server that answers and cannot be used, as [`connect`](Self::connect).
    ///
    /// # Examples
    /// ```no_run
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let client = leasehold::LockClient::redlock(nodes)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn redlock<N: Into<RedlockNode>>(nodes: impl IntoIterator<Item = N>) -> Result<LockClient> {
        LockClient::builder().redlock(nodes).build()
    }

    /// Starts a builder, which takes a client's options and then makes the client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to independent Redis servers, each of which keeps a part of the locks, chosen by name. See
    /// [`Ring`] for lists of servers that change.
    ///
    /// # Blocking
    /// Up to the connect time-out (default 3 s), for all nodes together.
    ///
    /// # Errors
    /// The list is empty, has a bad label, names a server twice or names a cluster; a node knows another list
    /// with this list's version number; a node cannot keep locks; or no node can be reached. Kind
    /// [`StaleRing`](crate::ErrorKind::StaleRing) if a node knows a later list.
    ///
    /// # Guarantees
    /// Each name has the guarantees of one server. A node has no replica here: while it is away its names
    /// cannot be locked, and the names of other nodes are not affected.
    pub fn ring<N: Into<RingNode>>(nodes: impl IntoIterator<Item = N>) -> Result<LockClient> {
        LockClient::builder().ring(Ring::new(nodes)).build()
    }

    /// Changes to another list of nodes, or to the same list, under a higher number ([`Ring::epoch`]). A lock
    /// that is held stays where it was granted until it is released.
    ///
    /// Processes may change one after the other. As soon as one process has changed, nodes refuse processes
    /// with the older list, with the error [`StaleRing`](crate::ErrorKind::StaleRing); waiting calls retry
    /// for their `retry_timeout`. New processes start with the new list.
    ///
    /// # Blocking
    /// Up to the connect time-out, if a node does not answer; that node gets the list with the next request.
    ///
    /// # Errors
    /// The list's number is not above the present list's, the list does not name the nodes that it moves
    /// from, a node refuses or is not the expected one, or none can be reached. The client then keeps its old
    /// list, although nodes that have the new one refuse it: call this again. Kind
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the client was not made for a ring.
    ///
    /// # Guarantees
    /// No name is granted by two nodes, whichever lists processes use. The old node stores the new number,
    /// from then on refuses the old list, and reports the name free; only then does the new node grant a
    /// moved name. While the old node cannot be asked, the name cannot be locked; see [`RingNode::lost`].
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold::{LockClient, Ring};
    ///
    /// let client = LockClient::ring(["redis://10.0.0.1", "redis://10.0.0.2"])?;
    /// let three = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// client.change_ring(Ring::new(three).epoch(2).moving_from(["redis://10.0.0.1", "redis://10.0.0.2"]))?;
    /// // … when no lock from before is held any more …
    /// client.change_ring(Ring::new(three).epoch(3))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn change_ring(&self, ring: Ring) -> Result<()> {
        self.engine.usable("change_ring")?;
        match self.engine.store.downcast::<RingStore>() {
            Some(store) => store.change(ring),
            None => {
                let words = "only a client made by LockClient::ring can change its ring";
                Err(Error::new(ErrorKind::Unsupported, "change_ring", words))
            }
        }
    }

    /// Makes a client whose locks are in this process, for tests and examples.
    ///
    /// # Panics
    /// As [`in_memory_with`](Self::in_memory_with).
    #[must_use]
    pub fn in_memory() -> LockClient {
        LockClient::in_memory_with(&MemoryStore::new())
    }

    /// Makes a client on a memory store, which clients may share.
    ///
    /// # Panics
    /// If the system cannot start the thread that renews, or the process was forked after it had made a
    /// client.
    #[must_use]
    #[expect(clippy::expect_used, reason = "documented; for tests, where a Result only adds noise")]
    pub fn in_memory_with(store: &MemoryStore) -> LockClient {
        LockClient::builder().build_in_memory(store).expect("a client in memory")
    }

    fn start(
        options: Options,
        clock: Clock,
        store: StoreCell,
        reporter: Arc<Reporter>,
    ) -> Result<LockClient> {
        let engine = Arc::new(Engine::start(options, clock, store, reporter)?);
        if engine.is_one_too_many() {
            let text = format!(
                "this process has {MANY_CLIENTS} clients at a time, each with threads and connections of its own: make one for each \
                 store, and clone it, which costs nothing"
            );
            engine.reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
        }
        Ok(LockClient { engine })
    }

    /// The client's id, with which the ids of its owners begin.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.engine.id
    }

    /// The owner under which the calling thread takes its next lock. In a forked child: an owner that holds
    /// nothing.
    ///
    /// If this client has no right to the store's wait queue, its id in owners of plain and fenced locks is a
    /// UUID of version 4 instead of 8 (see
    /// [permissions](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/permissions.md)).
    #[must_use]
    pub fn current_owner(&self) -> Owner {
        if is_forked() {
            return Owner::new(self.engine.id, NOBODY);
        }
        Owner::new(
            self.engine.id,
            self.engine.next_number(&self.engine.store.capabilities, &ThreadMarker::current(), &mut None),
        )
    }

    /// The reentrant lock of this name: Redisson's `RLock`. Nothing is acquired: see [`RedisLock`].
    ///
    /// No I/O. A bad name is an error at first use: if it is empty, over 64 KiB, or looks like a key that the
    /// store has beside another lock's own, such as that of a queue.
    pub fn get_lock(&self, name: impl AsRef<str>) -> RedisLock {
        RedisLock::new(&self.engine, Kind::Mutex, name.as_ref())
    }

    /// The same lock as [`get_lock`](Self::get_lock), with a fencing token for each grant: Redisson's
    /// `RFencedLock`.
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::new(RedisLock::new(&self.engine, Kind::Fenced, name.as_ref()))
    }

    /// The lock of most articles and libraries: `SET name token NX PX lease`, released by compare-and-delete.
    /// Shared with redis-py's `Lock`, and with redsync on one node.
    ///
    /// Not reentrant: a thread that waits for its own lock gets
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock). Waiters poll each 50–100 ms: no release is
    /// announced.
    pub fn get_token_lock(&self, name: impl AsRef<str>) -> RedisLock {
        RedisLock::new(&self.engine, Kind::Token, name.as_ref())
    }

    /// The lock that serves waiters in order of arrival, in all processes: Redisson's fair `RLock`.
    ///
    /// A waiter keeps its place in the store's queue by an attempt at least each 1.2 s; a dead one is skipped
    /// after some 6 s (Redisson's after up to five minutes). `try_lock` succeeds only if nobody waits.
    ///
    /// Each hand-over takes a message and a request, so fair locks are slower. For one name use fair locks or
    /// [`get_lock`](Self::get_lock), not both: holders by `get_lock` ignore the queue and wake no fair
    /// waiter.
    pub fn get_fair_lock(&self, name: impl AsRef<str>) -> RedisLock {
        self.lock_builder(name).fair().build()
    }

    /// The lock of this name that many readers or one writer may hold: Redisson's `RReadWriteLock`.
    pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        ReadWriteLock::new(&self.engine, name.as_ref())
    }

    /// The semaphore of this name, a number of permits: Redisson's `RSemaphore`.
    pub fn get_semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(&self.engine, name.as_ref())
    }

    /// The semaphore of this name whose permits have ids and leases: Redisson's `RPermitExpirableSemaphore`.
    pub fn get_expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::new(&self.engine, name.as_ref())
    }

    /// The latch of this name, a count that threads wait to reach zero: Redisson's `RCountDownLatch`.
    pub fn get_count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch::new(&self.engine, name.as_ref())
    }

    /// One lock made of several, of any kinds and clients, which are acquired all or none: Redisson's
    /// `RedissonMultiLock`.
    ///
    /// No I/O and no error: an empty list, a lock given twice, and a bad name are errors at first use.
    pub fn get_multi_lock(&self, locks: impl IntoLocks) -> MultiLock {
        MultiLock::new(&self.engine.clock, locks.into_locks())
    }

    /// The same lock as [`get_lock`](Self::get_lock), with [options](LockBuilder).
    pub fn lock_builder(&self, name: impl AsRef<str>) -> LockBuilder {
        LockBuilder::new(&self.engine, name.as_ref())
    }

    /// The same lock as [`get_lock`](Self::get_lock), whose waiters poll with sleeps that double from 1 ms to
    /// 128 ms: Redisson's `RSpinLock`. Other sleeps: [`LockBuilder::spin`].
    ///
    /// For store users without the right to subscribe, and for locks rarely waited for. A release also
    /// notifies waiters that do not spin; a release of Java's spin lock notifies no waiter. Spinning threads
    /// of a client queue locally.
    pub fn get_spin_lock(&self, name: impl AsRef<str>) -> RedisLock {
        self.lock_builder(name).spin(Backoff::default()).build()
    }

    /// Runs `work` under the lock of this name, waiting as long as it takes. [`AcquireOptions::with_lock`]
    /// does so under any lock, with a bound on the wait, a lease or an interrupt.
    ///
    /// # Errors
    /// As [`AcquireOptions::with_lock`].
    ///
    /// # Panics
    /// When `work` does; the lock is released first.
    pub fn with_lock<R>(&self, name: impl AsRef<str>, work: impl FnOnce(&Guard) -> R) -> Result<R> {
        let lock = self.get_lock(name);
        AcquireOptions::new().with_lock(&lock, work)?.ok_or_else(|| lock.unending("with_lock"))
    }

    /// Asks the store one question, for health checks. Returns the time of the round trip, and whether
    /// messages wake waiters.
    ///
    /// The question is whether a lock called `leasehold_ping` (after prefix and mapping) is held. In a
    /// cluster and in a ring the server that keeps this name answers; on a Redlock a majority.
    ///
    /// # Blocking
    /// One round trip, at most one command time-out (default 3 s), and before it the connect time-out, if the
    /// client [connects lazily](ClientBuilder::connect_lazily) and has not yet.
    ///
    /// # Errors
    /// The store could not be used. A missing permission, or another object at that key, is no error.
    pub fn ping(&self) -> Result<Health> {
        let engine = &self.engine;
        engine.usable("ping")?;
        let begun = engine.clock.now();
        let asked = [Kind::Mutex, Kind::Token].map(|kind| RedisLock::new(engine, kind, PING));
        let lock = asked.iter().find(|lock| lock.checked("ping").is_ok());
        let lock = lock.or(asked.first());
        if let Err(error) = lock.map_or(Ok(()), |lock| lock.ask("ping"))
            && !matches!(error.kind(), ErrorKind::NoPermission | ErrorKind::WrongType)
        {
            return Err(error);
        }
        let latency = engine.clock.now().since(begun);
        let capabilities = &engine.store.capabilities;
        let wakeups = match (capabilities.wakes, engine.reporter.can_wake()) {
            (false, _) => Wakeups::Polled,
            (true, false) => Wakeups::Down,
            (true, true) => Wakeups::Working,
        };
        Ok(Health {
            store: engine.options.store,
            latency,
            wakeups,
            table: capabilities.table.as_ref().map(|table| table.name.clone()),
            other_tables: capabilities.table.as_ref().map(|table| table.others.clone()).unwrap_or_default(),
        })
    }

    /// Shows the object under a name, of whatever kind, Redisson's too: who holds it, how often and for how
    /// long, who waits, how many permits are out. Changes nothing.
    ///
    /// Holders and waiters of this crate are shown with host, process, program and thread, as they wrote to
    /// the [directory](ClientBuilder::directory) up to a third of their lease ago. Of Redisson's holders and
    /// waiters only the id is known. Stores other than Redis and memory report what they know: most of them
    /// one holder and its remaining time.
    ///
    /// # Blocking
    /// - To read the lock: one round trip on Redis and in a database's table, two on etcd, one for each holder
    ///   and waiter on ZooKeeper, up to four elsewhere.
    /// - To locate holders and waiters: one more round trip on a single Redis, elsewhere one for each
    ///   other client.
    /// - To find waiters that the store does not know: up to 400 pages of the directory.
    ///
    /// Each of the three steps may take one command time-out.
    ///
    /// # Errors
    /// The name is bad; the server could not be used; or the user may not read the keys of every kind.
    ///
    /// # Guarantees
    /// On one Redis, in a cluster and in memory all but the number of listeners was true at one moment; on a
    /// Redlock a majority showed it. The answer is old when it is read: never use it to decide who may go on.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Inspection> {
        self.engine.describe("inspect", self.get_lock(name).checked("inspect")?)
    }

    /// The numbers of this client: holds by state, waiters, grants, losses, renewals, wake-ups by cause. For
    /// metrics and health pages, without an [`Observer`](crate::Observer).
    ///
    /// # Blocking
    /// Never; the store is not asked. The list of holds is locked while it is copied: some 20 ns a hold.
    ///
    /// # Guarantees
    /// The numbers are not of one moment: a call that ends meanwhile may be in one of them and not in
    /// another. All are zero in a forked child.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The locks for which calls of this client waited most often, at most `max`, the most awaited first. The
    /// client counts calls that slept, from its start on, in memory for 256 names.
    ///
    /// # Blocking
    /// Never; the store is not asked.
    ///
    /// # Guarantees
    /// A name is counted if more than 1 in 256 of all waits was for it. No count is too low;
    /// [`overcount`](Contended::overcount) says how much too high a count may be.
    pub fn contended(&self, max: usize) -> Vec<Contended> {
        if is_forked() { Vec::new() } else { self.engine.reporter.counters.contended(max) }
    }

    /// Deletes a database's rows of locks that were free for over `age`; returns how many, elsewhere 0.
    ///
    /// For programs that make up lock names and never use them again. A day is a good age: fencing tokens
    /// still only grow, unless the server's clock is set back by more than `age`.
    ///
    /// # Blocking
    /// One round trip for each thousand rows. The call waits for no lock, and delays none.
    ///
    /// # Errors
    /// The server's error; rows removed before it stay removed.
    pub fn sweep(&self, age: Duration) -> Result<u64> {
        self.engine.sweep(age)
    }

    /// Describes, in words for people, the causes that keep a database from removing old row versions, which
    /// slows locks down: the oldest transaction that is open for longer than `age`, unused replication slots,
    /// a long history list, a long SQLite log. Facts that the user may not see are left out. Empty elsewhere.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// The server's error.
    pub fn vacuum_blockers(&self, age: Duration) -> Result<Vec<String>> {
        self.engine.vacuum_blockers(age)
    }

    /// Makes this process a [candidate](Leader) for `name`: the holder of the fenced lock of that name leads.
    ///
    /// # Blocking
    /// Never: the candidate has a thread of its own, which waits.
    ///
    /// # Errors
    /// The name is bad, the client was shut down, or the system could not start a thread.
    pub fn leader(&self, name: impl AsRef<str>) -> Result<Leader> {
        Leader::stand(&self.engine, Arc::clone(self.get_fenced_lock(name).checked("leader")?))
    }

    /// Runs `job` unless another process runs it, or began it within the last `at_least`: then `None`.
    ///
    /// For timers that fire in many processes at about the same time: the lock of the name is taken without
    /// waiting, and stays taken until `at_least` has passed since the request, even if the job ends sooner.
    /// `at_least` should be longer than the processes' timers are apart, and shorter than the time between
    /// two ticks. If a process dies during its job, the first tick after `at_most` runs the job again.
    ///
    /// # Blocking
    /// One round trip, then `job`, then one round trip; while the server does not answer, up to the client's
    /// retry time-out or the end of `at_most`. On Redlock, processes that ask at the same moment may all be
    /// refused; they ask again at random moments, for about three seconds at most.
    ///
    /// # Errors
    /// As [`RedisLock::try_lock`], and for an `at_least` over `at_most`: `job` was not run. After the job: an
    /// error that [`is_not_held`](crate::Error::is_not_held) if the job took longer than `at_most`, so that
    /// another may have begun; of kind [`ShutDown`](crate::ErrorKind::ShutDown) if the client was shut down
    /// meanwhile. A failed release is no error: the observer gets
    /// [`ReleaseFailed`](crate::Event::ReleaseFailed), and the client frees the lock when `at_least` has
    /// passed, or the lock ends with `at_most`.
    ///
    /// # Panics
    /// When `job` does; it counts as run.
    ///
    /// # Guarantees
    /// Once per tick within the
    /// [limits](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/guarantees.md#limits-of-every-lease-lock)
    /// of a lease. A job that must never run twice also needs its own record that it has run.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # let client = leasehold::LockClient::in_memory();
    /// let (at_least, at_most) = (Duration::from_secs(50), Duration::from_secs(600));
    /// assert_eq!(client.run_once("nightly", at_least, at_most, |_guard| 42)?, Some(42));
    /// assert_eq!(client.run_once("nightly", at_least, at_most, |_guard| 42)?, None); // not again so soon
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run_once<R>(
        &self,
        name: impl AsRef<str>,
        at_least: Duration,
        at_most: Duration,
        job: impl FnOnce(&OwnedGuard) -> R,
    ) -> Result<Option<R>> {
        run_once(
            &self.engine,
            (Kind::Mutex, self.get_lock(name).checked("run_once")?),
            at_least,
            at_most,
            job,
        )
    }

    /// As [`run_once`](Self::run_once), with the [fenced](Self::get_fenced_lock) lock of the name. The guard
    /// has a token, by which a resource can refuse writes of a run that took longer than `at_most`.
    ///
    /// # Errors
    /// As [`run_once`](Self::run_once).
    pub fn run_once_fenced<R>(
        &self,
        name: impl AsRef<str>,
        at_least: Duration,
        at_most: Duration,
        job: impl FnOnce(&OwnedGuard) -> R,
    ) -> Result<Option<R>> {
        let lock = self.get_fenced_lock(name);
        run_once(&self.engine, (Kind::Fenced, lock.checked("run_once")?), at_least, at_most, job)
    }

    /// Records how a run of a job ended, for [`last_run`](Self::last_run). The job of
    /// [`run_once`](Self::run_once) calls this at its end, with its guard. A `code` of 0 is a success. The
    /// record stays in the directory for 40 days.
    ///
    /// # Blocking
    /// One round trip, or two if `code` is not 0: up to a command time-out each.
    ///
    /// # Errors
    /// The store could not be used (without an answer, [the record may have been
    /// written](crate::Error::outcome_unknown)), or the user lacks the right to its directory entry. Of kind
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where [`run_once`](Self::run_once) is, and in a
    /// database without the table of clients.
    pub fn record_run(&self, guard: &OwnedGuard, code: u8, took: Duration) -> Result<()> {
        let lock = self.get_lock(guard.name());
        self.engine.record_run(lock.checked("record_run")?, guard.owner(), code, took)
    }

    /// How the last [recorded](Self::record_run) run of a job ended, by one round trip; `None`: no run in the
    /// last 40 days.
    ///
    /// # Errors
    /// As [`record_run`](Self::record_run).
    pub fn last_run(&self, name: impl AsRef<str>) -> Result<Option<LastRun>> {
        self.engine.last_run(self.get_lock(name).checked("last_run")?)
    }

    /// Releases all holds of this client and ends its threads. Waiters return with an error, holders are
    /// notified of the loss, later calls return an error of kind [`ShutDown`](crate::ErrorKind::ShutDown).
    ///
    /// # Blocking
    /// Until the calls of other threads, which are woken, have ended; then one round trip for all holds
    /// together. Without answers at most three command time-outs. A second call waits for the first.
    ///
    /// # Errors
    /// A release failed, or a call did not end in time; its lock ends with its lease. Another
    /// `shutdown()` tries again what failed; connections stay open until one succeeds or the last clone is
    /// dropped. Of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and nothing is done, if an
    /// observer calls it within a call of this client.
    pub fn shutdown(&self) -> Result<()> {
        self.engine.shutdown()
    }
}

impl MemoryStore {
    /// Makes every request of this client, and of no other, fail as `fault` says until [`heal`](Self::heal).
    ///
    /// # Errors
    /// The client is not on this store.
    pub fn fail_client(&self, client: &LockClient, fault: Fault) -> Result<()> {
        self.access_of("fail_client", client)?.fail(fault);
        Ok(())
    }

    /// Stops the threads that `client` runs until the returned value is dropped, as if its process were
    /// stopped: the client renews nothing, and reports no loss. Afterwards the client continues, and reports
    /// what it lost.
    ///
    /// The test's own threads continue, unlike a stopped process's, and callbacks already due still run.
    ///
    /// # Errors
    /// The client is not on this store.
    pub fn pause_client(&self, client: &LockClient) -> Result<PausedClient> {
        self.access_of("pause_client", client)?;
        client.engine.stand_still(true);
        Ok(PausedClient { engine: Arc::clone(&client.engine) })
    }

    fn access_of<'a>(&self, action: &'static str, client: &'a LockClient) -> Result<&'a MemoryAccess> {
        let access = client.engine.store.downcast().filter(|access: &&MemoryAccess| access.is_of(self));
        access.ok_or_else(|| Error::invalid(action, "the client is not on this memory store"))
    }
}

/// A client whose threads stand still until this is dropped; see [`MemoryStore::pause_client`].
///
/// # Examples
/// ```
/// use leasehold::{HoldState, LockClient, ManualClock, MemoryStore};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::with_clock(clock.clone());
/// let client = LockClient::in_memory_with(&store);
/// let guard = client.get_lock("a").acquire()?;
/// {
///     let _paused = store.pause_client(&client)?;
///     clock.advance(Duration::from_secs(60)); // its lease of 30 s is over
/// }
/// assert_eq!(guard.state(), HoldState::Lost);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the client goes on as soon as this is dropped"]
pub struct PausedClient {
    engine: Arc<Engine>,
}

impl Drop for PausedClient {
    fn drop(&mut self) {
        self.engine.stand_still(false);
    }
}

// The compiler cannot see that these types stay consistent after a caught panic: observers, callbacks and
// name mappings run where nothing is half done, and their panics are caught.
macro_rules! unwind_safe {
    ($($name:ty),+) => {
        $(
            impl UnwindSafe for $name {}
            impl RefUnwindSafe for $name {}
        )+
    };
}

unwind_safe!(Engine, Error, Hold, Interrupt, Leader, LocalLock, ManualClock, MemoryStore);

#[cfg(not(feature = "zookeeper"))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_zookeeper_feature_is_named_in_the_error() {
        let error = LockClient::connect("zk://localhost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"zookeeper\""));
    }
}
