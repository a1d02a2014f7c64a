//! Lists of locks and of clients, page by page.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::client::LockClient;
use crate::config::debug_fields;
use crate::deadlock::Deadlock;
use crate::directory::ClientInfo;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::ClientId;
use crate::inspect::{Holder, Inspection, ObjectKind};
use crate::seam::Failure;
use crate::seam::directory::{Page, Place, Wanted};

/// A held lock: an item of [`LockClient::list`].
///
/// # Examples
/// ```
/// for lock in leasehold::LockClient::in_memory().list("stock:*") {
///     let lock = lock?;
///     println!("{} is {}, held by {}", lock.name, lock.kind, lock.holders[0]);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ListedLock {
    /// The key without the client's prefix.
    pub name: String,
    /// The kind, as [`Inspection::kind`](crate::Inspection::kind).
    pub kind: ObjectKind,
    /// The lock's holders; empty for a semaphore, which has none.
    pub holders: Vec<Holder>,
    /// Time until the lock ends unless renewed: `Duration::MAX` if it has no end, `None` if not known.
    pub remaining: Option<Duration>,
    /// The number of waiters, as far as the store shows it.
    pub waiting: u64,
}

/// The cost of a list so far: see [`Locks::cost`] and [`Clients::cost`].
///
/// # Examples
/// ```
/// let mut locks = leasehold::LockClient::in_memory().list("*");
/// let count = locks.by_ref().count();
/// println!("{count} locks among {} keys, by {} requests", locks.cost().keys, locks.cost().requests);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListCost {
    /// The number of requests sent.
    pub requests: u64,
    /// The number of keys or rows read, locks or not; on Redis those whose names match the pattern.
    pub keys: u64,
}

/// The held locks: see [`LockClient::list`].
///
/// # Examples
/// ```
/// let names = leasehold::LockClient::in_memory().list("stock:*").map(|lock| Ok(lock?.name));
/// let names: Vec<String> = names.collect::<leasehold::Result<_>>()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "nothing is asked before the first item is wanted"]
pub struct Locks {
    list: List<ListedLock>,
    wanted: Wanted,
    known: HashMap<ClientId, Option<ClientInfo>>,
}

/// The clients that hold or wait: see [`LockClient::clients`].
///
/// # Examples
/// ```
/// for other in leasehold::LockClient::in_memory().clients() {
///     println!("{}", other?);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "nothing is asked before the first item is wanted"]
pub struct Clients {
    list: List<ClientInfo>,
}

struct List<T> {
    engine: Arc<Engine>,
    page: VecDeque<T>,
    /// The place in the store where the next page begins; `None` after the last page.
    next: Option<Place>,
    cost: ListCost,
}

const MOST_KNOWN: usize = 10_000;

impl LockClient {
    /// Lists the held locks, ours and Redisson's, whose names match `pattern`: `*` stands for any text, `?`
    /// for a character, `[ab]` and `[a-c]` for one of those, `\` escapes the next character.
    ///
    /// For operators: on Redis SCAN reads each key of the server; [`Locks::cost`] counts those that
    /// match. On ZooKeeper a pattern that begins with a slash, such as `/jobs/*`, lists the locks in that
    /// folder; any other, the locks whose names are no paths.
    ///
    /// Names are the keys without the client's [prefix](crate::ClientBuilder::key_prefix); the pattern
    /// applies to names that [`map_names`](crate::ClientBuilder::map_names) made. Free locks are not listed;
    /// a semaphore is listed while permits with leases are out. On Redis only locks whose owners are a UUID
    /// and a number are listed: another program's token lock looks like a cache entry.
    ///
    /// # Blocking
    /// When the first item of a page of some hundred keys is needed. On Redis, in memory and in databases up
    /// to one command time-out for the page; on etcd, ZooKeeper and a Redlock for each lock in it. Redis is
    /// asked by SCAN, so that it serves others between pages.
    ///
    /// # Errors
    /// As the last item: the store, or too many servers of a Redlock, could not be used; the user lacks a
    /// permission (`SCAN`, and those of [`inspect`](Self::inspect)). Of kind
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for session locks, and on a Redlock of
    /// which too many servers [map names](crate::RedlockNode::map_names).
    ///
    /// # Guarantees
    /// A lock that is held all the time is listed once, or twice while the server resizes its table. A lock
    /// that is acquired or released meanwhile may be missing. Each item was true at one moment.
    pub fn list(&self, pattern: impl AsRef<str>) -> Locks {
        let prefix = self.engine.options.key_prefix.clone();
        let wanted = Wanted { prefix, pattern: pattern.as_ref().to_owned() };
        Locks { list: List::new(&self.engine), wanted, known: HashMap::new() }
    }

