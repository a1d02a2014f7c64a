//! The object that a name stands for in the store, and its holders; and whether the store answers.

use std::fmt;
use std::time::Duration;

use crate::ident::{ClientId, FencingToken, thread_name};
use crate::system;

/// The store's view of a name, from [`LockClient::inspect`](crate::LockClient::inspect). A field that the
/// store does not know is `None` or empty. `Display` writes a line about the object, and a line for each
/// holder, permit and waiter.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, ObjectKind};
///
/// let client = LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// let shown = client.inspect("stock:42")?;
/// assert!(shown.is_held() && shown.kind == ObjectKind::Lock);
/// println!("{shown}"); // stock:42: a lock, held, lease of 29.9 s …
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Inspection {
    /// The name, as `inspect` was given it.
    pub name: String,
    /// The kind of object, as far as can be seen.
    pub kind: ObjectKind,
    /// The holders: one, several readers, or a writer that reads as well.
    pub holders: Vec<Holder>,
    /// The time until the object ends unless renewed: `None` if there is no object, `Duration::MAX` if it has
    /// no end.
    pub remaining: Option<Duration>,
    /// The last fencing token that was granted.
    pub fencing_token: Option<FencingToken>,
    /// The first hundred waiters: owners in a fair lock's queue, or clients in the wait queue of another lock
    /// or a semaphore, in order. If nobody is in a queue, the waiters that the directory listed up to a third
    /// of a lease ago, longest wait first.
    pub waiters: Vec<Waiter>,
    /// The number of all waiters.
    pub waiting: u64,
    /// Whether there may be more waiters, since not all directory entries were read.
    pub waiting_at_least: bool,
    /// The number of clients that listen for a release. A client listens until a few seconds after its wait.
    /// `None` for fair locks.
    pub listeners: Option<u64>,
    /// The number of available permits, or what is left to count down.
    pub count: Option<i64>,
    /// The acquired permits of an expirable semaphore; of more than a hundred, those that end first.
    pub permits: Vec<PermitInfo>,
    /// The number of acquired permits of an expirable semaphore.
    pub permits_out: u64,
    /// Whether a waiting writer keeps out readers that let writers go first.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) writers_wait: bool,
    /// Whether a waiting writer keeps out all readers that come later.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) a_writer_waits_long: bool,
}

/// The kind of object that a name stands for.
///
/// Some kinds look alike in the store. A fair lock without waiters is shown as a plain lock. A lock counts as
/// fenced if a token was ever granted for its name. A semaphore and a latch are both a number in the store;
/// acquired permits, the listeners' channel, or a count of zero or less tell them apart.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, ObjectKind};
///
/// assert_eq!(LockClient::in_memory().inspect("gate")?.kind, ObjectKind::Absent);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ObjectKind {
    /// Nothing: a free lock, an open latch, or an unused name.
    #[default]
    Absent,
    /// The reentrant lock. Spin locks and non-reentrant locks are shown in the same way.
    Lock,
    /// A lock with a fencing token for each grant.
    FencedLock,
    /// The lock that serves waiters in order.
    FairLock,
    /// Many readers or one writer.
    ReadWriteLock {
        /// The half that is held. `Write` also if the writer reads as well.
        mode: Mode,
    },
    /// A string with its owner's token, as this crate writes it. Another library's token looks like any
    /// string and is [`Foreign`](Self::Foreign); [`RedisLock::holder`](crate::RedisLock::holder) shows it.
    TokenLock,
    /// Permits without owners.
    Semaphore,
    /// Permits with ids and leases.
    ExpirableSemaphore,
    /// A count that threads wait to reach zero.
    CountDownLatch,
    /// A semaphore or a latch, which look alike.
    Counter,
    /// Redisson's `RedissonFasterMultiLock`: one hash in which several values are locked.
    GroupLock,
    /// Another object, of which nothing is shown.
    Foreign {
        /// The object's type, as the store names it.
        what: String,
    },
}

/// The halves of a read-write lock.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, Mode, ObjectKind};
///
/// let client = LockClient::in_memory();
/// let guard = client.get_read_write_lock("catalogue").read().acquire()?;
/// assert_eq!(client.inspect("catalogue")?.kind, ObjectKind::ReadWriteLock { mode: Mode::Read });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Mode {
    /// Many owners may hold this half.
    Read,
    /// One owner may hold this half.
    Write,
}

