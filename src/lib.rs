//! Distributed locks for threads: blocking, reentrant, kept as leases on Redis, in a database, on etcd or
//! ZooKeeper.
//!
//! A lock is a name. Threads of any number of processes and machines acquire it by that name, and one of them
//! holds it at a time. The client renews the lease while its process lives. If the process dies, the lock is
//! free when the lease ends. A holder that loses the lock is notified. On Redis the locks have Redisson's
//! keys, owners, counts and messages, on ZooKeeper Curator's nodes: Rust and Java processes can share them.
//!
//! # Example
//!
//! ```no_run
//! use leasehold::{AcquireOptions, LockClient, Result};
//! use std::time::Duration;
//!
//! fn main() -> Result<()> {
//!     // One client per process. A clone is the same client.
//!     let client = LockClient::connect("redis://127.0.0.1:6379")?;
//!     let lock = client.get_lock("stock:42"); // a handle, which holds nothing yet
//!
//!     let options = AcquireOptions::new().wait(Duration::from_secs(3));
//!     let sold = options.with_lock(&lock, |guard| -> Result<()> {
//!         guard.on_lost(|loss| eprintln!("lost {}: {:?}", loss.name, loss.reason));
//!         // … read, decide …
//!         guard.check()?; // an error if the lock is lost: then nothing is written
//!         // … write …
//!         Ok(())
//!     })?; // releases; `work_ran()` of an error says whether the work had run
//!     match sold {
//!         Some(outcome) => outcome,
//!         None => Ok(println!("busy: another thread sells it")), // no error
//!     }
//! }
//! ```
//!
//! [`RedisLock::acquire`] gives a [`Guard`] instead, which releases when it is dropped.
//!
//! # What compiles and is wrong
//!
//! `client.get_lock("stock:42")` acquires nothing: it makes a handle, and `acquire()`, `lock()` or
//! `with_lock` on the handle takes the lock. The compiler warns if the handle is not used, and says nothing
//! of `let _guard = client.get_lock("stock:42");`:
//!
//! ```text
//! warning: unused `RedisLock` that must be used
//!   = note: `get_lock` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard
//! ```
//!
//! `let _ = lock.acquire()?;` releases at once. `guard.unlock()?` behind a write reports a failed release as
//! if the work had failed: [`Error::work_ran`] distinguishes the two. The
//! [list](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/porting-from-redisson.md#what-compiles-and-is-wrong)
//! says which lint reports each.
//!
//! The same code runs without a server on [`LockClient::in_memory`]; a [`ManualClock`] lets a unit test end a
//! lease at once.
//!
//! # Which type for what
//!
//! | Type | For | Made by |
//! |---|---|---|
//! | [`LockClient`], [`ClientBuilder`] | the connection to a store, one per process; its options | [`LockClient::connect`], [`LockClient::builder`] |
//! | [`RedisLock`] | one thread at a time: `lock` … `unlock` as in Java, or `acquire` for a guard | [`LockClient::get_lock`], [`get_fair_lock`](LockClient::get_fair_lock), [`get_token_lock`](LockClient::get_token_lock), [`lock_builder`](LockClient::lock_builder) |
//! | [`Guard`] | a hold that ends when it is dropped; it stays on its thread | [`RedisLock::acquire`], [`try_acquire_for`](RedisLock::try_acquire_for) |
//! | [`OwnedGuard`] | the same for a hold that may go to another thread | [`RedisLock::acquire_owned`] |
//! | [`AcquireOptions`] | a wait or a deadline, a lease and an interrupt of one call | [`AcquireOptions::new`], for [`RedisLock::acquire_with`] |
//! | [`FencedLock`], [`FencingToken`] | a lock with a number that grows with each grant, so that a resource can refuse a late writer | [`LockClient::get_fenced_lock`] |
//! | [`ReadWriteLock`] | many readers or one writer | [`LockClient::get_read_write_lock`] |
//! | [`MultiLock`], [`MultiGuard`] | several locks, all or none | [`LockClient::get_multi_lock`] |
//! | [`Semaphore`], [`ExpirableSemaphore`], [`Permit`] | at most n at a time | [`LockClient::get_semaphore`], [`get_expirable_semaphore`](LockClient::get_expirable_semaphore) |
//! | [`CountDownLatch`], [`Condition`] | waiting for what others do | [`LockClient::get_count_down_latch`], [`RedisLock::condition`] |
//! | [`Leader`] | one process that is in charge; see [`LockClient::run_once`] for one run of a job | [`LockClient::leader`] |
//! | [`HoldState`], [`Loss`], [`Observer`], [`Event`], [`Stats`] | the state of a hold, the reason of a loss, reports of what happens to all holds, counts | [`Guard::state`], [`Guard::on_lost`], [`ClientBuilder::observer`], [`LockClient::stats`], [`LockClient::contended`] |
//! | [`Interrupt`] | ending a wait from another thread | [`Interrupt::new`] |
//! | [`Inspection`] | who holds a name, who waits, and for how long | [`LockClient::inspect`] |
//! | [`Locks`], [`Clients`], [`ClientInfo`] | which locks are held, and by which hosts, processes and threads | [`LockClient::list`], [`LockClient::clients`] |
//! | [`Error`], [`ErrorKind`] | what failed, whether to try again, whether it may have happened | every call |
//! | [`MemoryStore`], [`ManualClock`] | unit tests without a server and without waiting | [`LockClient::in_memory_with`] |
//!
//! # Features
//!
//! Only `redis` is on by default. [`LockClient::connect`] lists the URLs of each store; its error names the
//! feature that a URL needs and that is off.
//!
//! | Feature | Brings |
//! |---|---|
//! | `redis` | `redis://` URLs: one server, Sentinels, a cluster, Redlock, a ring |
//! | `tls` | `rediss://` and the TLS of the other stores, by rustls; certificates are verified unless a database's URL says otherwise |
//! | `postgres` | `postgres://` URLs, and locks that belong to a transaction of the caller's own |
//! | `mysql` | `mysql://` and `mariadb://` URLs, and locks that belong to a transaction of the caller's own |
//! | `sqlite` | `sqlite://` URLs: a file, for the processes of one machine |
//! | `etcd` | `etcd://` URLs |
//! | `zookeeper` | `zk://` URLs; the locks are Curator's |
//! | `tracing` | spans of waits and holds, and log lines |
//! | `metrics` | an observer that counts and measures for the crate `metrics`, and so for Prometheus and others |
//! | `serde` | `Serialize` for [`Inspection`], [`ListedLock`], [`ClientInfo`], [`Stats`], [`Deadlock`] and [`Health`] |
//! | `tokio` | a hold also belongs to the async task that acquired it: another task on the same thread does not re-enter it |
//!
//! # Log levels
//!
//! With the feature `tracing`. Spans and lines name locks and owners, never a URL or a password.
//!
//! | Level | Says |
//! |---|---|
//! | `error` | a hold was lost |
//! | `warn` | a renewal or a release failed and is repeated; a thread ended without a release; the outcome of an acquire is unknown; threads deadlock; notifications do not arrive; callbacks are slow; a missing replica or a setting weakens a promise |
//! | `info` | a deadlock is over; notifications or replicas are back; callbacks keep up again |
//! | `debug` | a call or a request failed, and the caller gets the error too; the spans |
//! | `trace` | each wait, grant, release, renewal and request |
//!
//! The spans are `lock.acquire`, from a call to its grant or its end without one, and `lock.hold`, from the
//! grant to the release or the loss. The parent of both is the caller's span, and neither is entered. Their
//! fields are `lock.name`, `lock.kind`, `lock.owner` and `lock.fence`; `lock.acquire` also has `lock.outcome`
//! and `lock.attempts`, `lock.hold` has `lock.end`. After a failure the field `error.type`, as in
//! OpenTelemetry's conventions, is the [`ErrorKind`]. The lines `lock.at_risk` and `lock.lost` are written
//! within the hold's span.
//!
//! # Limits
//!
//! A lease lock cannot stop a holder that was paused for longer than its lease and then writes without a
//! check: where that matters, use a [`FencedLock`] and let the resource compare the token. A store that loses
//! its data, by a failover, an eviction or a restart, loses the locks too; the holder is notified. All
//! calls block, and there is no async API. Tasks of an async runtime that share a thread are one owner,
//! unless the feature `tokio` is on: see
//! [using it from async code](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/using-from-async.md).
//!
//! The crate needs Rust 1.89, and Linux, Android, macOS or Windows.
//!
//! # More
//!
//! - [Guarantees](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/guarantees.md): what holds when
//!   things break
//! - [Which lock, which store](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/locks.md): the kinds,
//!   the stores that have them, and URLs
//! - [Choosing a store](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/choosing.md), and
//!   [locks in a database](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md)
//! - Porting from
//!   [Redisson](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/porting-from-redisson.md) and from
//!   [Curator](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/porting-from-curator.md)
//! - [From SETNX to leases](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/from-setnx-to-leases.md):
//!   why a lock is more than one command
//! - [Performance](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/performance.md), and the
//!   [examples](https://github.com/leasehold/leasehold/tree/v0.1.0/examples)
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without Redis much of the shared code is unused.
#![cfg_attr(not(feature = "redis"), allow(dead_code, unused_imports, unused_variables))]

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", windows)))]
compile_error!("leasehold runs on Linux, Android, macOS and Windows only");

