//! Several locks at once, all or none.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::acquire::call::{AcquireCall, ONCE};
use crate::engine::batch::{BatchItem, LevelRelease, ask_ahead, leave_all};
use crate::error::{Error, Result};
use crate::locks::group::{Group, MultiGuard, OwnedMultiGuard};
use crate::locks::named::{RedisLock, unending};
use crate::locks::options::AcquireOptions;
use crate::time::{Clock, Lease, Moment};

/// The locks of a [`MultiLock`]: a tuple of up to eight locks of any kinds, or an array, a slice or a vector
/// of one kind. The trait is open: a program may implement it for its own types.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let (ledger, rates) = (client.get_fenced_lock("ledger"), client.get_read_write_lock("rates"));
/// let mixed = client.get_multi_lock((&ledger, rates.read(), client.get_lock("stock:42")));
/// let alike = client.get_multi_lock(["account:3", "account:7"].map(|name| client.get_lock(name)));
/// assert_eq!((mixed.names().count(), alike.names().count()), (3, 2));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no list of locks",
    note = "give a tuple of locks of any kinds, or an array, a slice or a vector of one kind; collect an iterator into a `Vec`"
)]
pub trait IntoLocks {
    /// The locks, in any order.
    fn into_locks(self) -> Vec<RedisLock>;
}

