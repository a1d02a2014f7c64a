//! The options of a client, and the client that is made with them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::open::Servers;
use crate::client::{LockClient, open};
use crate::config::{ClusterPubSub, Options, RedlockNode, RedlockOptions, Replicas, ServerOptions};
use crate::engine::store::StoreCell;
use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::ident::Owner;
use crate::observe::Observer;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::seam::Store;
use crate::stores::memory::MemoryStore;
use crate::time::Clock;
use crate::topologies::ring::plan::Ring;

/// Options of a client, each with its default.
///
/// # Examples
///
/// ```no_run
/// use leasehold::LockClient;
/// use std::time::Duration;
///
/// let client = LockClient::builder()
///     .url("redis://127.0.0.1:6379")
///     .lease(Duration::from_secs(10)) // how long a dead process keeps its locks
///     .command_timeout(Duration::from_secs(1))
///     .key_prefix("shop:")
///     .build()?;
/// assert_eq!(client.get_lock("stock:42").name(), "stock:42");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Default)]
#[must_use = "nothing happens before build()"]
pub struct ClientBuilder {
    pub(super) options: Options,
    pub(super) server: ServerOptions,
    pub(super) redlock: Option<RedlockOptions>,
    pub(super) node_timeout: Option<Duration>,
    pub(super) ring: Option<Ring>,
    observer: Option<Arc<dyn Observer>>,
    is_lazy: bool,
    pub(super) is_from_env: bool,
}

