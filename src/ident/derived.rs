//! The keys derived from a name: Redisson's keys and channels, and ours beside them.
//!
//! [`Part`] lists them all. A lock's name must not look like a derived key, which could be another lock's
//! queue or counter. A derived key with a suffix has braces, so no name without braces looks like such a key.

/// The lock that a health check asks about; never held.
pub(crate) const PING: &str = "leasehold_ping";

/// How a derived key contains the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// This text, and the name in braces.
    Before(&'static str),
    /// The name in braces, and this text.
    Behind(&'static str),
    /// The name in braces, an owner, this text, and a number.
    Numbered(&'static str),
    /// This text, for all names.
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
    /// The channel of a lock's waiters, without its colon, so that names like the channels of Redisson before
    /// 2.7.0, which have two underscores in its place, are refused too.
    LockChannel = Before("redisson_lock__channel"),
    FenceCounter = Before("redisson_lock_token:"),
    /// The owners waiting for a fair lock, in order.
    FairQueue = Before("redisson_lock_queue:"),
    /// Until when Redisson counts each owner in `FairQueue` as alive.
    FairTimeouts = Before("redisson_lock_timeout:"),
    /// Until when each of this crate's owners in `FairQueue` counts as alive.
    FairHeartbeats = Before("leasehold_lock_heartbeat:"),
    /// The wait queue of clients.
    LockQueue = Before("leasehold_lock_queue:"),
    /// The client for which a free lock is reserved.
    LockNext = Before("leasehold_lock_next:"),
    /// The channels of a lock's wait queue: this key, a colon and a client's id.
    LockWake = Before("leasehold_wake:"),
    /// The result of a release, as Redisson keeps it for a repeated request.
    UnlockLatch = Before("redisson_unlock_latch:"),
    RwChannel = Before("redisson_rwlock:"),
    /// A key for each level of a read hold (each acquisition of a reader), which expires with its lease.
    RwMarker = Numbered(":rwlock_timeout:"),
    /// The waiting writers of a read-write lock that go before readers.
    RwWaiting = Before("leasehold_rwlock_waiting:"),
    /// The readers that wait for a read-write lock, and when the last write ended.
    RwReaders = Before("leasehold_rwlock_readers:"),
    /// The holders of a read-write lock to which waiters send recalls.
    RwHearers = Before("leasehold_rwlock_hearers:"),
    PermitsChannel = Before("redisson_sc:"),
    /// The acquired permits of an expirable semaphore.
    PermitsOut = Behind(":timeout"),
    LatchChannel = Before("redisson_countdownlatch__channel__"),
    /// The record of a request that must take effect only once, however often it is sent.
    Request = Before("leasehold_request:"),
    ConditionQueue = Before("leasehold_condition_queue:"),
    /// Until when each waiter for a condition counts as alive.
    ConditionHeartbeats = Before("leasehold_condition_heartbeat:"),
    /// The waiters that were notified and have sent no request since.
    ConditionNotified = Before("leasehold_condition_notified:"),
    ConditionChannel = Before("leasehold_condition_channel:"),
    ClientEntry = Before("leasehold_client:"),
    /// The version of the ring that a node last accepted.
    RingMark = Whole("leasehold_ring_epoch"),
}

impl Part {
    /// The text before or after a name, or between owner and number.
    pub(crate) const fn text(self) -> &'static str {
        match self.form() {
            Form::Before(text) | Form::Behind(text) | Form::Numbered(text) | Form::Whole(text) => text,
        }
    }

    /// If `key` looks like a key that this part makes of a name, returns the form of such keys for the error,
    /// such as "start with …".
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

pub(super) fn reserved(key: &str) -> Option<String> {
    Part::ALL.iter().find_map(|part| part.claims(key))
}

/// Redisson's rule is "contains a brace", not "has a valid hash tag".
fn is_tagged(name: &str) -> bool {
    name.contains('{')
}

/// The name within derived keys: in braces unless it contains one, so that these keys have the lock's slot.
pub(crate) fn in_braces(name: &str) -> [&str; 3] {
    if is_tagged(name) { ["", name, ""] } else { ["{", name, "}"] }
}