/// A holder of a lock.
///
/// # Examples
/// ```
/// let client = leasehold::LockClient::in_memory();
/// client.get_lock("stock:42").lock()?;
/// let holder = client.inspect("stock:42")?.holders.remove(0);
/// assert_eq!((holder.hold_count, holder.by_this_client), (Some(1), true));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The owner as the store has it: `client:number` (also Redisson's), or another library's token.
    pub owner: String,
    /// How many times the owner holds the lock: once, and once more for each re-entry.
    pub hold_count: Option<u32>,
    /// The half of a read-write lock that the owner holds; `None` for other locks.
    pub mode: Option<Mode>,
    /// Whether the owner belongs to the client that inspects.
    pub by_this_client: bool,
    /// The time until the hold ends unless renewed; zero for a dead reader, `None` if it has no end, or none
    /// is known.
    pub remaining: Option<Duration>,
    /// How long the owner has held the lock. This crate's holders report this each third of their lease, and
    /// at once with [`max_hold`](crate::LockBuilder::max_hold); Redisson's holders never do.
    pub held_for: Option<Duration>,
    /// The time until the hold ends whatever its client does: by `max_hold`, or by an explicit lease, which
    /// the client reports each third of the client's lease.
    pub ends_within: Option<Duration>,
    /// Whether the holder leads and the waiters are candidates, because the holder uses
    /// [`LockClient::leader`](crate::LockClient::leader) or
    /// [`LockBuilder::election`](crate::LockBuilder::election).
    pub is_leader: bool,
    /// The holder's location, if known. Redisson's holders do not report a location, and nothing on the
    /// server leads from their id to a connection.
    pub location: Option<Location>,
}

impl Holder {
    pub(crate) fn new(owner: String) -> Holder {
        Holder { owner, ..Holder::default() }
    }
}

/// A waiter: an owner, or a client in the wait queue of a lock or semaphore.
///
/// # Examples
/// ```
/// for waiter in leasehold::LockClient::in_memory().inspect("desk")?.waiters {
///     println!("{} waits, and keeps its place for {:?}", waiter.owner, waiter.remaining);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiter {
    /// As [`Holder::owner`]; in a wait queue of clients, the id of a client, for all its threads.
    pub owner: String,
    /// Whether the waiter belongs to the client that inspects.
    pub by_this_client: bool,
    /// How long a waiter for a fair lock keeps its place without a further attempt. This crate's waiters
    /// attempt each 1.2 s and keep their places for 6 s; Redisson's keep theirs for minutes.
    pub remaining: Option<Duration>,
    /// How long the waiter has waited: in a wait queue by the server's clock, otherwise as its client
    /// reported up to a third of its lease ago.
    pub waiting_for: Option<Duration>,
    /// The waiter's location, if known. If several threads of a client wait, that of the longest waiter.
    pub location: Option<Location>,
}

impl Waiter {
    pub(crate) fn new(owner: String, remaining: Option<Duration>) -> Waiter {
        Waiter { owner, by_this_client: false, remaining, waiting_for: None, location: None }
    }
}

/// An acquired permit of an expirable semaphore.
///
/// # Examples
/// ```
/// let client = leasehold::LockClient::in_memory();
/// for out in client.inspect("seats")?.permits {
///     client.get_expirable_semaphore("seats").release(&out.id)?; // any process may
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PermitInfo {
    /// The id by which the permit is released.
    pub id: String,
    /// Whether the client that inspects holds the permit.
    pub by_this_client: bool,
    /// The time until the permit ends unless renewed; `Duration::MAX` if it does not expire.
    pub remaining: Duration,
}

/// The host, process and thread of a holder or waiter, as its client reported.
///
/// # Examples
/// ```
/// for place in leasehold::LockClient::in_memory().inspect("import")?.holders.iter().flat_map(|one| &one.location) {
///     println!("kill {} on {}, thread {:?}", place.pid, place.host, place.thread);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Location {
    /// The machine's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The thread's name. Empty for a thread without a name, for a guard that may change threads, and if not
    /// yet reported: a client reports each third of its lease, and only its first 64 holds and waits.
    pub thread: String,
    /// The file name of the process's program; empty if not known.
    pub program: String,
    /// The text of [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub label: Option<String>,
}

