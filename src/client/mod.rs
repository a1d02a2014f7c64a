//! The client: what a program makes once, clones, and takes its locks from.

mod builder;
mod env;
mod lists;
mod open;
mod paused;
mod runs;
pub(crate) mod settings;
mod unwind;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Options, RedlockNode};
use crate::engine::Engine;
use crate::engine::acquire::terms::Backoff;
use crate::engine::many::MANY_CLIENTS;
use crate::engine::store::StoreCell;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::is_forked;
use crate::health::{Health, Wakeups};
use crate::ident::derived::PING;
use crate::ident::{ClientId, NOBODY, Owner, ThreadMark};
use crate::inspect::Inspection;
use crate::locks::expirable::ExpirableSemaphore;
use crate::locks::fenced::FencedLock;
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::latch::CountDownLatch;
use crate::locks::leader::Leader;
use crate::locks::lock_builder::LockBuilder;
use crate::locks::multi::{IntoLocks, MultiLock};
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::locks::run_once::run_once;
use crate::locks::rw::ReadWriteLock;
use crate::locks::semaphore::Semaphore;
use crate::observe::contended::Contended;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::observe::stats::Stats;
use crate::seam::Kind;
use crate::stores::memory::MemoryStore;
use crate::time::Clock;
use crate::topologies::ring::RingStore;
use crate::topologies::ring::plan::{Ring, RingNode};

pub use builder::ClientBuilder;
pub use lists::{Clients, ListCost, ListedLock, Locks};
pub use paused::PausedClient;

/// A connection to where locks are kept, and one random id under which this client's threads own them.
///
/// Make one per process and clone it: clones are cheap and are the same client. Two clients are two owners,
/// as in Redisson: a thread that holds a lock through one does not hold it through the other.
///
/// Locks and guards keep the client alive. When the last clone goes, or at [`shutdown`](Self::shutdown), what
/// it still holds is released and its threads end. A client does not survive a fork: in the child every call
/// returns an error of kind [`Forked`](crate::ErrorKind::Forked), the making of another client too. Fork
/// before the first client is made, or start a program.
///
/// # Examples
///
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
#[derive(Clone)]
pub struct LockClient {
    engine: Arc<Engine>,
}

impl LockClient {
    /// Connects to the store at `url` with all options at their defaults.
    ///
    /// URLs: `redis://[user:password@]host[:port][/database]`, `rediss://…` (TLS; feature `tls`),
    /// `redis+unix:///path`; `postgres://…` (feature `postgres`), `mysql://…` or `mariadb://…` (feature
    /// `mysql`), `sqlite:///path` (feature `sqlite`), see
    /// [locks in a database](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md); and
    /// `redis-sentinel://[user:password@]host[:port],host[:port],…/master-name[/database]` or
    /// `rediss-sentinel://…` for the master that those Sentinels name. User and password there are the data
    /// servers'; Sentinels' own are given by [`sentinel_username`](ClientBuilder::sentinel_username) and
    /// [`sentinel_password`](ClientBuilder::sentinel_password);
    /// with the feature `etcd` also `etcd://[user:password@]host[:port][,host[:port]…][/prefix]`, and
    /// `etcds://…` with `tls` as well.
    /// For a Redis Cluster `redis-cluster://[user:password@]host[:port],host[:port]…`, some of its members,
    /// or `rediss-cluster://…`.
    ///
    /// With the feature `zookeeper` also `zk://[user:password@]host[:port][,host[:port]…][/path]`, or
    /// `zks://…` for its secure port with `tls` as well: locks as nodes of a ZooKeeper ensemble below that
    /// path, shared with Curator. A name that begins with `/` is then a path of its own.
    ///
    /// # Blocking
    ///
    /// Up to the connect time-out (default 3 s).
    ///
    /// # Errors
    ///
    /// At once, and clearly, when the URL cannot be used, no server is there, it wants other credentials, it
    /// is older than Redis 6.2 or etcd 3.4, it is a replica or a sentinel, or it refuses scripts. A URL of a
    /// store that this build leaves out is an error of kind [`Unsupported`](crate::ErrorKind::Unsupported)
    /// that names the feature. With Sentinels: when none of them answers, or they know no such master; while
    /// the master they name is down or no master any longer, this tries on until the connect time-out.
    pub fn connect(url: impl AsRef<str>) -> Result<LockClient> {
        LockClient::builder().url(url).build()
    }

