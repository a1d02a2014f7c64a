//! Identities: lock names, client ids, owners, fences.

pub(crate) mod derived;

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{thread, thread_local};

/// Maximum length of a lock's name after mapping, in bytes.
pub const MAX_NAME_LEN: usize = 64 * 1024;

/// A checked lock name: as given, and as the store's key. Names with equal keys are equal.
#[derive(Debug)]
pub(crate) struct LockName {
    given: Arc<str>,
    key: Box<str>,
}

impl PartialEq for LockName {
    fn eq(&self, other: &LockName) -> bool {
        self.key == other.key
    }
}

impl Eq for LockName {}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl LockName {
    fn of(given: Arc<str>, key: String) -> LockName {
        LockName { given, key: key.into_boxed_str() }
    }

    pub(crate) fn new(given: &Arc<str>, key: String) -> Result<LockName> {
        Error::require("lock", !given.is_empty() && !key.is_empty(), || "the name is empty")?;
        Error::require("lock", key.len() <= MAX_NAME_LEN, || {
            format!("the name has {} bytes: the most is {MAX_NAME_LEN}", key.len())
        })?;
        if let Some(such) = derived::reserved(&key) {
            let words = format!("the name is reserved: names that {such} belong to other locks");
            return Err(Error::invalid("lock", words));
        }
        Ok(LockName::of(Arc::clone(given), key))
    }

    pub(crate) fn keyed(&self, key: String) -> Result<LockName> {
        LockName::new(&self.given, key)
    }

    pub(crate) fn given(&self) -> &str {
        &self.given
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// A name for the crate's own use, which no lock can have.
    pub(crate) fn reserved(key: String) -> LockName {
        LockName::of(Arc::from(&*key), key)
    }
}

/// The random id of a client, with which the ids of its owners begin.
///
/// # Examples
/// ```
/// let client = leasehold::LockClient::in_memory();
/// assert_eq!(client.clone().id(), client.id()); // a clone is the same client
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(Uuid);

impl ClientId {
    /// A random UUID of version 8, which tells others that this client's releases notify the wait queue (see
    /// `wait_queue.lua`). Redisson's ids, and those of older versions of this crate, have version 4.
    pub(crate) fn random() -> ClientId {
        ClientId(Uuid::new_v4()).of_version(8)
    }

    /// The id in version 4, which tells others that this client's releases notify no wait queue.
    pub(crate) fn without_queue(self) -> ClientId {
        self.of_version(4)
    }

    /// Reads an id of either version; returns version 8, under which the directory has the client.
    pub(crate) fn read(text: &str) -> Option<ClientId> {
        let id = Uuid::try_parse(text).ok().filter(|_| text.len() == 36)?;
        Some(ClientId(id).of_version(8))
    }

    /// The id of a directory record that belongs to no client: FNV-1a of `parts`, so equal in all processes.
    pub(crate) fn of_text(parts: &[&str]) -> ClientId {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let bytes = parts.iter().flat_map(|part| part.bytes());
        let hash = bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
        ClientId(Uuid::from_u128(hash)).of_version(8)
    }

    fn of_version(self, version: u8) -> ClientId {
        let mut bytes = self.0.into_bytes();
        bytes[6] = bytes[6] & 0x0f | version << 4;
        ClientId(Uuid::from_bytes(bytes))
    }

    pub(crate) fn as_u128(self) -> u128 {
        self.0.as_u128()
    }
}

impl ClientId {
    pub(crate) fn text(self) -> [u8; 36] {
        let mut text = [0; 36];
        self.0.as_hyphenated().encode_lower(&mut text);
        text
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0.as_hyphenated(), f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for ClientId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The owner of a hold, written `uuid:number` in the store, as Redisson does: the client and an owner number.
///
/// The crate counts owner numbers itself, since the system reuses thread ids. A thread takes another number
/// when a late request under the old one could still reach the server and affect the thread's next hold.
///
/// # Examples
/// ```
/// use leasehold::LockClient;
///
/// let client = LockClient::in_memory();
/// let owner = client.get_lock("stock:42").acquire()?.owner();
/// assert_eq!(owner.to_string(), format!("{}:{}", client.id(), owner.number()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    client: ClientId,
    number: u64,
}

impl Owner {
    pub(crate) fn new(client: ClientId, number: u64) -> Owner {
        Owner { client, number }
    }

