//! The options of a client, and `build`, which makes the client.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::client::open::Servers;
use crate::client::{LockClient, open};
use crate::config::{
    self, ClusterPubSub, Credentials, Options, RedlockNode, RedlockOptions, ServerOptions, debug_fields,
    setters,
};
use crate::copies::{Durable, ReplicaRule, Replicas};
use crate::engine::core::StoreCell;
use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::ident::Owner;
use crate::observe::Observer;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::seam::Store;
use crate::secrets::password_in;
use crate::stores::memory::MemoryStore;
use crate::time::Clock;
use crate::topologies::ring::plan::Ring;

/// Options of a client, each with its default.
///
/// # Examples
/// ```no_run
/// use leasehold::LockClient;
/// use std::time::Duration;
///
/// let builder = LockClient::builder().url("redis-sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster");
/// let client = builder
///     .lease(Duration::from_secs(10)) // how long a dead process keeps its locks
///     .durable(1, 1) // each grant is on the master's disk, and on one replica's
///     .build()?;
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
        self.server.url_files.clear();
        self
    }

    /// The file with the [`url`](Self::url); lines that begin with `#` are ignored. The client reads the file
    /// when it is built, and again when a server refuses the login. If the file then names other servers, the
    /// client stays with its own.
    pub fn url_file(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.server.url.clear();
        self.server.url_files = vec![file.into()];
        self
    }

    /// Holds each lock on a majority of these servers; see [`LockClient::redlock`]. All other options apply
    /// to each server, and take precedence over user, password and database of a node's URL.
    pub fn redlock<N: Into<RedlockNode>>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        let nodes = nodes.into_iter().map(Into::into).collect();
        self.server.url_files.clear();
        self.redlock = Some(RedlockOptions { nodes, ..RedlockOptions::default() });
        self
    }

    /// Spreads names over the servers of a ring, in place of [`url`](Self::url). Other options apply to all
    /// servers. See [`LockClient::ring`].
    pub fn ring(mut self, ring: Ring) -> Self {
        self.server.url_files.clear();
        self.ring = Some(ring);
        self
    }

    /// How long one request may take. Defaults to 3 s.
    ///
    /// After this time it is unknown whether the request was carried out; the client then undoes an acquire,
    /// and repeats a release. Keep the time-out under a third of the lease. With a time-out above the lease
    /// one request without an answer can cost every hold, so such a client reports an [`Event::Warning`].
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.options.command_timeout = timeout;
        self.server.command_timeout = timeout;
        self
    }

    /// The password. Defaults to the URL's. Never shown in errors or `Debug`.
    pub fn password(mut self, password: impl AsRef<str>) -> Self {
        self.server.password = Some(password.as_ref().to_owned());
        self.server.credentials = None;
        self
    }

    /// The file with the [`password`](Self::password); line ends at its end are ignored. The client reads the
    /// file whenever it would ask for [`credentials`](Self::credentials), so running clients follow changes.
    pub fn password_file(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.server.password = None;
        self.server.credentials = Some(password_in(file.into()));
        self
    }

    /// Asks `provider` for user and password, in place of [`password`](Self::password): for passwords and
    /// tokens that change while clients run. `provider` gets the server's address: `host:port`, or a socket's
    /// path; for PostgreSQL and etcd all hosts that the URL names, with commas between them.
    ///
    /// The client asks for each new connection (connections within one second share an answer). If a server
    /// refuses the login, the client asks again: immediately, then after growing pauses of up to 1 s. On
    /// Redis `provider` gets one server's address: of the master that Sentinels name, of a member of a
    /// cluster, of a server of a Redlock or a ring. On etcd the client asks when it needs a token.
    ///
    /// # Blocking
    /// `provider` may block: it runs on a thread of its own, at most four at a time, and holds up no lock of
    /// this crate. A connection waits for it up to the connect time-out, or half of that if an earlier answer
    /// can be tried.
    ///
    /// # Errors
    /// If `provider` fails, panics, is late or returns an empty password, and the server accepts no earlier
    /// answer: a retryable error of kind [`Credentials`](crate::ErrorKind::Credentials), whose source is the
    /// provider's error. If the server refuses the newest answer:
    /// [`Authentication`](crate::ErrorKind::Authentication), which calls do not retry. The renewals of holds
    /// go on asking until the lease ends.
    ///
    /// # Guarantees
    /// No password is in an error, an event or `Debug` of this crate. If the old password is valid until the
    /// provider returns the new one, a change loses no hold, also if the server ends all connections.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold::{Credentials, LockClient};
    /// use std::time::Duration;
    ///
    /// # fn token_for(_address: &str) -> std::io::Result<String> { Ok(String::new()) }
    /// let client = LockClient::builder()
    ///     .url("rediss://locks.example:6380")
    ///     .credentials(|address| {
    ///         let token = token_for(address)?;
    ///         Ok::<_, std::io::Error>(
    ///             Credentials::new(token).username("locks").valid_for(Duration::from_secs(900)),
    ///         )
    ///     })
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn credentials<E: Into<Box<dyn StdError + Send + Sync>>>(
        mut self,
        provider: impl Fn(&str) -> std::result::Result<Credentials, E> + Send + Sync + 'static,
    ) -> Self {
        self.server.password = None;
        self.server.credentials = Some(config::provider(provider));
        self
    }

    /// The password of the Sentinels themselves. Defaults to none. Never shown in errors or `Debug`.
    pub fn sentinel_password(mut self, password: impl AsRef<str>) -> Self {
        self.server.sentinel_password = Some(password.as_ref().to_owned());
        self.server.sentinel_credentials = None;
        self
    }

    /// As [`credentials`](Self::credentials), for the Sentinels themselves, in place of
    /// [`sentinel_password`](Self::sentinel_password).
    pub fn sentinel_credentials<E: Into<Box<dyn StdError + Send + Sync>>>(
        mut self,
        provider: impl Fn(&str) -> std::result::Result<Credentials, E> + Send + Sync + 'static,
    ) -> Self {
        self.server.sentinel_password = None;
        self.server.sentinel_credentials = Some(config::provider(provider));
        self
    }

    /// The hosts, beside those of the URL, to which servers may redirect this client: names, addresses, or
    /// `*.` and the end of a name (`["*.shop.cache.example", "10.0.0.7"]`), without ports. Defaults to all.
    ///
    /// The members of a Redis Cluster name each other, and Sentinels name the master; the client sends
    /// them user and password. The client refuses another host before it sends anything there, with an error
    /// of kind [`Unsupported`](crate::ErrorKind::Unsupported) that names the host.
    pub fn allowed_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.server.hosts = Arc::new(Hosts::allowing(hosts.into_iter().map(Into::into).collect()));
        self
    }

    /// Whether this client has an entry in the directory of clients while it holds or waits. Defaults to yes.
    ///
    /// The entry says on which host, in which process, program and thread the client holds or waits;
    /// [`LockClient::inspect`] and [`LockClient::clients`] show the entry to all who may read the store.
    /// The client writes the entry each third of its lease. [`LockClient::shutdown`] removes the entry;
    /// otherwise it ends with the lease. A client whose user may not write the entry has none, without an
    /// error: its owners are shown by id.
    pub fn directory(mut self, directory: bool) -> Self {
        self.server.notes = directory;
        self.options.directory = directory;
        self
    }

    /// The client certificate (mutual TLS): a PEM file with its chain, and a PEM file with its private key,
    /// which is read when the client connects, and never shown. Defaults to none.
    #[cfg(feature = "tls")]
    pub fn tls_identity(
        mut self,
        certificate: impl Into<std::path::PathBuf>,
        key: impl Into<std::path::PathBuf>,
    ) -> Self {
        self.server.tls.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Names another client's hold that lasts until this process ends, by its owner's text
    /// ([`OwnedGuard::owner`](crate::OwnedGuard::owner)). That hold cannot end while this client waits, so
    /// the search for deadlocks counts this client's waits as that owner's too. Spaces separate several
    /// owners; text that is no owner is ignored. `leasehold run` passes its owner to its command by
    /// `LEASEHOLD_UNDER`.
    pub fn under_hold(mut self, owner: impl AsRef<str>) -> Self {
        self.options.under.extend(owner.as_ref().split_whitespace().filter_map(Owner::read));
        self
    }

    /// Connects, unless [`connect_lazily`](Self::connect_lazily) was called.
    ///
    /// # Blocking
    /// Up to the connect time-out.
    ///
    /// # Errors
    /// As [`LockClient::connect`]; and, before any I/O, for options that cannot be used, and in a forked
    /// child of a process that has made a client (kind [`Forked`](crate::ErrorKind::Forked)).
    pub fn build(self) -> Result<LockClient> {
        let (is_one_server, mut server) = (self.redlock.is_none() && self.ring.is_none(), self.server);
        if is_one_server && server.url.is_empty() {
            server.read_url()?;
            let words = "no URL was given: set LEASEHOLD_URL, for example to redis://127.0.0.1:6379";
            let is_missing = server.url.is_empty() && self.is_from_env;
            Error::unless(!is_missing, || words)?;
        }
        let mut options = self.options.checked()?;
        let server = server.checked()?;
        let servers = Servers::checked(self.redlock, self.ring, self.node_timeout)?;
        crate::fork::enter_process()?;
        let reporter = Arc::new(Reporter::new(self.observer));
        options.place = open::place(&server, servers.urls(&server));
        options.store = open::checked_kind(&server, &servers)?;
        let store = if self.is_lazy {
            open::check(&server, &servers, options.store)?;
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

    pub(super) fn check_times(&self) -> Result<()> {
        self.options.clone().checked()?;
        self.server.clone().checked().map(drop)
    }

    /// Makes the client on a memory store; options of servers are ignored.
    ///
    /// # Errors
    /// For options that cannot be used, and in a forked child of a process that has made a client.
    pub fn build_in_memory(self, store: &MemoryStore) -> Result<LockClient> {
        let options = Options { place: store.place(), store: "memory", ..self.options.checked()? };
        crate::fork::enter_process()?;
        let reporter = Arc::new(Reporter::new(self.observer));
        let opened: Arc<dyn Store> = Arc::new(store.open());
        LockClient::start(options, store.clock().clone(), opened.into(), reporter)
    }

    setters! {
    /// How long one request to one server of a [`redlock`](Self::redlock) may take, a tenth of the lease at
    /// most. A server that exceeds this is left out until it answers again. Defaults to 50 ms.
    pub fn node_timeout(mut self, timeout: Duration) -> Self = node_timeout: Some(timeout);

    /// The lease of holds whose call names none: how long a dead process keeps its locks. The client renews a
    /// lease after each third of it. Defaults to 30 s, as Redisson's; at least 100 ms. On ZooKeeper also the
    /// requested session time-out, which the servers bound.
    pub fn lease(mut self, lease: Duration) -> Self = options.lease: lease;

    /// How long connecting may take. Defaults to 3 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self = server.connect_timeout: timeout;

    /// How long calls keep trying while the server cannot be used, within their deadlines. Defaults to 10 s.
    pub fn retry_timeout(mut self, timeout: Duration) -> Self = options.retry_timeout: timeout;

    /// The number of connections for requests: up to 4 that all threads share, and the rest, at least one,
    /// for requests that need a connection of their own. Renewals and wake-ups have one more each. On etcd
    /// each request has its own connection. Defaults to 8; at most 10,000.
    pub fn pool_size(mut self, size: u32) -> Self = server.pool_size: size;

    /// The store's user, on Redis the ACL user. Defaults to the URL's.
    pub fn username(mut self, username: impl AsRef<str>) -> Self =
        server.username: Some(username.as_ref().to_owned());

    /// The ACL user of the Sentinels themselves. Defaults to none.
    pub fn sentinel_username(mut self, username: impl AsRef<str>) -> Self =
        server.sentinel_username: Some(username.as_ref().to_owned());

    /// The number of the Redis database. Defaults to the URL's, or 0.
    pub fn database(mut self, database: i64) -> Self = server.database: Some(database);

    /// The connections' name in Redis's `CLIENT LIST`, and PostgreSQL's `application_name`: printable ASCII
    /// without spaces. Defaults to none.
    pub fn client_name(mut self, name: impl AsRef<str>) -> Self =
        server.client_name: Some(name.as_ref().to_owned());

    /// A text for the client's [directory](Self::directory) entry, such as a job's name. Defaults to none;
    /// control characters, and what exceeds 64 characters, are left out.
    pub fn label(mut self, label: impl AsRef<str>) -> Self = options.label: Some(label.as_ref().to_owned());

    /// Maps a lock's name to its key, as Redisson's `NameMapper`. Defaults to the name itself.
    pub fn map_names(mut self, map: impl Fn(&str) -> String + Send + Sync + 'static) -> Self =
        options.map_names: Some(Arc::new(map));

    /// How long a subscription to a lock's messages outlives the last waiter. Defaults to 5 s.
    pub fn unsubscribe_delay(mut self, delay: Duration) -> Self = server.unsubscribe_delay: delay;

    /// How the members of a cluster notify waiters (`redis-cluster://`). Defaults to [`ClusterPubSub::Auto`].
    pub fn cluster_pub_sub(mut self, way: ClusterPubSub) -> Self = server.cluster_pub_sub: way;

    /// Grants a lock only when `count` replicas have acknowledged it. For locks of every kind; not for
    /// semaphores, latches and conditions.
    ///
    /// By default, with a `redis-sentinel://` or `redis-cluster://` URL, a grant needs the acknowledgement of
    /// one replica within 1 s, or within two thirds of the `command_timeout` if that is less. If the server
    /// reports no connected replica, the grant counts nevertheless, and the client reports
    /// [`Event::NoReplica`] once. With other URLs the default waits for no replica.
    ///
    /// The client asks for the acknowledgements by WAIT, on a connection of its own; one WAIT covers all
    /// grants before it. If fewer come within `timeout`, the client releases the lock at once, and the
    /// attempt fails with a retryable error of kind [`Busy`](crate::ErrorKind::Busy): `try_lock` returns the
    /// error, and a wait tries again.
    ///
    /// # Guarantees
    /// If `count` is the number of replicas, no failover to one of them forgets a granted lock. With a
    /// smaller `count`, a replica may be promoted that had not acknowledged. Renewals do not wait: a failover
    /// keeps the lease that the new master last received, and the client renews at once when it notices the
    /// failover. Acknowledged means in memory; see [`durable`](Self::durable) for files.
    ///
    /// The price: each grant takes a further round trip, and one between servers.
    pub fn require_replicas(mut self, count: u32, timeout: Duration) -> Self =
        server.replicas: ReplicaRule::Required(Replicas { count, within: timeout });

    /// Waits for no replica, also with Sentinels and a cluster. A failover may then forget the last grants
    /// before it, so that a lock has two owners. See [`require_replicas`](Self::require_replicas).
    pub fn without_replicas(mut self) -> Self = server.replicas: ReplicaRule::Nothing;

    /// Grants a lock only when it is on disk: in the append-only file of the server (`local`: 0 or 1) and in
    /// those of `replicas` replicas. Applies to the same kinds of lock as
    /// [`require_replicas`](Self::require_replicas), fails in the same way, and can be combined with it. The
    /// time limit is that of `require_replicas`, if it is set. Otherwise it is 2 s, or two thirds of the
    /// `command_timeout` if that is less. Defaults to no such condition.
    ///
    /// Needs Redis 7.2 or Valkey, for WAITAOF, and `appendonly yes`; elsewhere [`build`](Self::build) fails.
    /// With `appendfsync everysec` a grant takes up to a second, with `always` a disk write.
    pub fn durable(mut self, local: u32, replicas: u32) -> Self =
        server.durable: Some(Durable { local, replicas });

    /// The trusted authorities, as a PEM file, for `rediss://`, `rediss-sentinel://`, `rediss-cluster://`,
    /// `etcds://` and `zks://`. Defaults to the system's; for MySQL, to its driver's public ones. With this
    /// option a database must prove its identity, unless its URL says otherwise; see
    /// [TLS](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#tls).
    #[cfg(feature = "tls")]
    pub fn tls_ca(mut self, file: impl Into<std::path::PathBuf>) -> Self = server.tls.ca: Some(file.into());

    /// Whether to create the database's table if it does not exist; if it exists, the user needs no right to
    /// create tables. On PostgreSQL no table is created beside one of the same name in another schema, unless
    /// [`table`](Self::table) names the schema. Defaults to no: see
    /// [migration](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#migration).
    pub fn create_schema(mut self, create: bool) -> Self = server.table.create: create;

    /// Keeps locks by PostgreSQL's advisory locks or MySQL's `GET_LOCK`. Defaults to a table of locks.
    ///
    /// Each hold has its own connection, and ends with it: see [session
    /// locks](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#session-locks). Then only
    /// [`LockClient::get_lock`] works, and its grants have no fencing tokens.
    pub fn session_locks(mut self) -> Self = server.table.session_locks: true;

    /// Whether one of the clients that wait for a name polls often for all of them, on MySQL and MariaDB,
    /// which notify no waiter. Defaults to yes.
    ///
    /// The poller costs a connection and a thread in each client with waiters, and some 200 small requests a
    /// second for each name with waiters. Without it a waiter gets the lock up to 100 ms late. See the
    /// [figures](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#the-designated-poller-mysql-mariadb).
    pub fn designated_poller(mut self, is_on: bool) -> Self = server.table.designated_poller: is_on;

    /// How long a thread that holds a lock waits for another lock before the client checks for a deadlock.
    /// Defaults to 1 s; at least 10 ms; `Duration::MAX` never checks.
    ///
    /// The client checks again after pauses of 1, 2, 4, 8 and 16 s, then every 30 s, with at most 33 requests
    /// a second on average for all its threads. A deadlock is reported as [`Event::Deadlock`].
    pub fn detect_deadlocks_after(mut self, wait: Duration) -> Self = options.detect_deadlocks_after: wait;

    /// Whether the client ends a wait of its own that is the youngest of a deadlock, with an error of kind
    /// [`Deadlock`](crate::ErrorKind::Deadlock) that names the cycle. Defaults to no.
    ///
    /// The thread keeps its holds. It must release them to let the others go on: with guards, by returning
    /// the error. A multi-lock releases the locks that it acquired so far. A wait with a time limit ends in
    /// the same way, if its limit is longer than the search takes: a second more than
    /// [`detect_deadlocks_after`](Self::detect_deadlocks_after), so 2 s by default. A condition's wait that
    /// re-acquires its lock does not end; the youngest other wait does. A deadlock stays if its youngest wait
    /// is of a client without this option.
    pub fn break_deadlocks(mut self, breaks: bool) -> Self = options.break_deadlocks: breaks;

    /// The observer of this client's events. Defaults to none; without one, and without a subscriber of
    /// `tracing`, the client writes a line to standard error for each deadlock.
    pub fn observer(mut self, observer: impl Observer) -> Self = observer: Some(Arc::new(observer));

    /// Connects when the client is first used. Defaults to connecting in [`build`](Self::build).
    ///
    /// For programs that start before their store. Until there is a connection, each call tries to connect,
    /// which may take the connect time-out besides the call's own time; if that fails, the call returns the
    /// error without a retry. On ZooKeeper no hold outlasts the granted session, whatever the client's lease.
    pub fn connect_lazily(mut self) -> Self = is_lazy: true;

    /// A prefix of each lock's key, added to the result of [`map_names`](Self::map_names). Defaults to none.
    pub fn key_prefix(mut self, prefix: impl AsRef<str>) -> Self =
        options.key_prefix: prefix.as_ref().to_owned();

    /// The table of a database's locks, `name` or `schema.name`. Defaults to `leasehold_locks`.
    pub fn table(mut self, name: impl AsRef<str>) -> Self = server.table.name: name.as_ref().to_owned();
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

debug_fields!(ClientBuilder, |it| server: it.server);
