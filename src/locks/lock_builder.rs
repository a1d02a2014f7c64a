//! Options of one lock value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::terms::{Backoff, Terms};
use crate::locks::fenced::FencedLock;
use crate::locks::named::RedisLock;
use crate::seam::Kind;

/// Options of one lock value, each with its default; made by
/// [`LockClient::lock_builder`](crate::LockClient::lock_builder).
///
/// They belong to the value, not to the lock: other values of the same name, here or elsewhere, have their
/// own.
///
/// # Examples
///
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
#[must_use = "nothing comes of it before build()"]
pub struct LockBuilder {
    engine: Arc<Engine>,
    name: String,
    is_fair: bool,
    terms: Terms,
}

impl LockBuilder {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> LockBuilder {
        LockBuilder {
            engine: Arc::clone(engine),
            name: name.to_owned(),
            is_fair: false,
            terms: Terms::default(),
        }
    }

    /// Serves those who wait in the order in which they came; see
    /// [`LockClient::get_fair_lock`](crate::LockClient::get_fair_lock). Defaults to no order among processes.
    pub fn fair(mut self) -> Self {
        self.is_fair = true;
        self
    }

    /// Refuses to take the lock again on the thread that holds it, as Redisson's `RNonReentrantLock`: a call
    /// that would wait gets an error of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), one that
    /// would not gets `false` or `None`. Defaults to reentrant.
    ///
    /// It is the same lock as the reentrant one of the name. The value that is used to take it again decides:
    /// a reentrant one may, however it was first acquired.
    ///
    /// The choice for locks that tasks of an async runtime or jobs of a pool share: on one thread they are
    /// one owner, and each would re-enter the others' holds.
    pub fn non_reentrant(mut self) -> Self {
        self.terms.reentrant = false;
        self
    }

    /// Ends a hold when `limit` has passed since it was asked for: the watchdog renews it up to then and no
    /// further, and the holder is notified of its loss, for the reason
    /// [`HeldTooLong`](crate::LossReason::HeldTooLong), up to 1 % of the client's lease before. Defaults to
    /// no end. At least 1 ms.
    ///
    /// For work that is stuck, not only dead: a program that hangs while its watchdog lives would keep the
    /// lock for ever. It counts from the first level; re-entering does not put it off.
    ///
    /// Such a hold also says in the store since when it is held, when that ends, and where its holder is
    /// (machine, process, thread), for [`inspect`](crate::LockClient::inspect) to show. On Redis that is one
    /// more field of the lock's hash, which Redisson does not look at.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.terms.max_hold = Some(limit);
        self
    }

    /// Whether a guard of this lock that is dropped keeps the lock for its thread while it is this client's turn.
    /// Defaults to `true`.
    ///
    /// A turn begins when the server grants a lock that other clients stand in line for. It lasts for 2 ms, or
    /// for 64 ms divided by the clients in line if that is less; up to twice as long after one in which this
    /// process got too little processor. Until it is over, a dropped guard is not released in the server,
    /// provided that its hold was shorter than 0.5 ms and that the thread has lately come back within 0.2 ms.
    /// The thread then has the lock again without a request. It is given back when the turn is over, when
    /// nobody has come back for 0.3 ms, and before this value, or another of the lock, asks about it.
    /// [`unlock`](RedisLock::unlock) and [`Guard::unlock`](crate::Guard::unlock) keep nothing, unless with
    /// [`cached`](Self::cached).
    ///
    /// Threads that fight over a lock have it many times as often so. Those behind them wait for a turn each,
    /// not for a hold each: with n clients in line about 64 ms more, or n times 2 ms if that is less.
    /// `false` hands the lock over with each grant. A program that is killed in its turn leaves the lock until the lease
    /// ends, as one does that is killed while it holds it.
    pub fn time_slice(mut self, is_on: bool) -> Self {
        self.terms.turns = is_on;
        self
    }

    /// Keeps the lock for its thread after each use, until another client asks for it, or nobody here has used it
    /// for 500 ms. Defaults to giving it back after each use.
    ///
    /// For work that takes the same lock again and again, and seldom has to share it: while nobody else wants
    /// it, the thread has it again without a request, after a dropped guard and after
    /// [`unlock`](RedisLock::unlock). So `unlock` does **not** promise that the lock is free in the server: to
    /// all others it is held, also to `try_lock`, and to [`inspect`](crate::LockClient::inspect). This client's
    /// own questions give it back first.
    ///
    /// A client that waits for the lock sends a recall, once, or asks by standing in line (etcd, ZooKeeper); the lock is given back at once, or at the end of its
    /// present use. A lock that has been recalled twice within 100 ms is not kept in this way for a second. Where others
    /// stand in line, a plain lock is kept for a [time slice](Self::time_slice), by `unlock` as by a dropped guard. A waiter that
    /// sends none (Redisson) is seen by a look in the server: 50 ms after the grant, and then each time after
    /// twice as long, every 500 ms at the latest. Another thread of this client takes the lock by two requests.
    ///
    /// The lock has the client's lease throughout, and is renewed: a program that dies within 500 ms of its last use leaves
    /// the lock for that lease, as any holder does; on ZooKeeper for its session. What is learnt of a lock lasts for a second
    /// beyond its last value, and its first use is never kept. Fencing tokens are those of
    /// the store's grants: they do not change while the hold is kept, as they do not by re-entering.
    ///
    /// For plain and fenced locks on one Redis, with Sentinels, or in a cluster, in a table of PostgreSQL, on etcd and
    /// on ZooKeeper; else acquiring fails with [`Unsupported`](crate::ErrorKind::Unsupported). `cached` cannot be had with `max_hold` or `spin`
    /// ([`InvalidInput`](crate::ErrorKind::InvalidInput)). Owned guards, leases of a call's own, and groups of locks are not
    /// kept.
    pub fn cached(mut self) -> Self {
        self.terms.keep = true;
        self
    }

    /// Says to those who look that whoever holds the lock leads, and that those who wait are candidates. Changes
    /// nothing else: [`LockClient::leader`](crate::LockClient::leader) says so by itself, and this is for an
    /// election of one's own over a fenced lock. A leader is held for as long as it lives, so monitoring tells
    /// it from a hold that hangs. Said in the directory of clients; see [`Holder::is_leader`](crate::Holder::is_leader).
    pub fn election(mut self) -> Self {
        self.terms.leads = true;
        self
    }

    /// Waits by polling instead of being notified; see
    /// [`LockClient::get_spin_lock`](crate::LockClient::get_spin_lock). Defaults to being notified.
    pub fn spin(mut self, backoff: Backoff) -> Self {
        self.terms.backoff = Some(backoff);
        self
    }

    /// The lock with these options.
    pub fn build(self) -> RedisLock {
        let kind = if self.is_fair { Kind::Fair } else { Kind::Mutex };
        RedisLock::new(&self.engine, kind, &self.name).on_terms(self.terms)
    }

    /// The lock with these options and a fencing token for each grant.
    pub fn build_fenced(self) -> FencedLock {
        let kind = if self.is_fair { Kind::Fair } else { Kind::Fenced };
        let terms = Terms { fenced: true, ..self.terms };
        FencedLock::new(RedisLock::new(&self.engine, kind, &self.name).on_terms(terms))
    }
}

impl fmt::Debug for LockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockBuilder")
            .field("name", &self.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
