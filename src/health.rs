//! Whether a client's store can be used.

use std::time::Duration;

/// The answer of [`LockClient::ping`](crate::LockClient::ping).
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, Wakeups};
///
/// let health = LockClient::in_memory().ping()?;
/// assert_eq!((health.store, health.wakeups), ("memory", Wakeups::Working));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// The kind of store: `"redis"`, `"redis-sentinel"`, `"redis-cluster"`, `"redlock"`, `"ring"`,
    /// `"postgres"`, `"mysql"`, `"sqlite"`, `"etcd"`, `"zookeeper"` or `"memory"`.
    pub store: &'static str,
    /// How long the round trip took.
    pub latency: Duration,
    /// Whether waiters are woken.
    pub wakeups: Wakeups,
    /// The table of a PostgreSQL, MySQL or MariaDB that keeps the locks, with its schema or database. `None`:
    /// there is none, or it is not known before the first use of a client that
    /// [connects lazily](crate::LockClient::connect_lazily).
    pub table: Option<String>,
    /// PostgreSQL: tables of the same name in other schemas, as they were when the client connected. A
    /// program whose search path leads to one of them keeps other locks than this client.
    pub other_tables: Vec<String>,
}

/// Whether a release elsewhere wakes those who wait here.
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, Wakeups};
///
/// let client = LockClient::in_memory();
/// if client.ping()?.wakeups == Wakeups::Down {
///     eprintln!("waiters poll until the subscription is back");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Wakeups {
    /// As far as is known: a store subscribes when somebody waits first, and nothing has failed since.
    Working,
    /// The subscription failed and is being made anew; until then waiters only poll.
    Down,
    /// This store wakes nobody: waiters poll.
    Polled,
}