impl Location {
    pub(crate) fn new(host: String, pid: u32, thread: String) -> Location {
        Location { host, pid, thread, program: String::new(), label: None }
    }

    pub(crate) fn here() -> Location {
        Location::new(system::host_name(), std::process::id(), thread_name().into())
    }
}

impl Inspection {
    pub(crate) fn new(name: &str, kind: ObjectKind) -> Inspection {
        Inspection { name: name.to_owned(), kind, ..Inspection::default() }
    }

    /// Whether there are holders; not meaningful for semaphores and latches.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Sets `by_this_client` of the holders, waiters and permits that belong to `client`.
    pub(crate) fn seen_by(mut self, client: ClientId) -> Inspection {
        let (prefix, without_queue) = (format!("{client}:"), format!("{}:", client.without_queue()));
        let id = client.to_string();
        let is_own =
            |owner: &str| owner.starts_with(&prefix) || owner.starts_with(&without_queue) || owner == id;
        // A permit's id begins with the first 12 hex digits of its client's id.
        let of_permits: String = prefix.chars().filter(|c| *c != '-').take(12).collect();
        self.holders.iter_mut().for_each(|one| one.by_this_client = is_own(&one.owner));
        self.waiters.iter_mut().for_each(|one| one.by_this_client = is_own(&one.owner));
        self.permits.iter_mut().for_each(|one| one.by_this_client = one.id.starts_with(&of_permits));
        self
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.kind)?;
        if self.kind == ObjectKind::Absent {
            f.write_str(": it is free, or no such name is in use")?;
        }
        match (&self.kind, self.count) {
            (ObjectKind::Absent | ObjectKind::Foreign { .. }, _) => {}
            (ObjectKind::Counter, Some(count)) => write!(f, ", at {count}")?,
            (ObjectKind::CountDownLatch, Some(count)) => write!(f, ", {count} to go")?,
            (_, Some(count)) => write!(f, ", {count} to be had")?,
            (_, None) => f.write_str(if self.is_held() { ", held" } else { ", free" })?,
        }
        part(f, "", self.remaining.map(lease_left), "")?;
        part(f, "last token ", self.fencing_token, "")?;
        part(f, "", self.listeners.filter(|listeners| *listeners > 0), " clients listen")?;
        self.holders.iter().try_for_each(|holder| write!(f, "\n  held by {holder}"))?;
        for permit in &self.permits {
            let (own, left) = (own(permit.by_this_client), lease_left(permit.remaining));
            write!(f, "\n  out: {}{own}, {left}", permit.id)?;
        }
        more(f, self.permits_out, self.permits.len(), "")?;
        for (place, waiter) in self.waiters.iter().enumerate() {
            write!(f, "\n  waits, {}.: {}{}", place + 1, waiter.owner, own(waiter.by_this_client))?;
            part(f, "counts as alive for ", waiter.remaining.map(span), "")?;
            part(f, "for ", waiter.waiting_for.map(span), " now")?;
            part(f, "", waiter.location.as_ref(), "")?;
        }
        more(f, self.waiting, self.waiters.len(), if self.waiting_at_least { ", at least" } else { "" })
    }
}

fn more(f: &mut fmt::Formatter<'_>, all: u64, shown: usize, how: &str) -> fmt::Result {
    match all.saturating_sub(u64::try_from(shown).unwrap_or(u64::MAX)) {
        0 if how.is_empty() => Ok(()),
        rest => write!(f, "\n  and {rest} more{how}"),
    }
}

