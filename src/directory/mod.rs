//! The directory: for each client that holds or waits, where it runs, and which of its threads hold and wait.
//!
//! A client's entry is a text of lines, and expires after the client's lease. The entry contains ages, not
//! clock readings. Readers compute the entry's own age: the lease less its remaining time.

pub(crate) mod lines;
pub(crate) mod run;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use self::lines::{Fields, Lines};
use crate::ident::{ClientId, MAX_NAME_LEN};
use crate::inspect::{Inspection, Location, Waiter};
use crate::system;
use crate::time::millis;

/// Maximum number of holds and waits in an entry.
pub(crate) const MOST_USES: usize = 64;

/// Maximum number of waits and holds in an entry beyond `MOST_USES`: those of threads that both hold and
/// wait, which the search for deadlocks needs.
pub(crate) const MAX_REPORTED: usize = 512;

/// Maximum number of bytes in all lock names of the waits and holds that `MAX_REPORTED` limits: two names of
/// the greatest length. An entry stays below ZooKeeper's megabyte even if each byte of a name is escaped.
pub(crate) const MAX_REPORTED_BYTES: usize = 2 * MAX_NAME_LEN;

/// Maximum number of items read from an entry, which any program may have written.
const MOST_READ: usize = MOST_USES + MAX_REPORTED;

/// The longest name in an entry, unless the search for deadlocks needs a longer one: 64 names of the greatest
/// length would have 4 MiB.
const LONGEST_KEY: usize = 256;

const LONGEST_TEXT: usize = 64;

/// A client of this crate that holds or waits for locks; an item of
/// [`LockClient::clients`](crate::LockClient::clients).
///
/// The client wrote this description of itself at most a third of its lease ago. Clients whose
/// [`directory`](crate::ClientBuilder::directory) is off write none.
///
/// # Examples
/// ```
/// for other in leasehold::LockClient::in_memory().clients() {
///     let other = other?;
///     println!("{} is {} in process {} on {}", other.id, other.program, other.pid, other.host);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClientInfo {
    /// The client's id, with which the ids of its owners begin.
    pub id: ClientId,
    /// The machine's name.
    pub host: String,
    /// The id of the machine's current boot; empty where the system has none.
    pub boot_id: String,
    /// The process id.
    pub pid: u32,
    /// When the process started, in ticks since the machine's start: distinguishes processes that had the
    /// same id. `None` where the system does not say.
    pub process_start: Option<u64>,
    /// The file name of the program.
    pub program: String,
    /// The text of [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub label: Option<String>,
    /// The version of this crate.
    pub version: String,
    /// How long ago the client was made; equal to `written_ago` if the entry does not say.
    pub age: Duration,
    /// How long ago the entry was written.
    pub written_ago: Duration,
    /// Whether this is the client that asked.
    pub by_this_client: bool,
    /// The client's holds and waits when it wrote the entry: up to 64, and those of threads that hold and wait.
    pub uses: Vec<LockUse>,
    /// Number of further locks that are held or waited for.
    pub unlisted: u64,
}

/// A hold or a wait of a client; see [`ClientInfo::uses`].
///
/// # Examples
/// ```
/// for other in leasehold::LockClient::in_memory().clients() {
///     for one in other?.uses {
///         println!("{} {} for {:?}", if one.is_waiting { "waits for" } else { "holds" }, one.name, one.lasted);
///     }
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockUse {
    /// The lock's name; its key, if that does not begin with the asking client's prefix.
    pub name: String,
    /// The owner number: the part of the owner's id after the colon.
    pub owner: u64,
    /// The thread's name; empty for an unnamed thread, and for a guard that may change threads.
    pub thread: String,
    /// For how long the owner has held the lock or waited for it.
    pub lasted: Duration,
    /// Whether the owner waits; otherwise it holds the lock.
    pub is_waiting: bool,
    /// Whether a leader holds the lock: [`LockClient::leader`](crate::LockClient::leader) or
    /// [`LockBuilder::election`](crate::LockBuilder::election).
    pub is_leader: bool,
    /// Whether the hold ends with its own lease, which is not renewed.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) ends: bool,
    /// How many more of the client's threads wait for this lock; stated in the lock's last listed wait.
    pub more_waiters: u64,
    /// The id of the thread that waits, or that alone can release the hold.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) by: Option<u64>,
    /// The id of the thread that acquired the hold, if any thread may release it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) taker: Option<u64>,
    /// Set if the search for deadlocks needs this wait: a long one, of a thread that holds something.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) published: Option<WaitRecord>,
}

