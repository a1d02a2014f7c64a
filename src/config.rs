//! Options of a client, their checks, and credentials with their provider.

use std::error::Error as StdError;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::copies::{Copies, Durable, ReplicaRule};
use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::ident::Owner;
use crate::inquiry::{Cause, Told};
use crate::time::{checked_lease, checked_span};

/// Minimum of the option `lease`, because a renewal after each third of the lease needs time.
pub(crate) const SHORTEST_RENEWED: Duration = Duration::from_millis(100);

/// Minimum of the option `detect_deadlocks_after`, because each check costs requests.
const MIN_DEADLOCK_AGE: Duration = Duration::from_millis(10);

/// Maps a lock's name, as the program gives it, to its key in the store.
pub(crate) type NameMapper = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Passes a row for each option of a client to the macro `$then`: field, type and default. If an environment
/// variable sets the option, then also the variable, the builder method, the variable's parser, an example.
macro_rules! client_options {
    ($then:ident) => {
        $then! {
            Options {
                lease: Duration = Duration::from_secs(30), "LEASEHOLD_LEASE" lease(time) "30s";
                command_timeout: Duration = Duration::from_secs(3),
                    "LEASEHOLD_COMMAND_TIMEOUT" command_timeout(time) "3s";
                retry_timeout: Duration = Duration::from_secs(10),
                    "LEASEHOLD_RETRY_TIMEOUT" retry_timeout(time) "10s";
                key_prefix: String = String::new(), "LEASEHOLD_KEY_PREFIX" key_prefix(text) "shop:";
                map_names: Option<NameMapper> = None;
                /// Database, table, URLs without credentials: multi-locks order clients' equal keys by it.
                place: String = String::new();
                /// The kind of store, as [`Health`](crate::Health) names it.
                store: &'static str = "";
                directory: bool = true, "LEASEHOLD_DIRECTORY" directory(switch) "no";
                label: Option<String> = None, "LEASEHOLD_LABEL" label(text) "nightly";
                detect_deadlocks_after: Duration = Duration::from_secs(1);
                break_deadlocks: bool = false;
                /// See [`ClientBuilder::under_hold`](crate::ClientBuilder::under_hold).
                under: Vec<Owner> = Vec::new(), "LEASEHOLD_UNDER" under_hold(text) "8c…:7 1f…:3";
            }
            ServerOptions {
                url: String = String::new();
                username: Option<String> = None, "LEASEHOLD_USERNAME" username(text) "locks";
                password: Option<String> = None;
                sentinel_username: Option<String> = None,
                    "LEASEHOLD_SENTINEL_USERNAME" sentinel_username(text) "watch";
                sentinel_password: Option<String> = None;
                database: Option<i64> = None, "LEASEHOLD_DATABASE" database(number) "3";
                client_name: Option<String> = None, "LEASEHOLD_CLIENT_NAME" client_name(text) "shop";
                connect_timeout: Duration = Duration::from_secs(3),
                    "LEASEHOLD_CONNECT_TIMEOUT" connect_timeout(time) "500ms";
                command_timeout: Duration = Duration::from_secs(3);
                pool_size: u32 = 8, "LEASEHOLD_POOL_SIZE" pool_size(number) "8";
                unsubscribe_delay: Duration = Duration::from_secs(5),
                    "LEASEHOLD_UNSUBSCRIBE_DELAY" unsubscribe_delay(time) "5s";
                replicas: ReplicaRule = ReplicaRule::ByUrl;
                durable: Option<Durable> = None;
                tls: TlsOptions = TlsOptions::default();
                url_files: Vec<PathBuf> = Vec::new();
                credentials: Option<Provider> = None;
                sentinel_credentials: Option<Provider> = None;
                table: TableOptions = TableOptions::default();
                cluster_pub_sub: ClusterPubSub = ClusterPubSub::Auto,
                    "LEASEHOLD_CLUSTER_PUB_SUB" cluster_pub_sub(pub_sub) "plain";
                /// The allowed hosts and the state of host look-ups, shared by all connections of the client.
                hosts: Arc<Hosts> = Arc::default(),
                    "LEASEHOLD_ALLOWED_HOSTS" allowed_hosts(list) "*.cache.example 10.0.0.7";
                /// Whether the client may store its lock format's version; `directory(false)` forbids it.
                notes: bool = true;
            }
            /// The servers of a Redlock, and the time-out of a request to one of them.
            #[derive(Debug)]
            RedlockOptions {
                nodes: Vec<RedlockNode> = Vec::new();
                node_timeout: Duration = Duration::from_millis(50),
                    "LEASEHOLD_NODE_TIMEOUT" node_timeout(time) "50ms";
            }
            TableOptions {
                name: String = "leasehold_locks".to_owned(), "LEASEHOLD_TABLE" table(text) "jobs.locks";
                create: bool = false, "LEASEHOLD_CREATE_SCHEMA" create_schema(switch) "yes";
                session_locks: bool = false;
                designated_poller: bool = true, "LEASEHOLD_DESIGNATED_POLLER" designated_poller(switch) "no";
            }
        }
    };
}
pub(crate) use client_options;

