//! Whether a client's store can be used.

use std::time::Duration;

/// The answer of [`LockClient::ping`](crate::LockClient::ping).
///
/// # Examples
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
    /// `"redis"`, `"redis-sentinel"`, `"redis-cluster"`, `"redlock"`, `"ring"`, `"postgres"`, `"mysql"`,
    /// `"sqlite"`, `"etcd"`, `"zookeeper"` or `"memory"`.
    pub store: &'static str,
    /// The time of the round trip.
    pub latency: Duration,
    /// Whether waiters are woken.
    pub wakeups: Wakeups,
    /// The table that keeps the locks in PostgreSQL, MySQL or MariaDB, with its schema or database. `None`
    /// elsewhere, and before the first use of a client that [connects
    /// lazily](crate::LockClient::connect_lazily).
    pub table: Option<String>,
    /// PostgreSQL: tables of this name in other schemas, at the time of connecting. A program whose search
    /// path leads to one of them keeps other locks.
    pub other_tables: Vec<String>,
}

/// Whether a release elsewhere wakes waiters here.
///
/// # Examples
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
    /// As far as is known: a store subscribes with its first waiter, and nothing has failed since.
    Working,
    /// The subscription failed and is being renewed; until then waiters only poll.
    Down,
    /// This store notifies nobody: waiters poll.
    Polled,
}