/// The facts of a wait that the search for deadlocks needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WaitRecord {
    /// Unique among the client's waits.
    pub(crate) id: u64,
    /// When the wait began by its machine's wall clock, in milliseconds. Clients compare these times to
    /// choose one wait of a cycle. Clocks may differ, as long as all clients compare the same values.
    pub(crate) at_ms: u64,
    /// The kind of lock, as `Kind::label` returns it.
    pub(crate) kind: String,
    pub(crate) takes_again: bool,
    /// Whether this reader lets waiting writers go first.
    pub(crate) writers_first: bool,
}

pub(crate) fn host() -> String {
    shown(&system::host_name())
}

/// The program's file name, without path and arguments, which may be secret.
pub(crate) fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    shown(&path.file_name().unwrap_or(Path::new("").as_os_str()).to_string_lossy())
}

pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST_TEXT).collect()
}

impl ClientInfo {
    pub(crate) fn here(id: ClientId, label: Option<String>) -> ClientInfo {
        ClientInfo {
            id,
            host: host(),
            boot_id: shown(&system::boot_id().unwrap_or_default()),
            pid: std::process::id(),
            process_start: system::process_start(),
            program: program(),
            label,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            age: Duration::ZERO,
            written_ago: Duration::ZERO,
            by_this_client: true,
            uses: Vec::new(),
            unlisted: 0,
        }
    }

    pub(crate) fn written(&self, lease: Duration) -> String {
        let is_short = |one: &&LockUse| one.by.is_some() || one.name.len() <= LONGEST_KEY;
        let long = self.uses.iter().filter(|one| !is_short(one)).count();
        let mut lines = Lines::new();
        lines.text("host", &self.host);
        lines.text("boot", &self.boot_id);
        lines.text("program", &self.program);
        self.label.iter().for_each(|label| lines.text("label", label));
        lines.text("version", &self.version);
        lines.add("pid", self.pid);
        lines.known("start", self.process_start);
        lines.add("lease_ms", millis(lease));
        lines.add("age_ms", millis(self.age));
        lines.add("unlisted", self.unlisted.saturating_add(u64::try_from(long).unwrap_or(u64::MAX)));
        for one in self.uses.iter().filter(is_short) {
            lines.text("lock", &one.name);
            lines.text("thread", &one.thread);
            lines.add("owner", one.owner);
            lines.add("waits", one.is_waiting);
            lines.add("since_ms", millis(one.lasted));
            lines.mark("leads", one.is_leader);
            lines.mark("ends", one.ends);
            lines.known("more", Some(one.more_waiters).filter(|more| *more > 0));
            lines.known("by", one.by);
            // The thread that acquired a transferable guard is not written as `by`: older clients read `by`
            // as the only thread that can release, and would report false deadlocks.
            lines.known("taker", one.taker);
            if let Some(WaitRecord { id, at_ms, kind, takes_again, writers_first }) = &one.published {
                lines.add("wait", id);
                lines.add("at_ms", at_ms);
                lines.add("again", takes_again);
                lines.text("kind", kind);
                lines.mark("first", *writers_first);
            }
        }
        lines.into_text()
    }

    /// Reads an entry. `None` if it is not a client's.
    pub(crate) fn read(id: ClientId, text: &str, remaining: Duration) -> Option<ClientInfo> {
        let (entry, uses) = Fields::parted(text, "lock");
        let text = |from: Fields<'_>, name: &str| from.text(name).map(|text| shown(&text));
        let ms = |from: Fields<'_>, name: &str| from.number(name).map(Duration::from_millis);
        let written = ms(entry, "lease_ms")?.saturating_sub(remaining);
        let uses = uses.take(MOST_READ).filter_map(|one| {
            let published = one.number("wait").map(|id| WaitRecord {
                id,
                at_ms: one.number("at_ms").unwrap_or(0),
                kind: text(one, "kind").unwrap_or_default(),
                takes_again: one.is("again"),
                writers_first: one.is("first"),
            });
            Some(LockUse {
                name: one.text("lock")?,
                owner: one.number("owner")?,
                thread: text(one, "thread").unwrap_or_default(),
                lasted: ms(one, "since_ms")?.saturating_add(written),
                is_waiting: one.is("waits"),
                is_leader: one.is("leads"),
                ends: one.is("ends"),
                more_waiters: one.number("more").unwrap_or(0),
                by: one.number("by"),
                taker: one.number("taker"),
                published,
            })
        });
        Some(ClientInfo {
            id,
            host: text(entry, "host")?,
            boot_id: text(entry, "boot").unwrap_or_default(),
            pid: entry.number("pid").and_then(|pid| u32::try_from(pid).ok())?,
            process_start: entry.number("start"),
            program: text(entry, "program").unwrap_or_default(),
            label: text(entry, "label"),
            version: text(entry, "version").unwrap_or_default(),
            age: ms(entry, "age_ms").unwrap_or_default().saturating_add(written),
            written_ago: written,
            by_this_client: false,
            uses: uses.collect(),
            unlisted: entry.number("unlisted").unwrap_or(0),
        })
    }