    /// Lists the clients that hold or wait for locks on this store, by their [directory entries](ClientInfo).
    ///
    /// The list lacks Redisson's clients, and clients that began a moment ago, have their
    /// [directory](crate::ClientBuilder::directory) off or lack the permission. A dead client is listed for
    /// up to its lease.
    ///
    /// # Errors
    /// As [`list`](Self::list). Of kind [`Unsupported`](crate::ErrorKind::Unsupported) too if a database
    /// lacks the table of entries.
    ///
    /// # Guarantees
    /// An entry is up to a third of its client's lease old. Anyone who may write to the store can forge one.
    pub fn clients(&self) -> Clients {
        Clients { list: List::new(&self.engine) }
    }

    /// Looks for threads of all clients on this store that wait for each other in a cycle. See [`Deadlock`].
    ///
    /// A wait counts from [`detect_deadlocks_after`](crate::ClientBuilder::detect_deadlocks_after) on, if its
    /// thread holds a lock. The search considers plain, fenced, fair and token locks, both halves of
    /// read-write locks, and all of these in multi-locks. It does not consider permits, which have no single
    /// holder; or a thread that holds by one client and waits by another. Of a guard that may change threads,
    /// it considers the thread that acquired; such a cycle [may be no deadlock](Deadlock::is_certain).
    /// Without a [directory](crate::ClientBuilder::directory) it considers this client's threads only.
    ///
    /// # Blocking
    /// Up to one command time-out for each request: one for each page of entries, and two for each lock and
    /// each client on the way from a wait to its holders. A cycle is read again after a second.
    ///
    /// # Errors
    /// The store could not be used, or the user lacks the permissions of [`inspect`](Self::inspect) and
    /// [`clients`](Self::clients).
    ///
    /// # Guarantees
    /// Each cycle was read twice, one second apart, with the same waits and the same holders, so it existed
    /// at a moment between. A client that died or is cut off counts until its last entry ends.
    pub fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.engine.deadlocks()
    }
}

impl<T> List<T> {
    fn new(engine: &Arc<Engine>) -> List<T> {
        List {
            engine: Arc::clone(engine),
            page: VecDeque::new(),
            next: Some(Place::default()),
            cost: ListCost::default(),
        }
    }