/// Makes builder methods that set one field each, given as `= FIELD: VALUE`.
macro_rules! setters {
    ($(
        $(#[$about:meta])*
        pub fn $name:ident(mut $self:ident $(, $argument:ident: $type:ty)*) -> Self = $($field:ident).+: $value:expr;
    )*) => {
        $(
            $(#[$about])*
            pub fn $name(mut $self $(, $argument: $type)*) -> Self {
                $self.$($field).+ = $value;
                $self
            }
        )*
    };
}
pub(crate) use setters;

/// Implements `Debug` with the named fields only, so that no secret is shown.
macro_rules! debug_fields {
    ($type:ident, |$this:pat_param| $($field:ident: $value:expr),*) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                f.debug_struct(stringify!($type))$(.field(stringify!($field), &$value))*.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_fields;

macro_rules! structs {
    ($($(#[$about:meta])* $options:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr $(, $variable:literal $set:ident($read:ident) $example:literal)?;)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone)]
        pub(crate) struct $options {
            $($(#[$doc])* pub(crate) $field: $type,)*
        }

        impl Default for $options {
            fn default() -> $options {
                $options { $($field: $default),* }
            }
        }
    )*};
}

client_options!(structs);

impl Options {
    pub(crate) fn checked(mut self) -> Result<Options> {
        let (lease, least) = (self.lease, SHORTEST_RENEWED);
        Error::unless(lease >= least, || {
            format!("a lease of {lease:?} is too short to be renewed: the least is {least:?}")
        })?;
        self.lease = checked_lease("connect", self.lease)?;
        check_timeout("command_timeout", self.command_timeout)?;
        let (after, least) = (self.detect_deadlocks_after, MIN_DEADLOCK_AGE);
        Error::unless(after >= least, || {
            format!("detect_deadlocks_after of {after:?} is too short: the least is {least:?}")
        })?;
        Ok(self)
    }
}

/// How the members of a Redis Cluster notify waiters; set by
/// [`ClientBuilder::cluster_pub_sub`](crate::ClientBuilder::cluster_pub_sub). All clients that share locks
/// must use the same way. A client that listens in another way is not woken, and finds a free lock by
/// polling; a Redisson client finds it when the lease that it last saw is over.
///
/// # Examples
/// ```no_run
/// use leasehold::{ClusterPubSub, LockClient};
///
/// // Beside a Redisson with shardedSubscriptionMode=OFF.
/// let client = LockClient::builder()
///     .url("redis-cluster://10.0.0.1,10.0.0.2")
///     .cluster_pub_sub(ClusterPubSub::Plain)
///     .build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ClusterPubSub {
    /// Sharded if the first server that answers knows `PUBSUB SHARDNUMSUB` (Redis 7, Valkey), else plain, as
    /// Redisson's `shardedSubscriptionMode` by default.
    #[default]
    Auto,
    /// `SPUBLISH` and `SSUBSCRIBE`: a message goes to the members of the lock's slot.
    Sharded,
    /// `PUBLISH` and `SUBSCRIBE`: a message goes to all members. For fleets with Redisson before 3.22, or
    /// with `shardedSubscriptionMode=OFF`.
    Plain,
    /// Sharded and plain messages, for fleets with clients of both kinds. Needs Redis 7 or Valkey.
    Both,
}

const MOST_CONNECTIONS: u32 = 10_000;

impl ServerOptions {
    pub(crate) fn copies(&self, has_replicas: bool) -> Option<Copies> {
        self.replicas.copies(self.durable, self.command_timeout, has_replicas)
    }

    pub(crate) fn read_url(&mut self) -> Result<()> {
        if let Some(file) = self.url_files.first() {
            self.url = read_urls(file).map_err(|why| unusable("URL", &why))?;
        }
        Ok(())
    }

    pub(crate) fn checked(self) -> Result<ServerOptions> {
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("command_timeout", self.command_timeout)?;
        self.hosts.check_options()?;
        let size = self.pool_size;
        Error::unless(size > 0, || "a pool_size of 0 is too small: the least is 1")?;
        Error::unless(size <= MOST_CONNECTIONS, || {
            format!("a pool_size of {size} is too large: the most is {MOST_CONNECTIONS}")
        })?;
        self.durable.map_or(Ok(()), Durable::check)?;
        if let ReplicaRule::Required(replicas) = self.replicas {
            check_timeout("require_replicas time-out", replicas.within)?;
            replicas.check(self.command_timeout)?;
        }
        self.check_client_name()?;
        Ok(self)
    }

    pub(crate) fn check_client_name(&self) -> Result<()> {
        let is_plain = self.client_name.iter().all(|name| name.chars().all(|c| c.is_ascii_graphic()));
        let words = "the client_name may have printable ASCII characters only, and no spaces";
        Error::unless(is_plain, || words)
    }
}

#[derive(Clone, Default)]
pub(crate) struct TlsOptions {
    /// The authorities to trust instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate chain, and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    /// Whether a URL with this scheme uses TLS. If so, needs the feature `tls`; if not, refuses TLS options.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn is_wanted_by(&self, scheme: &str, secure: &str) -> Result<bool> {
        let is_wanted = scheme.eq_ignore_ascii_case(secure);
        if is_wanted && !cfg!(feature = "tls") {
            return Err(crate::hosts::needs_feature(secure, "tls"));
        }
        if !is_wanted {
            self.refused_without_tls(&format!("the URL does not start with {secure}://"))?;
        }
        Ok(is_wanted)
    }

    pub(crate) fn refused_without_tls(&self, why: &str) -> Result<()> {
        let given = match self {
            TlsOptions { ca: None, identity: None } => return Ok(()),
            TlsOptions { ca: Some(_), .. } => "tls_ca was given",
            TlsOptions { ca: None, identity: Some(_) } => "tls_identity was given",
        };
        Err(Error::invalid("connect", format!("{given}, but {why}")))
    }
}

fn unusable(what: &str, why: &str) -> Error {
    Error::invalid("connect", format!("the {what}'s file cannot be used: {why}"))
}

pub(crate) fn read_secret(file: &PathBuf) -> std::result::Result<String, String> {
    read(file, |text| text.trim_end_matches(['\r', '\n']).to_owned())
}

pub(crate) fn read_urls(file: &PathBuf) -> std::result::Result<String, String> {
    let counts = |line: &&str| !line.is_empty() && !line.starts_with('#');
    read(file, |text| text.lines().map(str::trim).filter(counts).collect::<Vec<_>>().join("\n"))
}

fn read(file: &PathBuf, meant: impl FnOnce(&str) -> String) -> std::result::Result<String, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("the file cannot be read: {error}"))?;
    Some(meant(&text)).filter(|text| !text.is_empty()).ok_or_else(|| "the file is empty".to_owned())
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
impl ServerOptions {
    pub(crate) fn checked_for_database(&self) -> Result<&ServerOptions> {
        check_table(&self.table.name)?;
        let words = "database() is for Redis: name a SQL database in the URL";
        Error::unless(self.database.is_none(), || words).map(|()| self)
    }
}

/// One of the servers on which [`LockClient::redlock`](crate::LockClient::redlock) keeps locks.
///
/// # Examples
/// ```
/// use leasehold::RedlockNode;
///
/// let plain: RedlockNode = "redis://10.0.0.1".into();
/// let renamed = RedlockNode::new("redis://10.0.0.2").map_names(|key| format!("locks:{key}"));
/// ```
#[derive(Clone)]
#[must_use = "a node is given to LockClient::redlock"]
pub struct RedlockNode {
    pub(crate) url: String,
    pub(crate) map_names: Option<NameMapper>,
}

impl RedlockNode {
    /// The server at `url`; see [`LockClient::connect`](crate::LockClient::connect).
    pub fn new(url: impl AsRef<str>) -> RedlockNode {
        RedlockNode { url: url.as_ref().to_owned(), map_names: None }
    }

    /// Maps a lock's key, as the client made it, to the key on this node. Defaults to the same key.
    pub fn map_names(mut self, map: impl Fn(&str) -> String + Send + Sync + 'static) -> RedlockNode {
        self.map_names = Some(Arc::new(map));
        self
    }
}

impl<U: AsRef<str>> From<U> for RedlockNode {
    fn from(url: U) -> RedlockNode {
        RedlockNode::new(url)
    }
}

debug_fields!(RedlockNode, |it| maps_names: it.map_names.is_some());

impl RedlockOptions {
    pub(crate) fn checked(self) -> Result<RedlockOptions> {
        check_timeout("node_timeout", self.node_timeout)?;
        let given = self.nodes.len();
        Error::unless(given >= FEWEST_NODES, || {
            format!(
                "Redlock needs at least {FEWEST_NODES} servers: on {given} it is no safer than a lock on one, since no \
                 majority outlives the loss of a server"
            )
        })?;
        Ok(self)
    }
}

/// Accepts only a plain identifier, with or without a schema: the name becomes part of SQL statements.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn check_table(table: &str) -> Result<()> {
    const MOST: usize = 48;
    let is_plain = |part: &str| {
        let starts_well = part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        starts_well && part.len() <= MOST && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let words = "the table's name cannot be used: it may have letters, digits and underscores, at most 48 \
        characters, and a schema's name and a dot before it";
    Error::unless(table.split('.').count() <= 2 && table.split('.').all(is_plain), || words)
}

const FEWEST_NODES: usize = 3;

fn check_timeout(option: &str, timeout: Duration) -> Result<()> {
    checked_span("connect", &format!("a {option}"), timeout).map(drop)
}

debug_fields!(ServerOptions, |it| database: it.database, client_name: it.client_name, pool_size: it.pool_size);

const LONGEST_CREDENTIAL: usize = 64 * 1024;

/// User and password, from a provider of [`ClientBuilder::credentials`](crate::ClientBuilder::credentials).
///
/// # Examples
/// ```
/// use leasehold::Credentials;
/// use std::time::Duration;
///
/// let credentials = Credentials::new("token").username("locks").valid_for(Duration::from_secs(900));
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone)]
#[must_use = "a provider returns them"]
pub struct Credentials {
    username: Option<String>,
    password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// The password of the user named in the client's options or URL.
    pub fn new(password: impl Into<String>) -> Credentials {
        Credentials { username: None, password: password.into(), valid_for: None }
    }

    /// The user. Defaults to that of the client's options, or of the URL.
    pub fn username(mut self, username: impl Into<String>) -> Credentials {
        self.username = Some(username.into());
        self
    }

    /// The time after which the server ends connections with these credentials. Defaults to never.
    ///
    /// On Redis the client replaces each connection a fifth of the time before that end (30 s at least, half
    /// of the time at most), or at a random moment a little earlier, so that a fleet does not reconnect at
    /// once. The old connection serves until the new one is ready. Other stores ignore this option.
    pub fn valid_for(mut self, time: Duration) -> Credentials {
        self.valid_for = Some(time);
        self
    }

    pub(crate) fn over(self, username: Option<String>) -> (Option<String>, Option<String>) {
        (self.username.or(username), Some(self.password))
    }

    /// Refuses credentials that no server accepts, and those that could break a protocol's framing.
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        let texts = || self.username.iter().chain([&self.password]);
        match () {
            () if self.password.is_empty() => Err("the password is empty"),
            () if texts().any(|text| text.contains('\0')) => Err("there is a NUL in them"),
            () if texts().any(|text| text.len() > LONGEST_CREDENTIAL) => Err("they are longer than 64 KiB"),
            () => Ok(()),
        }
    }
}

debug_fields!(Credentials, |it| valid_for: it.valid_for);

/// A provider of credentials, called with the server's address.
pub(crate) type Provider = Arc<dyn Fn(&str) -> Told<Credentials> + Send + Sync>;

pub(crate) fn provider<E: Into<Box<dyn StdError + Send + Sync>>>(
    ask: impl Fn(&str) -> std::result::Result<Credentials, E> + Send + Sync + 'static,
) -> Provider {
    Arc::new(move |address| {
        ask(address).map_err(|error| {
            let boxed: Box<dyn StdError + Send + Sync> = error.into();
            Cause::from(boxed)
        })
    })
}