    pub(crate) fn read(text: &str) -> Option<Owner> {
        let (client, number) = text.split_once(':')?;
        Some(Owner { client: ClientId::read(client)?, number: number.parse().ok()? })
    }

    /// Sixteen bytes for this owner's permit `index`: six of the client's id, six of the number, and `index`.
    pub(crate) fn permit(self, index: u32) -> [u8; 16] {
        let mut id = *self.client.0.as_bytes();
        let number = self.number.to_be_bytes();
        let index = index.to_be_bytes();
        for (place, byte) in id.iter_mut().skip(6).zip(number.into_iter().skip(2).chain(index)) {
            *place = byte;
        }
        id
    }

    /// Whether the text is an owner as this crate and Redisson write it: a UUID, a colon and a number. Other
    /// text may be another program's secret, so it is not shown. (`owners.lua` has the same rule.)
    pub(crate) fn is_one(text: &str) -> bool {
        text.rsplit_once(':').is_some_and(|(client, number)| {
            let digits = number.strip_prefix('-').unwrap_or(number);
            ClientId::read(client).is_some()
                && !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    }

    /// The client's id: the part before the colon. It is a UUID of version 8, or of version 4 if the client has
    /// no right to the wait queue.
    #[must_use]
    pub fn client(self) -> ClientId {
        self.client
    }

    /// The owner number, after the colon.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

/// A number that grows with each grant of a lock. Send the token with each write, so that the resource can
/// refuse a smaller token; see [fencing](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/fencing.md).
///
/// # Examples
/// ```
/// let token = leasehold::LockClient::in_memory().get_fenced_lock("ledger").lock_and_get_token()?;
/// println!("UPDATE ledger SET …, fence = {token} WHERE fence <= {}", token.get());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn new(token: u64) -> FencingToken {
        FencingToken(token)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The owner number that no owner has.
pub(crate) const NOBODY: u64 = 0;

/// The identity of a thread, in its thread-local storage: a `Weak` to it shows when the thread has ended.
#[derive(Debug)]
pub(crate) struct ThreadMarker {
    id: u64,
    number: AtomicU64,
    /// The thread's name, for messages; read once.
    name: Box<str>,
}

impl ThreadMarker {
    fn new() -> ThreadMarker {
        let number = unbound_number();
        // `ID` has no destructor, so it outlives the thread-local that keeps the marker. A later marker of
        // the same thread gets the same id, to which the thread's holds belong.
        thread_local! {
            static ID: Cell<u64> = Cell::default();
        }
        let id = ID.try_with(|id| match id.get() {
            0 => {
                id.set(number);
                number
            }
            id => id,
        });
        ThreadMarker { id: id.unwrap_or(number), number: AtomicU64::new(number), name: thread_name() }
    }

    /// The calling thread's marker, or a temporary one while thread-local storage is destroyed: a lock
    /// acquired then is the thread's, but is not renewed.
    pub(crate) fn current() -> Arc<ThreadMarker> {
        thread_local! {
            static MARK: Arc<ThreadMarker> = Arc::new(ThreadMarker::new());
        }
        MARK.try_with(Arc::clone).unwrap_or_else(|_ending| Arc::new(ThreadMarker::new()))
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Gives this thread's next holds another number, since a request under `number` may still arrive.
    /// Existing holds keep theirs. Does nothing if the number has changed already.
    #[expect(clippy::let_underscore_must_use, reason = "failing means that the thread has moved on already")]
    pub(crate) fn retire(&self, number: u64) {
        let _ = self.number.compare_exchange(number, unbound_number(), Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The thread's name without control characters (databases refuse a NUL), cut to 64 characters.
pub(crate) fn thread_name() -> Box<str> {
    let thread = thread::current();
    thread.name().unwrap_or_default().chars().filter(|c| !c.is_control()).take(64).collect()
}

/// A new owner number, for a thread or for an owner that is no thread.
pub(crate) fn unbound_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(NOBODY + 1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn owner_numbers_are_not_reused_after_threads_end() {
        let mut seen = HashSet::new();
        for _ in 0..64 {
            let batch: Vec<_> = (0..16)
                .map(|_| std::thread::Builder::new().spawn(|| ThreadMarker::current().number()))
                .collect();
            for thread in batch {
                assert!(seen.insert(thread.unwrap().join().unwrap()));
            }
        }
    }

    /// Not on Windows, which destroys thread-locals in another order, the marker last.
    #[cfg(unix)]
    #[test]
    fn a_thread_keeps_its_id_during_thread_local_destructors() {
        use std::sync::mpsc::{Sender, channel};
        struct Asks(Sender<(u64, u64)>);
        impl Drop for Asks {
            fn drop(&mut self) {
                (0..2).for_each(|_| {
                    let mark = ThreadMarker::current();
                    self.0.send((mark.id(), mark.number())).unwrap();
                });
            }
        }
        std::thread_local! {
            static LAST: std::cell::RefCell<Option<Asks>> = const { std::cell::RefCell::new(None) };
        }
        let (sender, asked) = channel();
        let thread = std::thread::Builder::new().spawn(move || {
            // The thread-local made last is destroyed first: the marker before `LAST`, so `Asks::drop` finds none.
            LAST.with(|last| *last.borrow_mut() = Some(Asks(sender)));
            ThreadMarker::current().id()
        });
        let id = thread.unwrap().join().unwrap();
        let asked: Vec<_> = asked.iter().collect();
        assert_eq!(asked.iter().map(|(asked, _)| *asked).collect::<Vec<_>>(), [id, id]);
        // Each call of `current` made a marker of its own, with a number of its own.
        assert_ne!(asked[0].1, asked[1].1);
    }

    #[test]
    fn retiring_an_owner_number_twice_gives_one_new_number() {
        let mark = ThreadMarker::new();
        let (id, old) = (mark.id(), mark.number());
        mark.retire(old);
        let new = mark.number();
        assert_ne!(old, new);
        mark.retire(old);
        assert_eq!(mark.number(), new);
        assert_eq!(mark.id(), id);
    }

    #[test]
    fn empty_overlong_and_reserved_names_are_refused() {
        let check = |name: &str| LockName::new(&Arc::from(name), name.to_owned());
        assert!(check("orders").is_ok());
        assert!(check(" ").is_ok());
        assert!(check(&"x".repeat(MAX_NAME_LEN)).is_ok());
        assert!(check(&"x".repeat(MAX_NAME_LEN + 1)).is_err());
        assert!(check("").is_err());
        assert!(check("redisson_lock_token:{a}").is_err());
    }

    #[test]
    fn only_a_uuid_with_a_number_is_an_owner() {
        let owner = Owner::new(ClientId::random(), 7);
        let text = owner.to_string();
        assert!(Owner::is_one(&text) && Owner::is_one(&text.replace(":7", ":-7")));
        for other in [
            "",
            ":",
            "item:1",
            "Bearer abc",
            &text[..36],
            &text[1..],
            &format!("{text}x"),
            &text.replace(":7", ":"),
        ] {
            assert!(!Owner::is_one(other), "{other}");
        }
        let (uuid, number) = text.split_once(':').unwrap();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid, uuid.to_lowercase());
        assert_eq!(number, "7");
    }
}