    fn next(&mut self, mut ask: impl FnMut(&Engine, &Place) -> Result<Page<T>>) -> Option<Result<T>> {
        loop {
            if let Some(item) = self.page.pop_front() {
                return Some(Ok(item));
            }
            match self.turn_page(&mut ask)? {
                Ok(found) => self.page = found.into(),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn turn_page(&mut self, ask: impl FnOnce(&Engine, &Place) -> Result<Page<T>>) -> Option<Result<Vec<T>>> {
        let place = self.next.take()?;
        Some(ask(&self.engine, &place).map(|page| {
            self.next = page.next;
            self.cost.requests += page.requests;
            self.cost.keys += page.examined;
            page.found
        }))
    }
}

fn unsupported(action: &'static str) -> Error {
    let words = "this store cannot list what it keeps; inspect() shows a lock by its name";
    Error::new(ErrorKind::Unsupported, action, words)
}

impl Locks {
    /// Returns the locks of the next page, or the rest of a begun one, perhaps none; `None` after the last
    /// page. For a caller that shows the progress of a long list by [`cost`](Self::cost).
    ///
    /// # Errors
    /// As [`LockClient::list`]; nothing follows an error.
    pub fn next_page(&mut self) -> Option<Result<Vec<ListedLock>>> {
        if !self.list.page.is_empty() {
            return Some(Ok(std::mem::take(&mut self.list.page).into()));
        }
        let (wanted, known) = (&self.wanted, &mut self.known);
        self.list.turn_page(|engine, place| locks_page(engine, wanted, known, place))
    }

    /// The requests sent and the keys read so far.
    #[must_use]
    pub fn cost(&self) -> ListCost {
        self.list.cost
    }
}

impl Iterator for Locks {
    type Item = Result<ListedLock>;

    fn next(&mut self) -> Option<Result<ListedLock>> {
        let (wanted, known) = (&self.wanted, &mut self.known);
        self.list.next(|engine, place| locks_page(engine, wanted, known, place))
    }
}

fn locks_page(
    engine: &Engine,
    wanted: &Wanted,
    known: &mut HashMap<ClientId, Option<ClientInfo>>,
    place: &Place,
) -> Result<Page<ListedLock>> {
    engine.usable("list")?;
    let directory = engine.store.capabilities.directory.as_deref().ok_or_else(|| unsupported("list"))?;
    let page = directory.locks(wanted, place, engine.one_command()).map_err(Failure::into_read_error);
    let Page { found, next, requests, examined } = page.map_err(|error| error.during("list"))?;
    let is_held = |seen: &Inspection| seen.is_held() || seen.kind == ObjectKind::ExpirableSemaphore;
    let shown = found.into_iter().filter(is_held).map(|seen| {
        // `locate` needs the key with its prefix, because directory entries name a lock in this way.
        (format!("{}{}", wanted.prefix, seen.name), seen.seen_by(engine.id))
    });
    let mut shown: Vec<(String, Inspection)> = shown.collect();
    if known.len() > MOST_KNOWN {
        known.clear();
    }
    let requests = requests + engine.locate(&mut shown, known);
    let found = shown.into_iter().map(|(_, seen)| ListedLock {
        name: seen.name,
        kind: seen.kind,
        holders: seen.holders,
        remaining: seen.remaining,
        waiting: seen.waiting,
    });
    Ok(Page { found: found.collect(), next, requests, examined })
}

impl Clients {
    /// The requests sent and the keys read so far.
    #[must_use]
    pub fn cost(&self) -> ListCost {
        self.list.cost
    }
}

impl Iterator for Clients {
    type Item = Result<ClientInfo>;

    fn next(&mut self) -> Option<Result<ClientInfo>> {
        self.list.next(|engine, place| {
            engine.usable("clients")?;
            let directory =
                engine.store.capabilities.directory.as_deref().ok_or_else(|| unsupported("clients"))?;
            let page = directory.clients(place, engine.one_command()).map_err(Failure::into_read_error);
            let Page { found, next, requests, examined } = page.map_err(|error| error.during("clients"))?;
            let prefix = &engine.options.key_prefix;
            let read = found.into_iter().filter_map(|(id, posted)| {
                let mut info = ClientInfo::read(id, &posted.text, posted.remaining)?;
                info.by_this_client = id == engine.id;
                for one in &mut info.uses {
                    if let Some(name) = one.name.strip_prefix(&**prefix) {
                        one.name = name.to_owned();
                    }
                }
                Some(info)
            });
            Ok(Page { found: read.collect(), next, requests, examined })
        })
    }
}

debug_fields!(Locks, |it| wanted: it.wanted);

debug_fields!(Clients, |it| cost: it.list.cost);
