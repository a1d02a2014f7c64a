//! Options of one lock value.

use std::sync::Arc;
use std::time::Duration;

use crate::config::setters;
use crate::engine::Engine;
use crate::engine::acquire::lock_config::{Backoff, LockConfig};
use crate::locks::fenced::FencedLock;
use crate::locks::named::RedisLock;
use crate::seam::Kind;

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
/// import.unlock()?;
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
    /// would wait gets [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and one that would not gets
    /// `false` or `None`. Defaults to reentrant.
    ///
    /// The lock is the same as the reentrant one; the handle that re-enters decides. For locks shared by
    /// tasks of an async runtime or jobs of a pool: on one thread they are one owner, and would re-enter
    /// each other's holds.
    pub fn non_reentrant(mut self) -> Self = config.reentrant: false;

    /// Ends a hold `limit` after its request: the watchdog renews it no further, and the holder is notified
    /// of the loss with the reason [`HeldTooLong`](crate::LossReason::HeldTooLong), up to 1 % of the
    /// client's lease early. Counts from the first level. Defaults to no end; at least 1 ms.
    ///
    /// For work that may hang while its process lives. The store then also records since when the lock is
    /// held, when the hold ends, and where its holder is, for [`inspect`](crate::LockClient::inspect); on
    /// Redis in another field of the lock's hash, which Redisson ignores.
    pub fn max_hold(mut self, limit: Duration) -> Self = config.max_hold: Some(limit);

    /// Whether a dropped guard keeps the lock for its thread until the end of this client's time slice.
    /// Defaults to `true`.
    ///
    /// A slice begins when the server grants a lock for which other clients queue. It lasts 2 ms, or 64 ms
    /// divided by the number of clients in the queue, if that is less; up to twice as long after a slice in
    /// which this process got too little processor time. In a slice a dropped guard is not released in the
    /// server if its hold was shorter than 0.5 ms and its thread lately came back within 0.2 ms; the thread
    /// re-acquires without a request. The lock is released at the end of the slice, after 0.3 ms without a
    /// return, and before a handle of the lock asks about it. [`unlock`](RedisLock::unlock) and
    /// [`Guard::unlock`](crate::Guard::unlock) always release, unless the lock is [`cached`](Self::cached).
    ///
    /// Threads that contend for a lock acquire it many times as often with slices. Clients behind them wait
    /// for a slice each: with n clients in the queue about 64 ms more, or n times 2 ms if that is less. A
    /// program that is killed in its slice leaves the lock until the lease ends, as in a hold.
    pub fn time_slice(mut self, is_on: bool) -> Self = config.time_slices: is_on;

    /// Keeps the lock for its thread after each use, until another client wants it or the thread has not used
    /// it for 500 ms. Defaults to releasing after each use.
    ///
    /// For a thread that takes the same lock repeatedly and seldom shares it: the thread re-acquires without
    /// a request after a dropped guard and after [`unlock`](RedisLock::unlock). So `unlock` does **not**
    /// promise that the lock is free: others find it held, by `try_lock` and
    /// [`inspect`](crate::LockClient::inspect) too. This client's own questions release it first.
    ///
    /// A waiting client sends a recall, or queues visibly (etcd, ZooKeeper); the lock is released at once, or
    /// at the end of the present use. After two recalls within 100 ms the client does not cache this lock for
    /// one second. Where other clients queue, a plain lock is kept for a [time slice](Self::time_slice), by
    /// `unlock` as by a dropped guard. Waiters that send no recall (Redisson) are found by polling: 50 ms
    /// after the grant, then after twice as long each time, at most 500 ms. Another thread of this client
    /// takes the lock by two requests. The first use of a lock is never cached.
    ///
    /// The cached lock is renewed: a program that dies within 500 ms of its last use leaves it for the
    /// client's lease, on ZooKeeper for its session. The fencing token stays the same while the lock is
    /// cached.
    ///
    /// For plain and fenced locks on one Redis, with Sentinels, in a cluster, in a table of PostgreSQL, on
    /// etcd and on ZooKeeper; elsewhere acquiring fails with [`Unsupported`](crate::ErrorKind::Unsupported).
    /// Not with `max_hold` or `spin` ([`InvalidInput`](crate::ErrorKind::InvalidInput)). Owned guards, calls
    /// with a lease, and groups of locks are not cached.
    pub fn cached(mut self) -> Self = config.cached: true;

    /// Shows in the directory that the holder leads and that waiters are candidates; see
    /// [`Holder::is_leader`](crate::Holder::is_leader). On Redis and PostgreSQL three clients stand in the
    /// queue, and others ask each third of their lease.
    /// [`LockClient::leader`](crate::LockClient::leader) does so by itself; this is for a program's own
    /// election over a fenced lock, whose leader monitoring should not take for a hold that hangs.
    pub fn election(mut self) -> Self = config.leads: true;

    /// Waits by polling instead of notifications; see
    /// [`LockClient::get_spin_lock`](crate::LockClient::get_spin_lock).
    pub fn spin(mut self, backoff: Backoff) -> Self = config.backoff: Some(backoff);
    }
}