impl ClientBuilder {
    /// The URL of the store that keeps the locks; see [`LockClient::connect`].
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        url.as_ref().clone_into(&mut self.server.url);
        self.server.files.urls.clear();
        self
    }

    /// The file that has the [`url`](Self::url); spaces around lines, and lines that begin with `#`, do not count. The
    /// file is read when the client is built, and again when a server refuses the login. A URL that leads to other
    /// servers by then is not followed.
    pub fn url_file(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.server.url.clear();
        self.server.files.urls = vec![file.into()];
        self
    }

    /// Keeps each lock on a majority of these servers instead of one; see [`LockClient::redlock`].
    ///
    /// All other options go for each of them. User, password and database of a URL are that server's.
    pub fn redlock<N: Into<RedlockNode>>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        let nodes = nodes.into_iter().map(Into::into).collect();
        self.server.files.urls.clear();
        self.redlock = Some(RedlockOptions { nodes, ..RedlockOptions::default() });
        self
    }

    /// With [`redlock`](Self::redlock): how long one request waits for one of the servers, a tenth of the
    /// lease at most. One that does not answer in time is then left alone until it does. Defaults to 50 ms.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// Spreads names over the servers of a ring, which takes the place of [`url`](Self::url); credentials and
    /// other options are for all of them. See [`LockClient::ring`].
    pub fn ring(mut self, ring: Ring) -> Self {
        self.server.files.urls.clear();
        self.ring = Some(ring);
        self
    }

    /// How long a hold without a lease of its own lasts when its process dies; renewed each third of it.
    /// Defaults to 30 s, as Redisson's; at least 100 ms.
    ///
    /// On ZooKeeper it is also the session time-out that is asked for; the servers have bounds of their own
    /// for it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long one request may take. Defaults to 3 s.
    ///
    /// Past it the outcome is unknown and is resolved by the client. Keep it under a third of the lease: one
    /// that is longer than the lease is told of when the client is made
    /// ([`Event::Warning`]), since a server that is silent for one request then costs
    /// every hold.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.options.command_timeout = timeout;
        self.server.command_timeout = timeout;
        self
    }

    /// How long connecting may take. Defaults to 3 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.server.connect_timeout = timeout;
        self
    }

    /// How long calls keep trying while the server cannot be used, deadlines permitting. Defaults to 10 s.
    pub fn retry_timeout(mut self, timeout: Duration) -> Self {
        self.options.retry_timeout = timeout;
        self
    }

    /// How many connections requests may use: up to 4 that all threads share, and the rest for what needs one
    /// alone (of those there is always one). Renewals and wake-ups have one more each. On etcd each request
    /// has one to itself. Defaults to 8; the most is 10,000.
    pub fn pool_size(mut self, size: u32) -> Self {
        self.server.pool_size = size;
        self
    }

    /// The ACL user. Defaults to the URL's.
    pub fn username(mut self, username: impl AsRef<str>) -> Self {
        self.server.username = Some(username.as_ref().to_owned());
        self
    }

    /// The password. Defaults to the URL's. Never shown in errors or `Debug`.
    pub fn password(mut self, password: impl AsRef<str>) -> Self {
        self.server.password = Some(password.as_ref().to_owned());
        self.server.files.password = None;
        self
    }

    /// The file that has the [`password`](Self::password); line ends at its end do not count. The file is read when
    /// the client is built, and again when a server refuses the login, so that a password may change while clients run.
    pub fn password_file(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.server.password = None;
        self.server.files.password = Some(file.into());
        self
    }

    /// The ACL user on the Sentinels themselves. Defaults to none.
    pub fn sentinel_username(mut self, username: impl AsRef<str>) -> Self {
        self.server.sentinel_username = Some(username.as_ref().to_owned());
        self
    }

    /// The password on the Sentinels themselves. Defaults to none. Never shown in errors or `Debug`.
    pub fn sentinel_password(mut self, password: impl AsRef<str>) -> Self {
        self.server.sentinel_password = Some(password.as_ref().to_owned());
        self.server.files.sentinel_password = None;
        self
    }

    /// The hosts to which servers may send this client, beside those of the URL: names, addresses, or `*.`
    /// and what names end in, without ports. Defaults to all.
    ///
    /// The members of a Redis Cluster name each other, and Sentinels name the master; user and password then
    /// go there. With this list whoever speaks for a server can send them to these hosts only. Another host
    /// is refused before anything is said to it, with an error of kind
    /// [`Unsupported`](crate::ErrorKind::Unsupported) that names it.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::LockClient;
    ///
    /// let builder = LockClient::builder()
    ///     .url("redis-cluster://shop.cache.example")
    ///     .allowed_hosts(["*.shop.cache.example", "10.0.0.7"]);
    /// ```
    pub fn allowed_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.server.hosts = Arc::new(Hosts::allowing(hosts.into_iter().map(Into::into).collect()));
        self
    }

    /// The database number. Defaults to the URL's, or 0.
    pub fn database(mut self, database: i64) -> Self {
        self.server.database = Some(database);
        self
    }

    /// The name that the connections show in `CLIENT LIST`: printable ASCII without spaces. Defaults to none.
    pub fn client_name(mut self, name: impl AsRef<str>) -> Self {
        self.server.client_name = Some(name.as_ref().to_owned());
        self
    }

    /// Whether this client has an entry in the directory of clients while it holds or waits. Defaults to yes.
    ///
    /// The entry says to everybody who may read the store on which host, in which process and program, and
    /// under which thread names that is; [`LockClient::inspect`] and [`LockClient::clients`] show it. It is
    /// written once each third of the lease, ends with the lease, and is removed by [`LockClient::shutdown`].
    /// A user without rights to it has none, and nothing fails. Without an entry the owner of a lock is an
    /// id.
    pub fn directory(mut self, directory: bool) -> Self {
        self.server.notes = directory;
        self.options.directory = directory;
        self
    }

    /// A text for the client's entry in the [directory](Self::directory), such as the name of a job. Defaults
    /// to none; control characters are left out, and what is beyond 64 characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.options.label = Some(label.as_ref().to_owned());
        self
    }

    /// A prefix for each lock's name in its key, put there after mapping. Defaults to nothing.
    pub fn key_prefix(mut self, prefix: impl AsRef<str>) -> Self {
        prefix.as_ref().clone_into(&mut self.options.key_prefix);
        self
    }

    /// Turns a lock's name into its key, as Redisson's `NameMapper`. Defaults to the name itself.
    pub fn map_names(mut self, map: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.options.map_names = Some(Arc::new(map));
        self
    }

    /// How long a subscription stays after its last waiter has gone. Defaults to 5 s.
    pub fn unsubscribe_delay(mut self, delay: Duration) -> Self {
        self.server.unsubscribe_delay = delay;
        self
    }

    /// How the members of a cluster notify waiters. Defaults to [`ClusterPubSub::Auto`]; only looked at for
    /// `redis-cluster://` URLs.
    pub fn cluster_pub_sub(mut self, way: ClusterPubSub) -> Self {
        self.server.cluster_pub_sub = way;
        self
    }

    /// Uses no scripts, for servers that refuse them: only [`LockClient::get_token_lock`] works then.
    pub fn without_scripts(mut self) -> Self {
        self.server.scripts = false;
        self
    }

    /// Counts a lock as taken only when `count` replicas have acknowledged it. Defaults to no such thing. For
    /// locks of every kind; not for semaphores, latches and conditions.
    ///
    /// The server is asked by WAIT, on the connection and in the write that acquires the lock. If fewer
    /// acknowledge within `timeout`, the lock is released at once and the attempt has failed, with a
    /// retryable error of kind [`Busy`](crate::ErrorKind::Busy) that says how many did: `try_lock` returns
    /// it, and who waits tries again.
    ///
    /// # Guarantees
    ///
    /// With `count` as many as there are replicas, no failover to one of them forgets a lock that was taken.
    /// With fewer, it may promote one that had not acknowledged (Sentinel prefers the one that is furthest,
    /// among those it can reach). Renewals are not waited for: a failover keeps the lease that the new master
    /// last got. And a replica that acknowledged has the lock in memory; what a restart leaves of it is a
    /// matter of its files.
    ///
    /// The price: each attempt takes a connection of the pool for itself, and a round trip between the
    /// servers; locks are not handed from thread to thread within the process, and a dropped guard waits for
    /// its release.
    pub fn require_replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.server.replicas = Some(Replicas { count, within: timeout });
        self
    }

    /// The authorities to trust over TLS, as a PEM file. Defaults to the system's; for MySQL, to those that
    /// are public.
    ///
    /// For `rediss://`, `rediss-sentinel://`, `rediss-cluster://`, `etcds://` and `zks://`. A database that
    /// is given some has to prove who it is, unless its URL says otherwise; see
    /// [TLS](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#tls).
    #[cfg(feature = "tls")]
    pub fn tls_ca(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.server.tls.ca = Some(file.into());
        self
    }

    /// The client certificate for TLS, for servers that demand one (mutual TLS): a PEM file with it and those
    /// between it and its authority, and a PEM file with its private key. Defaults to none.
    ///
    /// The key is read when the client connects, and never shown.
    #[cfg(feature = "tls")]
    pub fn tls_identity(
        mut self,
        certificate: impl Into<std::path::PathBuf>,
        key: impl Into<std::path::PathBuf>,
    ) -> Self {
        self.server.tls.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The table that a database keeps its locks in, `name` or `schema.name`. Defaults to `leasehold_locks`.
    pub fn table(mut self, name: impl AsRef<str>) -> Self {
        name.as_ref().clone_into(&mut self.server.table.name);
        self
    }

    /// Whether to create the database's table where none is in sight; that needs no permission where one is.
    /// On PostgreSQL none is made beside one of the same name in another schema, unless
    /// [`table`](Self::table) names the schema. Defaults to not: the page on databases has the statements for
    /// a [migration](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#migration).
    pub fn create_schema(mut self, create: bool) -> Self {
        self.server.table.create = create;
        self
    }

    /// Keeps locks without a table: PostgreSQL's advisory locks, MySQL's `GET_LOCK`. Defaults to rows.
    ///
    /// Each hold is a connection of its own, and ends when that ends: the page on databases says what
    /// [session locks](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#session-locks)
    /// promise and cost. Only [`LockClient::get_lock`] works then: such locks have neither fences nor tokens.
    pub fn session_locks(mut self) -> Self {
        self.server.table.session_locks = true;
        self
    }

    /// Whether one client of those that wait for a name looks often whether the lock is free, on MySQL and
    /// MariaDB, where nothing wakes waiters. Defaults to yes.
    ///
    /// It costs a connection and a thread in each client whose threads wait, and some 200 small requests a
    /// second for each name that is waited for. Without it waiters get a lock up to 100 ms after its release.
    /// The page on databases has the
    /// [figures](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#turnstiles-mysql-mariadb).
    pub fn designated_poller(mut self, is_on: bool) -> Self {
        self.server.table.designated_poller = is_on;
        self
    }

    /// How long a thread that holds a lock waits for another one before the client looks whether it waits in
    /// a ring of threads that wait for each other. Defaults to 1 s, and is 10 ms at least; `Duration::MAX`
    /// never looks.
    ///
    /// The client looks then, and after 1, 2, 4, 8, 16 and 30 s, by 50 requests a second at most for all its
    /// threads. A ring is told as [`Event::Deadlock`].
    pub fn detect_deadlocks_after(mut self, wait: Duration) -> Self {
        self.options.detect_deadlocks_after = wait;
        self
    }

    /// Whether a wait of this client ends when it is the youngest of a deadlock, with an error of kind
    /// [`Deadlock`](crate::ErrorKind::Deadlock) whose text names the ring. Defaults to no.
    ///
    /// The thread keeps what it holds: it has to release that for the others to go on, as it does when it
    /// returns the error and its guards are dropped. Of a multi-lock, the locks that it acquired so far are
    /// released. A wait with a time limit ends in the same way, before its limit, and is not busy. A wait that
    /// would take a lock again after a condition does not end; then the youngest of the others does. The
    /// deadlock is told and stays, if the youngest wait is a thread's of a client without this option.
    pub fn break_deadlocks(mut self, breaks: bool) -> Self {
        self.options.break_deadlocks = breaks;
        self
    }

    /// The owner of another client's hold for which this process works, as text: its wait keeps that hold, so
    /// that deadlocks through both are found. Several have spaces between; text that is no owner is passed over.
    ///
    /// `leasehold run` says so to its command, by `LEASEHOLD_UNDER`. A program that holds a lock while it
    /// waits for a process of its own passes it on by hand.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::LockClient;
    ///
    /// let guard = LockClient::in_memory().get_lock("import").acquire_owned()?;
    /// let under = guard.owner().to_string(); // given to the process that is started
    /// let theirs = LockClient::builder().under_hold(&under);
    /// # drop(theirs);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn under_hold(mut self, owner: impl AsRef<str>) -> Self {
        self.options.under.extend(owner.as_ref().split_whitespace().filter_map(Owner::read));
        self
    }

    /// The observer that is notified of what happens to the locks. Defaults to none. Without one, and without
    /// a subscriber of `tracing`, the client writes a line to standard error for each deadlock.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Puts connecting off until the client is first used. Defaults to connecting in [`build`](Self::build).
    ///
    /// For programs that start before their store does. A server that is down, or cannot be used, is then no
    /// error of `build` but of each call, until one has connected: with the error that `build` would have
    /// returned, at once, without waiting for the client's `retry_timeout`. Such a call may take the connect
    /// time-out more than it says. From then on there is no difference, also when the server goes away. On
    /// ZooKeeper, holds last at most as long as the session that the servers grant, whatever the client's
    /// lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{ErrorKind, LockClient};
    ///
    /// // Nobody listens there.
    /// let client = LockClient::builder().url("redis://127.0.0.1:1").connect_lazily().build()?;
    /// assert_eq!(client.ping().unwrap_err().kind(), ErrorKind::Unreachable);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_lazily(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// Connects, unless that is [put off](Self::connect_lazily).
    ///
    /// # Blocking
    ///
    /// Up to the connect time-out.
    ///
    /// # Errors
    ///
    /// As [`LockClient::connect`]; and, before any I/O, for options that cannot be used, and in a forked
    /// child of a process that has made a client (kind [`Forked`](crate::ErrorKind::Forked)).
    pub fn build(self) -> Result<LockClient> {
        let (is_one_server, mut server) = (self.redlock.is_none() && self.ring.is_none(), self.server);
        if is_one_server && server.url.is_empty() {
            server.read_url()?;
            if server.url.is_empty() && self.is_from_env {
                let words = "no URL was given: set LEASEHOLD_URL, for example to redis://127.0.0.1:6379";
                return Err(Error::invalid("connect", words));
            }
        }
        let mut options = self.options.checked()?;
        let server = server.checked()?;
        let servers = Servers::checked(self.redlock, self.ring, self.node_timeout)?;
        crate::fork::enter_process()?;
        let reporter = Arc::new(Reporter::new(self.observer));
        options.place = open::place(&server, servers.urls(&server));
        options.store = open::label(&server, &servers)?;
        let store = if self.is_lazy {
            open::check(&server, &servers)?;
            let (reporter, options) = (Arc::clone(&reporter), options.clone());
            let open = move || open::open(&server, &servers, &mut options.clone(), &reporter);
            StoreCell::later(Box::new(open))
        } else {
            open::open(&server, &servers, &mut options, &reporter)?.into()
        };
        if options.command_timeout > options.lease {
            warn_of_timeout(&reporter, &options);
        }
        LockClient::start(options, Clock::System, store, reporter)
    }

    /// Refuses times that cannot be used.
    pub(super) fn check_times(&self) -> Result<()> {
        self.options.clone().checked()?;
        self.server.clone().checked().map(drop)
    }

    /// Makes the client on a memory store instead; what concerns a server is not looked at.
    ///
    /// # Errors
    ///
    /// For options that cannot be used, and in a forked child of a process that has made a client.
    pub fn build_in_memory(self, store: &MemoryStore) -> Result<LockClient> {
        let options = Options { place: store.place(), store: "memory", ..self.options.checked()? };
        crate::fork::enter_process()?;
        let reporter = Arc::new(Reporter::new(self.observer));
        let opened: Arc<dyn Store> = Arc::new(store.open());
        LockClient::start(options, store.clock().clone(), opened.into(), reporter)
    }
}

fn warn_of_timeout(reporter: &Reporter, options: &Options) {
    let Options { command_timeout, lease, .. } = options;
    let text = format!(
        "the command_timeout, {command_timeout:?}, is longer than the lease, {lease:?}: one renewal that is not answered costs the \
         hold; make it less than a third of the lease"
    );
    reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("server", &self.server).finish_non_exhaustive()
    }
}
