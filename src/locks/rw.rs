//! The read-write lock: two locks that know of each other.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::acquire::lock_config::LockConfig;
use crate::locks::fenced::FencedLock;
use crate::locks::named::RedisLock;
use crate::seam::Kind;

/// Many readers or one writer, across threads, processes and languages: Redisson's `RReadWriteLock`.
///
/// Both halves are reentrant [`RedisLock`]s, with guards, leases, the watchdog, and fencing tokens for
/// writers. A writing thread may also read, and go on reading after it stopped writing (downgrade). A reading
/// thread cannot begin to write (upgrade), which is refused at once, since two such threads would deadlock.
///
/// # Guarantees
/// While one owner writes, no other reads or writes. Readers and writers take turns: once a writer has waited
/// for 50 ms, readers that come later wait behind it, and `try_lock` of the read half returns `false`; when a
/// write ends, the readers that waited go together, and then the next writer. Java's readers, and those of
/// older versions, take no part, and may pass. A re-entry never waits for a writer. But a reader deadlocks if it
/// waits for another thread that wants to read, while a writer waits in between. A reader with an explicit lease
/// counts for that time, even where a Java reader's watchdog would shorten everyone's.
///
/// On ZooKeeper all wait in order of arrival.
///
/// # Examples
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
#[derive(Clone, Debug)]
#[must_use = "`get_read_write_lock` acquires nothing: `read().acquire()` or `write().acquire()` on the handle returns a guard"]
pub struct ReadWriteLock {
    read: RedisLock,
    write: RedisLock,
    config: LockConfig,
}

impl ReadWriteLock {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> ReadWriteLock {
        ReadWriteLock {
            read: RedisLock::new(engine, Kind::Read, name),
            write: RedisLock::new(engine, Kind::Write, name),
            config: LockConfig::default(),
        }
    }

    /// The half that many may hold at a time. A writing thread can take it for itself, but not for an
    /// [`OwnedGuard`](crate::OwnedGuard), which would be another reader: refused as below.
    #[must_use = "`read()` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
    pub fn read(&self) -> &RedisLock {
        &self.read
    }

    /// The half that one owner may hold, while no other holds either half.
    ///
    /// A thread that only reads gets an error of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and
    /// `false` or `None` from calls that do not wait. The read lock of an [`OwnedGuard`](crate::OwnedGuard)
    /// belongs to no thread: a writer waits for that guard, whichever thread has it.
    #[must_use = "`write()` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
    pub fn write(&self) -> &RedisLock {
        &self.write
    }

    /// As [`write`](Self::write), with a fencing token for each grant.
    pub fn write_fenced(&self) -> FencedLock {
        FencedLock::new(self.write.clone().with_config(LockConfig { fenced: true, ..self.config }))
    }

    /// The same lock, in which all waiting writers come before all new readers, from their first moment. A stream
    /// of writers can then starve readers.
    ///
    /// An agreement among the users: a writer announces its wait, and readers let it go first. A process
    /// without this option, Java's among them, excludes and is excluded as always, but takes no part in the
    /// agreement. Use it with all handles of the name.
    ///
    /// A reader may re-enter, and a writer may read, whoever waits. But a reader deadlocks if it waits for
    /// another thread that wants to read, or for an [owned guard](RedisLock::acquire_owned) of its own on the
    /// read half, while a writer waits in between. A dead writer is waited for up to 6 s. Of several waiting
    /// writers of one client only the first is announced: readers may enter once before the next. On
    /// ZooKeeper all wait in order of arrival, and this changes nothing.
    ///
    /// # Examples
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let cache = client.get_read_write_lock("cache").writers_first();
    /// let _reading = cache.read().acquire()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn writers_first(self) -> ReadWriteLock {
        let config = LockConfig { writers_first: true, ..self.config };
        ReadWriteLock { read: self.read.with_config(config), write: self.write.with_config(config), config }
    }
}