mod client;
mod config;
mod copies;
mod deadlock;
mod directory;
mod engine;
mod error;
mod fork;
#[cfg(all(test, leasehold_fuzz))]
#[path = "tests/fuzz.rs"]
mod fuzz;
mod hosts;
mod ident;
mod inquiry;
mod inspect;
mod interrupt;
mod locks;
mod observe;
mod park;
mod refused;
mod seam;
mod secrets;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod servers;
mod shrink;
mod stores;
mod sync;
mod system;
mod task;
#[cfg(test)]
mod tests;
mod time;
#[cfg(feature = "tls")]
mod tls;
mod topologies;
mod wire;

pub use client::{ClientBuilder, Clients, ListCost, ListedLock, LockClient, Locks, PausedClient};
pub use config::{ClusterPubSub, Credentials, RedlockNode};
pub use crossbeam_channel;
pub use deadlock::{Deadlock, DeadlockStep};
pub use directory::run::LastRun;
pub use directory::{ClientInfo, LockUse};
pub use engine::acquire::call::Backoff;
pub use error::{Error, ErrorKind, NotHeld, Result};
pub use ident::{ClientId, FencingToken, MAX_NAME_LEN, Owner};
pub use inspect::{Health, Holder, Inspection, Location, Mode, ObjectKind, PermitInfo, Waiter, Wakeups};
pub use interrupt::Interrupt;
pub use locks::acquire::Lock;
pub use locks::condition::Condition;
pub use locks::counted::{CountDownLatch, ExpirableSemaphore, Semaphore};
pub use locks::fencing;
pub use locks::group::{MultiGuard, OwnedMultiGuard};
pub use locks::guard::{Guard, HoldState, OwnedGuard, Permit};
pub use locks::leader::{Leader, LeaderEvent};
pub use locks::multi::{IntoLocks, MultiLock};
pub use locks::named::{FencedLock, LockBuilder, ReadWriteLock, RedisLock};
pub use locks::options::AcquireOptions;
pub use observe::event::{Event, GaveUpReason};
#[cfg(feature = "metrics")]
pub use observe::metrics::Metrics;
pub use observe::stats::{Contended, Stats};
pub use observe::{Loss, LossReason, Observer};
pub use stores::memory::{Fault, MemoryStore};
// The features are written out, because rustdoc does not infer them for these two modules.
#[cfg(feature = "mysql")]
#[cfg_attr(docsrs, doc(cfg(feature = "mysql")))]
pub use stores::sql::mysql::in_transaction as mysql;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use stores::sql::postgres::in_transaction as postgres;
pub use time::ManualClock;
pub use topologies::ring::plan::{Ring, RingNode};

/// Only the command-line program `leasehold` may use this module, which may change in any version.
#[doc(hidden)]
pub mod program {
    pub use crate::client::settings::{HOST_NAME, MAY_BE_DEADLOCKED, NANOS, SPAN, Settings};
}

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../docs/porting-from-redisson.md")]
    mod porting {}
    #[doc = include_str!("../docs/testing-your-code.md")]
    mod testing_your_code {}
    #[doc = include_str!("../docs/stores.md")]
    mod stores {}
    #[doc = include_str!("../docs/porting-from-curator.md")]
    mod porting_from_curator {}
}
