//! The kinds of lock, and the questions about and changes of counts: semaphores, latches, conditions.

use std::time::Duration;

use crate::inspect::Mode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Reentrant, Redisson's `RLock`.
    Mutex,
    /// `Mutex` with a token for each grant: Redisson's `RFencedLock`.
    Fenced,
    /// Reentrant, granted in the order of requests, across clients: Redisson's fair `RLock`.
    Fair,
    /// Held by many at a time: Redisson's `RReadWriteLock.readLock()`.
    Read,
    /// Held by one, while no other holds either half.
    Write,
    /// One string key with a token; not reentrant.
    Token,
    /// Permits without owner or end: Redisson's `RSemaphore`.
    Semaphore,
    /// Permits with ids and leases: Redisson's `RPermitExpirableSemaphore`.
    Permits,
    /// Granted to all while a count is zero: Redisson's `RCountDownLatch`.
    Latch,
    /// Granted to notified waiters for a condition, in order.
    Signal,
}

struct Properties {
    family: Family,
    is_shared: bool,
    is_leased: bool,
    is_fenced: bool,
    is_handed_off: bool,
    is_one_record: bool,
    only_asks: bool,
    shares_its_end: bool,
    other_half: Option<Kind>,
}

const LOCK: Properties = Properties {
    family: Family::Lock,
    is_shared: false,
    is_leased: true,
    is_fenced: false,
    is_handed_off: false,
    is_one_record: false,
    only_asks: false,
    shares_its_end: false,
    other_half: None,
};

/// Kinds without a holder: a number, or a notification.
const COUNTED: Properties = Properties { family: Family::Counted, is_shared: true, is_leased: false, ..LOCK };

impl Kind {
    pub(crate) const HELD: [Kind; 4] = [Kind::Mutex, Kind::Token, Kind::Write, Kind::Read];

    const fn properties(self) -> Properties {
        match self {
            Kind::Mutex => Properties { is_handed_off: true, is_one_record: true, ..LOCK },
            Kind::Fenced => Properties { is_fenced: true, is_handed_off: true, is_one_record: true, ..LOCK },
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
        matches!(self.properties().family, Family::Token)
    }

    /// Kinds of one family and name are one lock: a thread that holds one holds the other.
    pub(crate) const fn family(self) -> Family {
        self.properties().family
    }

    pub(crate) const fn is_shared(self) -> bool {
        self.properties().is_shared
    }

    /// Whether waiters may want different numbers of permits, so that each must ask for itself.
    pub(crate) const fn is_counted(self) -> bool {
        matches!(self.properties().family, Family::Counted)
    }

    pub(crate) const fn is_leased(self) -> bool {
        self.properties().is_leased
    }

    /// Whether each grant carries a fencing token, asked for or not.
    pub(crate) const fn is_fenced(self) -> bool {
        self.properties().is_fenced
    }

    pub(crate) const fn is_handed_off(self) -> bool {
        self.properties().is_handed_off
    }

    /// Whether owner, hold count, end and token are all that a store keeps.
    pub(crate) const fn is_one_record(self) -> bool {
        self.properties().is_one_record
    }

    pub(crate) const fn has_queue(self) -> bool {
        self.properties().is_handed_off
    }

    pub(crate) const fn has_permits(self) -> bool {
        matches!(self, Kind::Semaphore | Kind::Permits)
    }

    /// Whether an attempt leaves nothing in the store, even if granted.
    pub(crate) const fn only_asks(self) -> bool {
        self.properties().only_asks
    }

    /// Whether waiters stand in a queue of the store and are granted in the order of arrival.
    pub(crate) fn is_in_order(self) -> bool {
        matches!(self, Kind::Fair | Kind::Signal)
    }

    /// Whether holders share one end in the store, which another holder's renewal may bring forward.
    pub(crate) const fn shares_its_end(self) -> bool {
        self.properties().shares_its_end
    }

    pub(crate) const fn other_half(self) -> Option<Kind> {
        self.properties().other_half
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

/// A question about a count, or a change of it. Each change has its own owner number, by which the store
/// knows a repeated change for [`REQUEST_LASTS`](super::REQUEST_LASTS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The count; `None`: never set up.
    Ask,
    AskOut,
    /// How many permits there are, out or not; `None`: never set up.
    AskAll,
    /// Sets the count if there is none; returns 1, else 0. With a lease the count expires.
    SetUp {
        to: u32,
        lease: Option<Duration>,
    },
    /// Adds or subtracts; returns the new count.
    Add(i64),
    /// Adds if the count was set up; returns 1, else 0.
    AddIfSetUp(i64),
    /// Sets the number of permits, including those that are out; returns how many are left.
    SetTo(u32),
    /// Acquires all; returns how many there were.
    Drain,
    /// Counts down; returns how many are left. No effect at zero.
    CountDown,
    /// Releases a permit by its id, whoever has it; returns 1, or 0 if the permit is not out.
    GiveBack([u8; 16]),
    /// Releases permits by their ids, whoever has them; returns how many, or 0 if not all are out.
    GiveBackAll(Vec<[u8; 16]>),
    /// Sets the lease of a permit from now on; returns 1, or 0 if the permit is not out.
    Lease([u8; 16], Duration),
    /// The rest of a permit's lease in milliseconds, -1 without end; `None`: the permit is not out.
    AskLease([u8; 16]),
    /// Deletes all data of the name; returns 1, or 0 if there is none.
    Delete,
    /// Notifies the first waiter for a condition, or all; returns how many.
    Notify {
        all: bool,
    },
    Enlist,
    /// The change under this claim was answered, and the store may forget it. No answer is read.
    Forget,
}

impl Counting {
    pub(crate) fn only_asks(&self) -> bool {
        use Counting::{Ask, AskAll, AskLease, AskOut};
        matches!(self, Ask | AskOut | AskAll | AskLease(_))
    }

    /// Whether the store remembers this change, so that it is not made twice.
    pub(crate) fn is_remembered(&self) -> bool {
        use Counting::{Add, AddIfSetUp, CountDown, Delete, Drain, SetTo, SetUp};
        matches!(self, SetUp { .. } | Add(_) | AddIfSetUp(_) | SetTo(_) | Drain | CountDown | Delete)
    }
}