    fn use_of(&self, key: &str, number: Option<u64>, waits: bool) -> Option<&LockUse> {
        let is_it = |one: &&LockUse| {
            one.name == key && one.is_waiting == waits && number.is_none_or(|number| one.owner == number)
        };
        self.uses.iter().filter(is_it).max_by_key(|one| one.lasted)
    }

    pub(crate) fn place_of(&self, used: Option<&LockUse>) -> Location {
        Location {
            host: self.host.clone(),
            pid: self.pid,
            thread: used.map(|one| one.thread.clone()).unwrap_or_default(),
            program: self.program.clone(),
            label: self.label.clone(),
        }
    }
}

/// Reads an owner, or the id of a client in a wait queue, which has no owner number.
fn owner(text: &str) -> Option<(ClientId, Option<u64>)> {
    match text.split_once(':') {
        Some((client, number)) => Some((ClientId::read(client)?, Some(number.parse().ok()?))),
        None => Some((ClientId::read(text)?, None)),
    }
}

/// The clients of all holders and waiters, each once, holders first.
pub(crate) fn clients_of(seen: &Inspection) -> Vec<ClientId> {
    let owners = seen.holders.iter().map(|one| &one.owner).chain(seen.waiters.iter().map(|one| &one.owner));
    let mut clients = Vec::new();
    for (client, _) in owners.filter_map(|text| owner(text)) {
        if !clients.contains(&client) {
            clients.push(client);
        }
    }
    clients
}

impl LockUse {
    pub(crate) fn new(name: &str, owner: u64, thread: &str, since: Duration) -> LockUse {
        LockUse {
            name: name.to_owned(),
            owner,
            thread: thread.to_owned(),
            lasted: since,
            ..LockUse::default()
        }
    }
}

pub(crate) fn locate(seen: &mut Inspection, key: &str, known: &HashMap<ClientId, Option<ClientInfo>>) {
    let found = |text: &str, waits: bool| {
        let (client, number) = owner(text)?;
        let info = known.get(&client)?.as_ref()?;
        let used = info.use_of(key, number, waits);
        Some((info.place_of(used), used))
    };
    for holder in &mut seen.holders {
        let Some((place, used)) = found(&holder.owner, false) else { continue };
        if let Some(used) = used {
            holder.is_leader = used.is_leader;
            holder.held_for = holder.held_for.or(Some(used.lasted));
            holder.ends_within = holder.ends_within.or(holder.remaining.filter(|_| used.ends));
        }
        match &mut holder.location {
            // The entry may be older than the lock's own data, so it adds only the program and the label.
            Some(published) => (published.program, published.label) = (place.program, place.label),
            none => *none = Some(place),
        }
    }
    for waiter in &mut seen.waiters {
        let Some((place, used)) = found(&waiter.owner, true) else { continue };
        waiter.waiting_for = waiter.waiting_for.or(used.map(|used| used.lasted));
        waiter.location = Some(place);
    }
}

pub(crate) fn waiters_of<'a>(client: &'a ClientInfo, key: &'a str) -> impl Iterator<Item = Waiter> + 'a {
    let waits = client.uses.iter().filter(move |one| one.is_waiting && one.name == key);
    waits.map(move |one| {
        let used = client.use_of(key, Some(one.owner), true);
        let (place, since) = (client.place_of(used), used.map(|used| used.lasted));
        let waiter = Waiter::new(format!("{}:{}", client.id, one.owner), None);
        let by_this_client = client.by_this_client;
        Waiter { by_this_client, waiting_for: since, location: Some(place), ..waiter }
    })
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} in process {}", self.id, self.host, self.pid)?;
        if !self.program.is_empty() {
            write!(f, ", {}", self.program)?;
        }
        self.label.as_ref().map_or(Ok(()), |label| write!(f, ", {label}"))
    }
}