pub(crate) fn own(is_own: bool) -> &'static str {
    if is_own { " (this client)" } else { "" }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Absent => "nothing",
            ObjectKind::Lock => "a lock",
            ObjectKind::FencedLock => "a fenced lock",
            ObjectKind::FairLock => "a fair lock",
            ObjectKind::ReadWriteLock { mode: Mode::Read } => "a read-write lock, read",
            ObjectKind::ReadWriteLock { mode: Mode::Write } => "a read-write lock, written",
            ObjectKind::TokenLock => "a token lock",
            ObjectKind::Semaphore => "a semaphore",
            ObjectKind::ExpirableSemaphore => "a semaphore with leases",
            ObjectKind::CountDownLatch => "a latch",
            ObjectKind::Counter => "a semaphore or a latch",
            ObjectKind::GroupLock => "a lock of several values",
            ObjectKind::Foreign { what } => return write!(f, "no lock, but {what}"),
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Mode::Read { "reading" } else { "writing" })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.owner, own(self.by_this_client))?;
        part(f, "", self.mode, "")?;
        part(f, "", self.hold_count.filter(|holds| *holds != 1), " times")?;
        part(f, "", self.is_leader.then_some("as the leader"), "")?;
        part(f, "for ", self.held_for.map(span), " now")?;
        part(f, "", self.remaining.map(lease_left), "")?;
        part(f, "ends in ", self.ends_within.map(span), " at the latest")?;
        part(f, "", self.location.as_ref(), "")
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on {} in process {}", self.host, self.pid)?;
        part(f, "thread ", Some(&self.thread).filter(|name| !name.is_empty()), "")?;
        part(f, "program ", Some(&self.program).filter(|name| !name.is_empty()), "")?;
        part(f, "", self.label.as_ref(), "")
    }
}

fn part(
    f: &mut fmt::Formatter<'_>,
    before: &str,
    value: Option<impl fmt::Display>,
    behind: &str,
) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {before}{value}{behind}"))
}

fn lease_left(left: Duration) -> String {
    match left {
        Duration::MAX => "without an end".to_owned(),
        Duration::ZERO => "its lease has run out".to_owned(),
        left => format!("lease of {}", span(left)),
    }
}

pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}.{} s", time.subsec_millis() / 100),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

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
    /// How long the request and its answer took.
    pub latency: Duration,
    /// Whether messages wake waiters.
    pub wakeups: Wakeups,
    /// The table that keeps the locks in PostgreSQL, MySQL or MariaDB, with its schema or database. `None`
    /// elsewhere, and before the first use of a client that [connects
    /// lazily](crate::LockClient::connect_lazily).
    pub table: Option<String>,
    /// PostgreSQL: tables of this name in other schemas, at the time of connecting. A program whose search
    /// path leads to one of them shares no lock with this client.
    pub other_tables: Vec<String>,
}

/// Whether a release by another client wakes waiters of this client.
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
    /// Nothing has failed so far. (A store subscribes only when its first waiter needs it.)
    Working,
    /// The subscription failed and is being renewed; until then waiters only poll.
    Down,
    /// This store notifies nobody: waiters poll.
    Polled,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inspection_prints_as_readable_text() {
        let mut seen = Inspection::new("import", ObjectKind::FairLock);
        seen.remaining = Some(Duration::from_millis(29_870));
        seen.fencing_token = Some(FencingToken::new(17));
        seen.holders.push(Holder {
            hold_count: Some(2),
            held_for: Some(Duration::from_secs(192)),
            ends_within: Some(Duration::from_secs(7_500)),
            location: Some(Location::new("ada".into(), 12, "main".into())),
            ..Holder::new("0f0c:1".into())
        });
        let remaining = Some(Duration::from_secs(5));
        seen.waiters.push(Waiter { by_this_client: true, ..Waiter::new("0f0c:2".into(), remaining) });
        seen.waiting = 3;
        let expected = "import: a fair lock, held, lease of 29.8 s, last token 17\n  held by 0f0c:1, 2 times, for 3 min \
                        12 s now, ends in 2 h 5 min at the latest, on ada in process 12, thread main\n  waits, 1.: \
                        0f0c:2 (this client), counts as alive for 5.0 s\n  and 2 more";
        assert_eq!(seen.to_string(), expected);
    }

    #[test]
    fn inspection_text_of_a_semaphore_shows_free_and_granted_permits() {
        let mut seen = Inspection::new("slots", ObjectKind::ExpirableSemaphore);
        (seen.count, seen.permits_out) = (Some(2), 1);
        let id = "ab".repeat(16);
        seen.permits.push(PermitInfo { id: id.clone(), by_this_client: false, remaining: Duration::MAX });
        seen.remaining = Some(Duration::MAX);
        let expected = format!(
            "slots: a semaphore with leases, 2 to be had, without an end\n  out: {id}, without an end"
        );
        assert_eq!(seen.to_string(), expected);
        assert_eq!(
            Inspection::new("x", ObjectKind::Absent).to_string(),
            "x: nothing: it is free, or no such name is in use"
        );
    }
}
