//! The kinds of lock, and the requests about counts: semaphores, latches, conditions.

use std::time::Duration;

use crate::inspect::Mode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Reentrant, Redisson's `RLock`.
    Mutex,
    /// `Mutex` with a token for each grant: Redisson's `RFencedLock`.
    Fenced,
    /// Reentrant, granted in the order of requests, also between clients: Redisson's fair `RLock`.
    Fair,
    /// Held by many at a time: Redisson's `RReadWriteLock.readLock()`.
    Read,
    /// Held by one owner, while no other owner reads or writes.
    Write,
    /// One string key whose value is the owner; not reentrant.
    Token,
    /// Permits without owner and lease: Redisson's `RSemaphore`.
    Semaphore,
    /// Permits with ids and leases: Redisson's `RPermitExpirableSemaphore`.
    Permits,
    /// Granted to all while a count is zero: Redisson's `RCountDownLatch`.
    Latch,
    /// A condition: granted to notified waiters, in order.
    Signal,
}

/// Makes `Properties`, the constant `LOCK` with their defaults, and a method of `Kind` for each property.
macro_rules! properties {
    ($($(#[$about:meta])* $name:ident: $type:ty = $of_a_lock:expr;)+) => {
        struct Properties {
            $($name: $type,)+
        }

        const LOCK: Properties = Properties { $($name: $of_a_lock,)+ };

        impl Kind {
            $($(#[$about])* pub(crate) const fn $name(self) -> $type {
                self.properties().$name
            })+
        }
    };
}

properties! {
    /// Kinds of one family share their locks: the plain, the fenced and the fair lock `a` are one lock.
    family: Family = Family::Lock;
    is_shared: bool = false;
    is_leased: bool = true;
    /// Whether each attempt asks for a fencing token, even if the caller did not.
    is_fenced: bool = false;
    has_queue: bool = false;
    /// Whether a store needs only one record for this kind: owner, hold count, end, token.
    is_one_record: bool = false;
    /// Whether an attempt only reads, so that even a grant leaves nothing in the store.
    only_asks: bool = false;
    /// Whether all holders share one expiry in the store, which renewals by Redisson's readers may shorten.
    shares_its_end: bool = false;
    other_half: Option<Kind> = None;
}

const COUNTED: Properties = Properties { family: Family::Counted, is_shared: true, is_leased: false, ..LOCK };

impl Kind {
    pub(crate) const HELD: [Kind; 4] = [Kind::Mutex, Kind::Token, Kind::Write, Kind::Read];

    const fn properties(self) -> Properties {
        match self {
            Kind::Mutex => Properties { has_queue: true, is_one_record: true, ..LOCK },
            Kind::Fenced => Properties { is_fenced: true, has_queue: true, is_one_record: true, ..LOCK },
            Kind::Fair => LOCK,
            Kind::Read => Properties {
                family: Family::Read,
                is_shared: true,
                shares_its_end: true,
                other_half: Some(Kind::Write),
                ..LOCK
            },
            Kind::Write => Properties { family: Family::Write, other_half: Some(Kind::Read), ..LOCK },
            Kind::Token => Properties { family: Family::Token, is_one_record: true, ..LOCK },
            Kind::Permits => Properties { is_leased: true, ..COUNTED },
            Kind::Latch => Properties { only_asks: true, ..COUNTED },
            Kind::Semaphore | Kind::Signal => COUNTED,
        }
    }

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Kind::Mutex => "lock",
            Kind::Fenced => "fenced",
            Kind::Fair => "fair",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Token => "token",
            Kind::Semaphore => "semaphore",
            Kind::Permits => "permits",
            Kind::Latch => "latch",
            Kind::Signal => "condition",
        }
    }

    pub(crate) const fn is_token(self) -> bool {
        matches!(self.family(), Family::Token)
    }

    /// Whether the kind has no holder: semaphores, latches, conditions. Each waiter asks for itself.
    pub(crate) const fn is_counted(self) -> bool {
        matches!(self.family(), Family::Counted)
    }

    pub(crate) const fn has_permits(self) -> bool {
        matches!(self, Kind::Semaphore | Kind::Permits)
    }

    /// Whether the store has a queue of this kind's waiters, and grants strictly in the order of arrival.
    pub(crate) fn is_in_order(self) -> bool {
        matches!(self, Kind::Fair | Kind::Signal)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Lock,
    Read,
    Write,
    Token,
    Counted,
}

impl Family {
    pub(crate) const fn mode(self) -> Option<Mode> {
        match self {
            Family::Read => Some(Mode::Read),
            Family::Write => Some(Mode::Write),
            Family::Lock | Family::Token | Family::Counted => None,
        }
    }
}

/// A request about a count. Each change has a number of its own, the claim's owner number. By this number the
/// store recognizes a repeated [`is_remembered`](Self::is_remembered) change, for [`super::REQUEST_LASTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The count; `None`: never set up.
    Ask,
    AskOut,
    /// The number of permits, including those that are acquired; `None`: never set up.
    AskAll,
    /// Sets the count if it does not exist; returns 1, or 0 if it does. With a lease the count expires.
    SetUp {
        to: u32,
        lease: Option<Duration>,
    },
    /// Adds or subtracts; returns the new count.
    Add(i64),
    /// Adds if the count was set up; returns 1, or 0 if it was not.
    AddIfSetUp(i64),
    /// Sets the number of permits, including those that are acquired; returns how many are available.
    SetTo(u32),
    /// Acquires all available permits; returns how many.
    Drain,
    /// Subtracts one, unless the count is zero; returns the new count.
    CountDown,
    /// Releases a permit by its id, whoever has it; returns 1, or 0 if the permit is not acquired.
    GiveBack([u8; 16]),
    /// Releases permits by their ids, whoever has them; returns how many, or 0 if not all are acquired.
    GiveBackAll(Vec<[u8; 16]>),
    /// Sets the remaining lease of a permit; returns 1, or 0 if nobody has the permit.
    Lease([u8; 16], Duration),
    /// The remaining lease of a permit in milliseconds, -1 without end; `None`: nobody has the permit.
    AskLease([u8; 16]),
    /// Deletes all data of the name; returns 1, or 0 if there is none.
    Delete,
    /// Notifies the first waiter for a condition, or all; returns how many.
    Notify {
        all: bool,
    },
    Enlist,
    /// Tells the store that the client has read the answer to a change, so that the store may forget the
    /// change.
    Forget,
}

impl Counting {
    pub(crate) fn only_asks(&self) -> bool {
        use Counting::{Ask, AskAll, AskLease, AskOut};
        matches!(self, Ask | AskOut | AskAll | AskLease(_))
    }

    /// Whether the store remembers this change, to recognize a repetition.
    pub(crate) fn is_remembered(&self) -> bool {
        use Counting::{Add, AddIfSetUp, CountDown, Delete, Drain, SetTo, SetUp};
        matches!(self, SetUp { .. } | Add(_) | AddIfSetUp(_) | SetTo(_) | Drain | CountDown | Delete)
    }
}
