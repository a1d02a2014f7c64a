//! The read-write lock: two locks that know of each other.

use std::fmt;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::acquire::terms::Terms;
use crate::locks::fenced::FencedLock;
use crate::locks::named::RedisLock;
use crate::seam::Kind;

/// Many readers or one writer, across threads, processes and languages: Redisson's `RReadWriteLock`.
///
/// Its two halves are [`RedisLock`]s, with all that those can do: guards, leases, the watchdog, fences for
/// writers. Both are reentrant. The thread that writes may also read, and go on reading after it has let go
/// of writing (downgrade); the thread that reads cannot begin to write (upgrade): two who tried would wait
/// for each other, so the attempt is refused at once.
///
/// # Guarantees
///
/// While somebody writes, nobody else reads or writes. Readers are never held back by a writer that waits, as
/// in Java: a stream of readers can starve writers, unless they and the writers use
/// [`writers_first`](Self::writers_first).
///
/// A reader with a lease of its own is kept counted for as long as that lasts, also when a Java reader's
/// watchdog would cut everybody's time short.
///
/// # Examples
///
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let cache = client.get_read_write_lock("cache");
/// {
///     let _reading = cache.read().acquire()?;
///     // … look …
/// }
/// let writing = cache.write().acquire()?;
/// // … rebuild …
/// let reading = cache.read().acquire()?; // downgrade: nobody writes in between
/// drop(writing);
/// drop(reading);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "`get_read_write_lock` acquires nothing: `read().acquire()` or `write().acquire()` on the handle returns a guard"]
pub struct ReadWriteLock {
    read: RedisLock,
    write: RedisLock,
    terms: Terms,
}

impl ReadWriteLock {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> ReadWriteLock {
        ReadWriteLock {
            read: RedisLock::new(engine, Kind::Read, name),
            write: RedisLock::new(engine, Kind::Write, name),
            terms: Terms::default(),
        }
    }

    /// The half that many may hold at a time. The thread that writes can take it for itself, not for an
    /// [`OwnedGuard`](crate::OwnedGuard), which would be another reader: that is refused as below.
    #[must_use = "`read()` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
    pub fn read(&self) -> &RedisLock {
        &self.read
    }

    /// The half that one may hold, while nobody else holds either.
    ///
    /// Taken by a thread that holds the other half only, for itself or for an
    /// [`OwnedGuard`](crate::OwnedGuard), it gives an error of kind
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock); calls that do not wait give `false` or `None`. The
    /// read lock of an `OwnedGuard` is no thread's: a writer waits for that guard, whichever thread has it.
    #[must_use = "`write()` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
    pub fn write(&self) -> &RedisLock {
        &self.write
    }

    /// As [`write`](Self::write), with a fencing token for each grant.
    pub fn write_fenced(&self) -> FencedLock {
        FencedLock::new(self.write.clone().on_terms(Terms { fenced: true, ..self.terms }))
    }

    /// The same lock, with a writer that waits coming before readers that do not read yet, so that a stream
    /// of readers cannot starve writers. A stream of writers can then starve readers.
    ///
    /// It is an agreement of those who use it: a writer says that it waits, readers look and let it go first.
    /// A process that uses the lock without it, Java's among them, is excluded and excludes as always, but
    /// neither announces its writing nor lets others go first. Use it with all values of the name, or writers
    /// gain little.
    ///
    /// A reader may read again, and a writer may read, whoever waits. But a reader that waits for another
    /// thread that wants to read too, or for an [owned guard](RedisLock::acquire_owned) of its own on the
    /// read half, waits for ever if a writer comes between, since that waits for the reader. A writer that
    /// died is waited for up to 6 s. Of several threads of one client that wait to write, the first is
    /// announced: before the next, readers may get in once. On ZooKeeper all wait in order of arrival, and
    /// this changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let cache = client.get_read_write_lock("cache").writers_first();
    /// let _reading = cache.read().acquire()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn writers_first(self) -> ReadWriteLock {
        let terms = Terms { writers_first: true, ..self.terms };
        ReadWriteLock { read: self.read.on_terms(terms), write: self.write.on_terms(terms), terms }
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock").field("name", &self.read.name()).finish_non_exhaustive()
    }
}