    /// Makes a client of the store at `url` that connects when it is first used, with all other options at
    /// their defaults: that the server is down now is no error. Short for [`ClientBuilder::connect_lazily`].
    ///
    /// # Errors
    ///
    /// The URL cannot be used.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{ErrorKind, LockClient};
    ///
    /// let client = LockClient::connect_lazily("redis://127.0.0.1:1")?; // nobody listens there
    /// assert_eq!(client.get_lock("a").try_lock().unwrap_err().kind(), ErrorKind::Unreachable);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_lazily(url: impl AsRef<str>) -> Result<LockClient> {
        LockClient::builder().url(url).connect_lazily().build()
    }

    /// Connects to several independent Redis, each lock to be held on a majority of them at once: Redlock.
    ///
    /// Three or five servers that share nothing: no replication, no machine, no power. Use it like any other
    /// client; its locks survive the loss of a minority of servers.
    /// [Its limits](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/topologies.md#redlock-and-servers-that-forget):
    /// like every lease it wants [`get_fenced_lock`](Self::get_fenced_lock) beside it, and a server that lost
    /// its data must stay out for at least the longest lease. Short for the builder's
    /// [`redlock`](ClientBuilder::redlock).
    ///
    /// # Blocking
    ///
    /// Until a majority is there, and then as long again or one `node_timeout` (50 ms) for the others: a
    /// minority that does not answer costs no more, and joins later. Without a majority, up to the connect
    /// time-out (default 3 s) for each connection.
    ///
    /// # Errors
    ///
    /// For fewer than three servers; two URLs that reach the same one; a member of a cluster; fewer than a
    /// majority that can be reached; and for any that answers but cannot be used, as
    /// [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use leasehold::LockClient;
    ///
    /// let client = LockClient::redlock(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let guard = client.get_lock("stock:42").acquire()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn redlock<N: Into<RedlockNode>>(nodes: impl IntoIterator<Item = N>) -> Result<LockClient> {
        LockClient::builder().redlock(nodes).build()
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

    /// Connects to independent servers over which names are spread, with all options at their defaults: each
    /// lock is on one of them. See [`Ring`] for lists that change.
    ///
    /// # Blocking
    ///
    /// Up to the connect time-out (default 3 s), for all nodes together.
    ///
    /// # Errors
    ///
    /// For a list that cannot be used (empty, a label or a server twice, a cluster among them), a node that
    /// cannot keep locks, a number that stands for another list, and when no node can be reached: with one
    /// that can, the client is made. Kind [`StaleRing`](crate::ErrorKind::StaleRing) if a node knows a later
    /// list.
    ///
    /// # Guarantees
    ///
    /// Those of one server, name by name. A node that is lost has no replica here: its names cannot be
    /// locked, and its locks are gone, until it is back or left out of the ring. The names of the other nodes
    /// are not touched.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use leasehold::{LockClient, RingNode};
    ///
    /// let big = RingNode::new("redis://10.0.0.2:6379").weight(2);
    /// let client = LockClient::ring([RingNode::new("redis://10.0.0.1:6379"), big])?;
    /// client.with_lock("stock:42", |_guard| ())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn ring<N: Into<RingNode>>(nodes: impl IntoIterator<Item = N>) -> Result<LockClient> {
        LockClient::builder().ring(Ring::new(nodes)).build()
    }

    /// Goes by another list of nodes from now on, or by the same with another number. A lock that is held
    /// stays where it was granted until it is released.
    ///
    /// Processes may change one after the other. As soon as one has, those that go by the older list are
    /// refused with an error of kind [`StaleRing`](crate::ErrorKind::StaleRing), which waiting calls ride out
    /// for their `retry_timeout`. New processes start with the new list, by [`ClientBuilder::ring`].
    ///
    /// # Blocking
    ///
    /// Up to the connect time-out, if a node does not answer. Such a node gets the list when a name of its is
    /// next asked for.
    ///
    /// # Errors
    ///
    /// The list cannot be used: its number is not above the last one's, it does not name the nodes it moves
    /// from, a node refuses, or is another than it should be, or none can be reached. The client then goes on
    /// with its old list, but nodes that have the new one refuse it: call this again with a list that can be
    /// used. Kind [`Unsupported`](crate::ErrorKind::Unsupported) if the client was not made for a ring.
    ///
    /// # Guarantees
    ///
    /// No name is granted by two nodes, whatever each process goes by: a name that moves is granted at its
    /// new home only when its old one bears the new number, by which nothing more is granted there, and is
    /// free. If the old home cannot be asked, the name cannot be locked; see [`RingNode::lost`].
    ///
    /// # Examples
    ///
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
        self.engine.usable("ring")?;
        match self.engine.store.capabilities().itself.and_then(|store| store.downcast_ref::<RingStore>()) {
            Some(store) => store.change(ring),
            None => Err(Error::new(ErrorKind::Unsupported, "ring", "this client was not made for a ring")),
        }
    }

    /// Makes a client whose locks are kept in this process, for tests and examples.
    ///
    /// # Panics
    ///
    /// When the system cannot start the watchdog's thread, and in a forked child of a process that has made a
    /// client.
    #[must_use]
    pub fn in_memory() -> LockClient {
        LockClient::in_memory_with(&MemoryStore::new())
    }

    /// Makes a client on a memory store that others may be on as well.
    ///
    /// # Panics
    ///
    /// When the system cannot start the watchdog's thread, and in a forked child of a process that has made a
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
        if engine.counted.is_one_too_many() {
            let text = format!(
                "this process has {MANY_CLIENTS} clients at a time, each with threads and connections of its own: make one for each \
                 store, and clone it, which costs nothing"
            );
            engine.reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
        }
        Ok(LockClient { engine })
    }

    /// The client's id, the first part of its threads' owner ids.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.engine.id
    }

    /// Under which owner id the calling thread would take its next lock. In a forked child, which can take none:
    /// one that nothing is held under.
    ///
    /// If the server refuses this client the line of waiting clients, plain and fenced locks are taken under
    /// the same id with version 4 in place of 8 (see
    /// [permissions](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/permissions.md)).
    #[must_use]
    pub fn current_owner(&self) -> Owner {
        if is_forked() {
            return Owner::new(self.engine.id, NOBODY);
        }
        Owner::new(self.engine.id, self.engine.next_number(&ThreadMark::current(), &mut None))
    }

    /// The reentrant lock of this name: Redisson's `RLock`.
    ///
    /// No I/O and no error: a bad name (empty, over 64 KiB, or one that belongs to another lock's
    /// bookkeeping) is an error at first use.
    pub fn get_lock(&self, name: impl AsRef<str>) -> RedisLock {
        RedisLock::new(&self.engine, Kind::Mutex, name.as_ref())
    }

    /// The same lock, with a fencing token for each grant: Redisson's `RFencedLock`.
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::new(RedisLock::new(&self.engine, Kind::Fenced, name.as_ref()))
    }

    /// The simple lock that most articles describe and most libraries use: `SET name token NX PX lease`,
    /// released by compare-and-delete. It shares locks with redis-py's `Lock` and with redsync on one node.
    ///
    /// Not reentrant (a thread that waits for its own gets an error of kind
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock)), and waits by polling each 50–100 ms, since those
    /// libraries announce no release. Everything else is as with [`get_lock`](Self::get_lock): guards,
    /// watchdog, states and errors.
    pub fn get_token_lock(&self, name: impl AsRef<str>) -> RedisLock {
        RedisLock::new(&self.engine, Kind::Token, name.as_ref())
    }

    /// The lock that serves those who wait in the order in which they came, across threads, processes and
    /// languages: Redisson's fair `RLock`.
    ///
    /// A waiter has a place in a queue in the store and keeps it alive by asking again at least every 1.2 s;
    /// a waiter that died is passed over within about 6 s (Redisson's own dead waiters keep their place for
    /// up to five minutes). A `try_lock` without a wait gets the lock only if nobody waits for it.
    ///
    /// Hand-over takes a message and a request per grant, so it is slower than [`get_lock`](Self::get_lock);
    /// use it where order matters. It shares the name's key with `get_lock`, but whoever takes it by that
    /// goes before everybody and, letting go of it, wakes nobody here: use one or the other for a name.
    pub fn get_fair_lock(&self, name: impl AsRef<str>) -> RedisLock {
        self.lock_builder(name).fair().build()
    }

    /// Many readers or one writer under this name: Redisson's `RReadWriteLock`. See [`ReadWriteLock`].
    pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        ReadWriteLock::new(&self.engine, name.as_ref())
    }

    /// A number of permits under this name: Redisson's `RSemaphore`. See [`Semaphore`].
    pub fn get_semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(&self.engine, name.as_ref())
    }

    /// A number of permits with ids and leases under this name: Redisson's `RPermitExpirableSemaphore`. See
    /// [`ExpirableSemaphore`].
    pub fn get_expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::new(&self.engine, name.as_ref())
    }

    /// A count under this name, and those who wait for it to come to zero: Redisson's `RCountDownLatch`. See
    /// [`CountDownLatch`].
    pub fn get_count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch::new(&self.engine, name.as_ref())
    }

    /// Several locks at once, all or none, of any kinds and clients: Redisson's `RedissonMultiLock`. See
    /// [`MultiLock`].
    ///
    /// No I/O and no error: an empty list, a lock that is there twice, and a bad name are errors at first
    /// use.
    pub fn get_multi_lock(&self, locks: impl IntoLocks) -> MultiLock {
        MultiLock::new(&self.engine.clock, locks.into_locks())
    }

    /// The same lock as [`get_lock`](Self::get_lock), used on terms of its own: not reentrant, not for longer
    /// than so long, or waited for by asking again and again.
    pub fn lock_builder(&self, name: impl AsRef<str>) -> LockBuilder {
        LockBuilder::new(&self.engine, name.as_ref())
    }

    /// The same lock as [`get_lock`](Self::get_lock), waited for by asking again and again, with sleeps that
    /// double from 1 ms to 128 ms: Redisson's `RSpinLock`. Other sleeps: [`LockBuilder::spin`].
    ///
    /// It subscribes to nothing, so it suits users without that right, and locks that are rarely waited for.
    /// Unlike Java's, its release wakes those who do wait for a message. Threads of one client that spin
    /// still queue in order, among themselves: those that wait for a message do not wait for a spinning one
    /// to wake up.
    pub fn get_spin_lock(&self, name: impl AsRef<str>) -> RedisLock {
        self.lock_builder(name).spin(Backoff::default()).build()
    }

    /// Runs `work` under the lock of this name, waiting for it as long as it takes.
    ///
    /// [`AcquireOptions::with_lock`] does it under any lock, with a bound on the wait, a lease or an
    /// interrupt.
    ///
    /// # Blocking
    ///
    /// As [`RedisLock::lock`], then `work`, then one round trip.
    ///
    /// # Errors
    ///
    /// As [`AcquireOptions::with_lock`]: one after `work` says so ([`work_ran`](crate::Error::work_ran)), and
    /// a release that fails is none.
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
    pub fn with_lock<R>(&self, name: impl AsRef<str>, work: impl FnOnce(&Guard) -> R) -> Result<R> {
        let lock = self.get_lock(name);
        AcquireOptions::new().with_lock(&lock, work)?.ok_or_else(|| lock.unending("with_lock"))
    }

    /// Asks the store one question, and says how long the answer took and whether waiters are woken. For
    /// health checks.
    ///
    /// The question is whether a lock called `leasehold_ping` (after prefix and mapping) is held, so it takes
    /// the way that all others take. In a cluster and in a ring, the server of that name answers; on a
    /// Redlock, a majority.
    ///
    /// # Blocking
    ///
    /// One round trip, at most one command time-out (default 3 s). [Lazily](ClientBuilder::connect_lazily)
    /// connecting before that, where it has not been done, takes up to the connect time-out.
    ///
    /// # Errors
    ///
    /// The store could not be used. That this user may not look at the key, or that it holds something else,
    /// is an answer: the store is there.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// match client.ping() {
    ///     Ok(health) => println!("{} answers in {:?}", health.store, health.latency),
    ///     Err(error) => println!("unhealthy: {error}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn ping(&self) -> Result<Health> {
        let engine = &self.engine;
        engine.usable("ping")?;
        let begun = engine.clock.now();
        let asked = [Kind::Mutex, Kind::Token].map(|kind| RedisLock::new(engine, kind, PING));
        let lock = asked.iter().find(|lock| lock.checked("ping").is_ok());
        let lock = lock.or(asked.first());
        match lock.map_or(Ok(()), |lock| lock.ask("ping")) {
            Err(error) if !matches!(error.kind(), ErrorKind::NoPermission | ErrorKind::WrongType) => {
                Err(error)
            }
            Ok(()) | Err(_) => {
                let wakeups = match (engine.store.capabilities().wakes, engine.reporter.can_wake()) {
                    (false, _) => Wakeups::Polled,
                    (true, false) => Wakeups::Down,
                    (true, true) => Wakeups::Working,
                };
                let latency = engine.clock.now().since(begun);
                let table = engine.store.capabilities().table;
                Ok(Health {
                    store: engine.options.store,
                    latency,
                    wakeups,
                    table: table.map(|table| table.name.clone()),
                    other_tables: table.map(|table| table.others.clone()).unwrap_or_default(),
                })
            }
        }
    }

    /// Shows what there is under a name, whatever kind of object it is and whoever uses it, Java included:
    /// what it is, who holds it and how often, for how long still, who waits, how many permits are out.
    /// Without asking, and without changing anything.
    ///
    /// Holders and waiters of this crate are shown with host, process, program, thread and since when, as
    /// they said in the [directory](ClientBuilder::directory) up to a third of their lease ago. Of Redisson's
    /// only the id is known.
    ///
    /// For operators, and for programs that want to say why they were refused; printed it is a line or a few.
    /// Other stores than Redis and memory report what they know, most of them one holder and how long it has
    /// it still.
    ///
    /// # Blocking
    ///
    /// One round trip on Redis and in a database's table; two on etcd; on ZooKeeper one for each holder and
    /// waiter. Up to four elsewhere. One more for where the holders and waiters are, if they are other
    /// clients of this crate; in a cluster, on a ring, on etcd, on ZooKeeper and in a database one for each
    /// such client. Up to 80 more find the waiters in the directory, if the store does not know them; on
    /// Redis only if somebody listens for a release. The lock, the clients and the waiters have one command
    /// time-out each.
    ///
    /// # Errors
    ///
    /// The name is bad; the server could not be used; the user lacks a permission, since this looks at all
    /// keys that any kind has. Of kind [`Unsupported`](crate::ErrorKind::Unsupported) for a client
    /// [without scripts](ClientBuilder::without_scripts).
    ///
    /// # Guarantees
    ///
    /// On one Redis, in a cluster and in memory all of it was so at one moment, but for the number of those
    /// who listen. It is past when it is read: do not decide by it who may go on, which is what locks are
    /// for. On a Redlock it is what a majority showed.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::ObjectKind;
    ///
    /// # let client = leasehold::LockClient::in_memory();
    /// let guard = client.get_lock("import").acquire()?;
    /// let seen = client.inspect("import")?;
    /// assert_eq!((seen.kind.clone(), seen.holders[0].hold_count), (ObjectKind::Lock, Some(1)));
    /// assert!(seen.holders[0].by_this_client);
    /// println!("{seen}"); // import: a lock, held, lease of 29.9 s …
    /// # drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Inspection> {
        self.engine.describe("inspect", self.get_lock(name).checked("inspect")?)
    }

    /// The numbers of this client: holds by state, waiters, grants, losses, renewals, wake-ups by cause.
    ///
    /// For metrics and health pages, without an [`Observer`](crate::Observer).
    ///
    /// # Blocking
    ///
    /// Not, and it asks the store nothing. It copies the list of holds while that is locked: some 20 ns for
    /// each.
    ///
    /// # Guarantees
    ///
    /// The numbers are not of one moment: a call that ends meanwhile may be in one of them and not in
    /// another. All are zero in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// let client = leasehold::LockClient::in_memory();
    /// client.get_lock("stock:42").acquire()?.unlock()?;
    /// let stats = client.stats();
    /// println!("{} held, {} lost of {}", stats.holds, stats.lost(), stats.grants);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The locks that calls of this client have waited for most, `max` at most, those first.
    ///
    /// Counted are calls that slept, since the client's beginning, in memory for 256 names.
    ///
    /// # Blocking
    ///
    /// Not, and it asks the store nothing.
    ///
    /// # Guarantees
    ///
    /// A name is known if more than one of 256 waits was for it. No count is too low;
    /// [`overcount`](Contended::overcount) says how much too high it may be.
    ///
    /// # Examples
    ///
    /// ```
    /// let client = leasehold::LockClient::in_memory();
    /// for lock in client.contended(20) {
    ///     println!("{} was waited for {} times", lock.name, lock.waits);
    /// }
    /// ```
    pub fn contended(&self, max: usize) -> Vec<Contended> {
        if is_forked() { Vec::new() } else { self.engine.reporter.counters.contended(max) }
    }

    /// Removes a database's rows of locks that have been free for longer than `age`; returns how many.
    /// Elsewhere there is nothing to remove.
    ///
    /// Call it now and then where lock names are made up and never used again. A day is a good age: fences
    /// still only go up, unless the server's clock is set back by more than `age`.
    ///
    /// # Blocking
    ///
    /// One round trip for each thousand rows. Nobody's lock is waited for, or kept waiting.
    ///
    /// # Errors
    ///
    /// The error of the server; locks removed until then stay removed.
    pub fn sweep(&self, age: Duration) -> Result<u64> {
        self.engine.sweep(age)
    }

    /// Says, in words for people, what keeps a database from forgetting old versions of its rows, by which locks
    /// grow slow: the oldest transaction that is open for longer than `age`, replication slots that nobody uses, a long
    /// history list, SQLite's log if it is long. What the user may not see is left out. Elsewhere there is nothing.
    ///
    /// # Blocking
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// The error of the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// for words in client.vacuum_blockers(std::time::Duration::from_secs(60))? {
    ///     eprintln!("{words}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn vacuum_blockers(&self, age: Duration) -> Result<Vec<String>> {
        self.engine.vacuum_blockers(age)
    }

    /// Stands for election as leader of `name` among all clients that do: whoever holds the fenced lock of
    /// that name leads. See [`Leader`].
    ///
    /// # Blocking
    ///
    /// Not: a thread of the candidate's waits.
    ///
    /// # Errors
    ///
    /// The name is bad, the client was shut down, or the system could not start a thread.
    pub fn leader(&self, name: impl AsRef<str>) -> Result<Leader> {
        Leader::stand(&self.engine, Arc::clone(self.get_fenced_lock(name).checked("leader")?))
    }

    /// Runs `job` if none of the processes that do the same is at it or was within `at_least`; `None` if one
    /// is or was.
    ///
    /// For timers that fire in many processes at about the same time: the lock of the name is taken without
    /// waiting, and stays taken until `at_least` has passed since it was asked for, even if the job is over
    /// sooner. `at_least` should be longer than the timers are apart in time and shorter than the time
    /// between two ticks. A process that dies at its job is replaced, at a tick, after `at_most` at the
    /// latest.
    ///
    /// # Blocking
    ///
    /// One round trip, then `job`, then one round trip. While the server does not answer after the job: up to
    /// the client's retry time-out (default 10 s) or the end of `at_most`, whichever is first. On Redlock,
    /// processes that ask at the same moment may all be refused, each having some of the servers: then they
    /// ask again at random moments, for two seconds at most, until one of them has it.
    ///
    /// # Errors
    ///
    /// As [`RedisLock::try_lock`], when `job` was not run; and for an `at_least` over `at_most`, before any
    /// I/O. After the job: it [`is_not_held`](crate::Error::is_not_held) if it took longer than `at_most`, so
    /// that another may have begun, and it is of kind [`ShutDown`](crate::ErrorKind::ShutDown) if the client
    /// was shut down meanwhile. A release that fails costs the job's result nothing: the result is returned,
    /// the observer gets [`ReleaseFailed`](crate::Event::ReleaseFailed), and the client frees the lock when
    /// `at_least` has passed. If the client ends before that, the lock ends with `at_most`.
    ///
    /// # Panics
    ///
    /// When `job` does; it counts as run.
    ///
    /// # Guarantees
    ///
    /// Once per tick as far as a lease goes: see
    /// [limits](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/guarantees.md#limits-of-every-lease-lock).
    /// A job that must not run twice whatever happens also needs a record of its own that it has run.
    ///
    /// # Examples
    ///
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

    /// Releases what this client holds and ends its threads. Waiters return with an error, holders are
    /// notified that their holds are lost, later calls return an error of kind
    /// [`ShutDown`](crate::ErrorKind::ShutDown).
    ///
    /// # Blocking
    ///
    /// Until the calls of other threads have ended, which are woken, and one round trip for all holds
    /// together; at most about three command time-outs (default 3 s each) in all, while the server does not
    /// answer. A second call waits for the first.
    ///
    /// # Errors
    ///
    /// A release failed, or a call did not come to its end in that time; its lock ends with its lease.
    /// Another `shutdown()` tries again what failed; connections stay open for that until one succeeds or the
    /// last clone is dropped. Of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and nothing is
    /// done, if an observer calls it within a call of this client, such as from `Acquired`: it would wait for
    /// that call.
    pub fn shutdown(&self) -> Result<()> {
        self.engine.shutdown()
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("id", &self.engine.id).finish_non_exhaustive()
    }
}

#[cfg(not(feature = "zookeeper"))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_zookeeper_is_refused_in_words() {
        let error = LockClient::connect("zk://localhost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"zookeeper\""));
    }
}
