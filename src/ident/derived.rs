//! The keys that are derived from a name: Redisson's keys and channels, and ours beside them.
//!
//! All derived keys are in this list. A lock's name must not look like one of them: the key could be another
//! lock's queue or counter. A name without braces cannot be mistaken for a key that ends in a suffix.

/// The lock that a health check asks about. Nobody takes it.
pub(crate) const PING: &str = "leasehold_ping";

/// How a name becomes the key of something that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// This, and the name in braces.
    Before(&'static str),
    /// The name in braces, and this.
    Behind(&'static str),
    /// The name in braces, an owner, this, and a number.
    Numbered(&'static str),
    /// This, for all names.
    Whole(&'static str),
}

/// One list for the enum and for `ALL`, so that neither lacks a part.
macro_rules! parts {
    ($($(#[$about:meta])* $part:ident = $form:expr,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Part {
            $($(#[$about])* $part,)*
        }

        impl Part {
            pub(crate) const ALL: &'static [Part] = &[$(Part::$part,)*];

            const fn form(self) -> Form {
                use Form::{Before, Behind, Numbered, Whole};
                match self {
                    $(Part::$part => $form,)*
                }
            }
        }
    };
}

parts! {
    /// The channel of a lock's waiters; before 2.7.0 Redisson put two underlines where the colon is.
    LockChannel = Before("redisson_lock__channel"),
    FenceCounter = Before("redisson_lock_token:"),
    /// The owners that wait for a fair lock, in order.
    FairQueue = Before("redisson_lock_queue:"),
    /// Until when each of them counts as alive for Redisson.
    FairTimeouts = Before("redisson_lock_timeout:"),
    /// Until when those of them that are ours do.
    FairHeartbeats = Before("leasehold_lock_heartbeat:"),
    /// The clients that wait for a lock, first come first.
    LockLine = Before("leasehold_lock_line:"),
    /// The client for which a free lock is kept.
    LockNext = Before("leasehold_lock_next:"),
    /// The channels of a lock's line: this, a colon and a client each.
    LockWake = Before("leasehold_wake:"),
    /// The result of a release of Redisson's.
    UnlockLatch = Before("redisson_unlock_latch:"),
    RwChannel = Before("redisson_rwlock:"),
    /// A read hold that is alive.
    RwMarker = Numbered(":rwlock_timeout:"),
    /// The writers that wait for a read-write lock and are to come before readers.
    RwWaiting = Before("leasehold_rwlock_waiting:"),
    /// The holders of a read-write lock that hear of others who wait for it.
    RwHearers = Before("leasehold_rwlock_hearers:"),
    PermitsChannel = Before("redisson_sc:"),
    /// The permits of an expirable semaphore that are out.
    PermitsOut = Behind(":timeout"),
    LatchChannel = Before("redisson_countdownlatch__channel__"),
    /// The result of a request that must not be carried out twice.
    Request = Before("leasehold_request:"),
    ConditionQueue = Before("leasehold_condition_queue:"),
    /// Until when each waiter counts as alive.
    ConditionHeartbeats = Before("leasehold_condition_heartbeat:"),
    /// The waiters that were notified and have not noticed.
    ConditionNotified = Before("leasehold_condition_notified:"),
    ConditionChannel = Before("leasehold_condition_channel:"),
    /// A client's entry in the directory.
    ClientEntry = Before("leasehold_client:"),
    /// The mark of a ring's node.
    RingMark = Whole("leasehold_ring_epoch"),
}

impl Part {
    /// The text before or behind a name, or between its owner and a number.
    pub(crate) const fn text(self) -> &'static str {
        match self.form() {
            Form::Before(text) | Form::Behind(text) | Form::Numbered(text) | Form::Whole(text) => text,
        }
    }

    /// Says what is wrong with `key` as a name, if it is, or might be, what this part of some name is called.
    fn claims(self, key: &str) -> Option<String> {
        let text = self.text();
        match self.form() {
            Form::Before(_) if key.starts_with(text) => Some(format!("start with {text:?}")),
            Form::Behind(_) if key.strip_suffix(text).is_some_and(is_tagged) => {
                Some(format!("have braces and end with {text:?}"))
            }
            Form::Numbered(_) => {
                let (front, number) = key.rsplit_once(text)?;
                let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
                (is_tagged(front) && is_number)
                    .then(|| format!("have braces and end with {text:?} and a number"))
            }
            Form::Whole(_) if key == text => Some(format!("are {text:?}")),
            _ => None,
        }
    }
}

/// The form of names of that key, if it may belong to another name.
pub(super) fn reserved(key: &str) -> Option<String> {
    Part::ALL.iter().find_map(|part| part.claims(key))
}

/// Redisson's rule is "contains a brace", not "has a valid hash tag".
fn is_tagged(name: &str) -> bool {
    name.contains('{')
}

/// The name as a part of derived keys. In a cluster they must share the lock's slot: the name in braces,
/// unless it brings braces of its own.
pub(crate) fn in_braces(name: &str) -> [&str; 3] {
    if is_tagged(name) { ["", name, ""] } else { ["{", name, "}"] }
}