impl<L: Into<RedisLock>> IntoLocks for Vec<L> {
    fn into_locks(self) -> Vec<RedisLock> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<L: Into<RedisLock>, const N: usize> IntoLocks for [L; N] {
    fn into_locks(self) -> Vec<RedisLock> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<'a, L> IntoLocks for &'a [L]
where
    &'a L: Into<RedisLock>,
{
    fn into_locks(self) -> Vec<RedisLock> {
        self.iter().map(Into::into).collect()
    }
}

macro_rules! tuples_into_locks {
    ($($lock:ident)+) => {
        impl<$($lock: Into<RedisLock>),+> IntoLocks for ($($lock,)+) {
            fn into_locks(self) -> Vec<RedisLock> {
                #[expect(non_snake_case, reason = "the names of the types stand for the values too")]
                let ($($lock,)+) = self;
                vec![$($lock.into()),+]
            }
        }
    };
}

tuples_into_locks!(A);
tuples_into_locks!(A B);
tuples_into_locks!(A B C);
tuples_into_locks!(A B C D);
tuples_into_locks!(A B C D E);
tuples_into_locks!(A B C D E F);
tuples_into_locks!(A B C D E F G);
tuples_into_locks!(A B C D E F G H);

/// Several locks that are acquired and released as one, all or none: Redisson's `RedissonMultiLock`. For a
/// step that touches several locked things, such as a transfer between two accounts.
///
/// [`LockClient::get_multi_lock`](crate::LockClient::get_multi_lock) makes it from locks of any kinds and
/// clients, on different stores too: plain, fenced and fair ones, halves of read-write locks, token locks,
/// and those with [options](crate::LockClient::lock_builder). A multi-lock has no key of its own in the
/// store, so it excludes all users of each single lock, in whatever language.
///
/// # Blocking
/// Free locks are acquired at the same time: one round trip. Plain and fenced locks of one client on one
/// Redis server, in a cluster those in one slot (`{…}` in their names), are one script: one request acquires
/// all, and one releases them. While the call waits for a busy lock, it holds those that come
/// earlier in the order of the keys.
///
/// # Errors
/// Of kind [`InvalidInput`](crate::ErrorKind::InvalidInput), before any I/O: the list is empty, or names one
/// lock twice, be it by two kinds or by two clients on the same store.
///
/// # Guarantees
/// - All or nothing: whatever ends the attempt (a busy lock, an error, an interrupt, a loss, the deadline, a
///   panic), the locks acquired so far are released, the last first.
/// - Multi-locks do not deadlock with each other, since all processes acquire in the order of the keys. (One
///   key on several stores is ordered by the stores' URLs, without credentials: all processes must use the
///   same URLs.) A thread that holds a lock already and acquires others is not protected.
/// - With a lease all locks end together, counted from the grant of the last; those before it are renewed
///   until then.
/// - The loss of one is the loss of all; see [`MultiGuard::check`].
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let transfer = client.get_multi_lock([client.get_lock("account:7"), client.get_lock("account:3")]);
/// let both = transfer.acquire()?;
/// // … take from one, check, give to the other …
/// both.check()?;
/// drop(both); // releases
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_multi_lock` acquires nothing: it makes a handle, whose `acquire()` takes the locks and returns a guard"]
pub struct MultiLock {
    clock: Clock,
    locks: std::result::Result<Arc<[RedisLock]>, Arc<Error>>,
}

impl MultiLock {
    pub(crate) fn new(clock: &Clock, locks: Vec<RedisLock>) -> MultiLock {
        MultiLock { clock: clock.clone(), locks: ordered(locks).map(Arc::from).map_err(Arc::new) }
    }

    /// The names of the locks, as given, in the order of acquisition; none if the list cannot be used.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().flat_map(|locks| locks.iter()).map(RedisLock::name)
    }

    /// Releases one level of the calling thread's hold on each lock, the last acquired first.
    ///
    /// # Errors
    /// As [`RedisLock::unlock`], about the first that failed; the others are released nevertheless.
    pub fn unlock(&self) -> Result<()> {
        let mut missing = None;
        let mut outcome = Ok(());
        let mut held = Vec::new();
        for lock in self.checked("unlock")?.iter().rev() {
            let (engine, (name, local)) = (&lock.engine, lock.found("unlock")?);
            if let Err(error) = engine.usable("unlock") {
                outcome = outcome.and(Err(error.on(name.given())));
                continue;
            }
            match engine.own_hold(local) {
                Some(hold) => held.push(LevelRelease { engine: Arc::clone(engine), hold, level: None }),
                None => missing = missing.or(Some((engine, lock.kind, name))),
            }
        }
        leave_all("unlock", held).map_err(Error::after_work)?;
        // The request that asks why a lock was not held comes last, so that it delays no release.
        let missing = missing.map(|(engine, kind, name)| engine.not_holding("unlock", kind, name));
        outcome.and(missing.map_or(Ok(()), Err))
    }

    /// Whether the calling thread holds all locks, as [`RedisLock::is_held_by_current_thread`].
    ///
    /// # Blocking
    /// One round trip for each, up to the first that is not held.
    ///
    /// # Errors
    /// A server could not be used.
    pub fn is_held_by_current_thread(&self) -> Result<bool> {
        for lock in self.checked("is_held_by_current_thread")? {
            if !lock.is_held_by_current_thread()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The shortest [remaining lease](RedisLock::remaining_lease) of the holders; `None` if a lock is free.
    ///
    /// # Blocking
    /// One round trip for each, up to the first that is free.
    ///
    /// # Errors
    /// A server could not be used.
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        let mut least = Duration::MAX;
        for lock in self.checked("remaining_lease")? {
            let Some(remaining) = lock.remaining_lease()? else { return Ok(None) };
            least = least.min(remaining);
        }
        Ok(Some(least))
    }

    pub(super) fn leave_open(group: Group) {
        group.leave_open();
    }

    pub(super) fn guard(&self, group: Group) -> MultiGuard {
        group.guarded()
    }

    fn checked(&self, action: &'static str) -> Result<&[RedisLock]> {
        self.locks.as_deref().map_err(|bad| bad.copy().during(action))
    }

    /// Converts the deadline to the clock of the lock's client, since a test's client may have its own clock.
    fn limit_for(&self, lock: &RedisLock, limit: Moment) -> Moment {
        match limit {
            ONCE | Moment::NEVER => limit,
            at => lock.engine.clock.after(at.since(self.clock.now())),
        }
    }

    pub(super) fn unending(&self, action: &'static str) -> Error {
        unending(action, self.names().next().unwrap_or_default())
    }

    pub(super) fn enter(&self, action: &'static str, options: &AcquireOptions) -> Result<Option<Group>> {
        self.take(action, options, true)
    }

    pub(super) fn own(
        &self,
        action: &'static str,
        options: &AcquireOptions,
    ) -> Result<Option<OwnedMultiGuard>> {
        Ok(self.take(action, options, false)?.map(Group::owned))
    }

    /// Acquires all locks or none: free locks at the same time, busy locks one after the other, in order.
    fn take(&self, action: &'static str, options: &AcquireOptions, by_thread: bool) -> Result<Option<Group>> {
        let (lease, limit) = (options.lease_of_hold(), options.limit(&self.clock));
        let locks = self.checked(action)?;
        let kept = match lease {
            // Renewed until `settle`, so that the first lock does not expire before the last is acquired.
            Lease::Fixed(lease) => Lease::Kept(lease),
            other => other,
        };
        let limit = if self.clock.now() >= limit { ONCE } else { limit };
        // On every early return the group is dropped, which releases its locks, the last first.
        let mut group = Group::default();
        let mut has_waited = false;
        loop {
            let rest = locks.get(group.len()..).unwrap_or_default();
            if rest.is_empty() {
                if let (Lease::Fixed(lease), true) = (lease, has_waited) {
                    group.prolong(lease);
                }
                if !group.drop_lost() {
                    group.settle();
                    return Ok(Some(group));
                }
                has_waited = true;
                if limit == ONCE {
                    return Ok(None);
                }
                continue;
            }
            if has_waited && limit != ONCE && self.clock.now() >= limit {
                return Ok(None);
            }
            let asked = |lock, limit| {
                let want = RedisLock::want(lock, action, kept, limit, options.interrupt.as_ref())?;
                Ok(BatchItem { engine: &lock.engine, want: AcquireCall { by_thread, ..want } })
            };
            let ahead = first_batch(action, rest, |lock| asked(lock, ONCE))?;
            if ahead.len() > 1 {
                let came = ask_ahead(&ahead, limit == ONCE);
                let added = group.add(rest.iter().map(|lock| &lock.engine).zip(came));
                // Always true for a call that makes only one attempt, whose limit is `ONCE`.
                let is_over = self.clock.now() >= limit;
                match added {
                    None => continue,
                    Some(Some(Ok(None))) if is_over => return Ok(None),
                    Some(Some(Err(error))) if is_over || !error.is_retryable() => return Err(error),
                    Some(_) => {}
                }
            }
            let Some(next) = locks.get(group.len()) else { continue };
            let BatchItem { engine, want } = asked(next, self.limit_for(next, limit))?;
            match engine.acquire(&want)? {
                Some(entered) => group.push(engine, entered),
                None => return Ok(None),
            }
            has_waited = true;
        }
    }
}

/// The locks of one common request: those before the first lock that needs a request of its own.
fn first_batch<'a>(
    action: &'static str,
    locks: &'a [RedisLock],
    asked: impl Fn(&'a RedisLock) -> Result<BatchItem<'a>>,
) -> Result<Vec<BatchItem<'a>>> {
    let mut ahead = Vec::with_capacity(locks.len());
    for lock in locks {
        lock.engine.usable(action)?;
        let wanted = asked(lock)?;
        if !wanted.engine.can_ask_ahead(&wanted.want) {
            break;
        }
        ahead.push(wanted);
    }
    Ok(ahead)
}

/// Sorts locks into the order that all processes use; an error if they cannot be taken together.
fn ordered(mut locks: Vec<RedisLock>) -> Result<Vec<RedisLock>> {
    const ACTION: &str = "get_multi_lock";
    Error::require(ACTION, !locks.is_empty(), || "the list of locks is empty")?;
    for lock in &locks {
        lock.checked(ACTION)?;
    }
    let key = |lock: &RedisLock| {
        let name = lock.checked(ACTION).map(|name| name.key().to_owned()).unwrap_or_default();
        (name, lock.engine.options.place.clone())
    };
    locks.sort_by_cached_key(key);
    for (one, next) in locks.iter().zip(locks.iter().skip(1)) {
        Error::require(ACTION, key(one) != key(next), || {
            format!("the list has one lock twice: {:?} and {:?} have the same key", one.name(), next.name())
        })
        .map_err(|error| error.on(next.name()))?;
    }
    Ok(locks)
}
