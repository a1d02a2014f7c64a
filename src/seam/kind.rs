//! The kinds of lock that a store may be asked for.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Reentrant, Redisson's `RLock`.
    Mutex,
    /// The same lock, with a token for each grant: Redisson's `RFencedLock`.
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

/// How kinds differ, as far as the engine and several stores need.
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
    is_rationed: bool,
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
    is_rationed: false,
};

/// A number, or a notification, without a holder.
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
            Kind::Write => {
                Properties { family: Family::Write, other_half: Some(Kind::Read), is_rationed: true, ..LOCK }
            }
            Kind::Token => Properties { family: Family::Token, is_one_record: true, ..LOCK },
            Kind::Permits => Properties { is_leased: true, is_rationed: true, ..COUNTED },
            Kind::Latch => Properties { only_asks: true, ..COUNTED },
            Kind::Semaphore => Properties { is_rationed: true, ..COUNTED },
            Kind::Signal => COUNTED,
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

    /// Kinds of one family and name are one lock: a thread that holds the one holds the other.
    pub(crate) const fn family(self) -> Family {
        self.properties().family
    }

    pub(crate) const fn is_shared(self) -> bool {
        self.properties().is_shared
    }

    /// Whether waiters want different things, so that each asks for itself.
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

    /// Whether a releasing thread may pass it on to another.
    pub(crate) const fn is_handed_off(self) -> bool {
        self.properties().is_handed_off
    }

    /// Whether owner, hold count, end and token are all that a store keeps: no queue, no second holder, no
    /// number.
    pub(crate) const fn is_one_record(self) -> bool {
        self.properties().is_one_record
    }

    /// Whether a store may keep a queue of waiting clients.
    pub(crate) const fn has_line(self) -> bool {
        self.properties().is_handed_off
    }

    /// Whether a release notifies all waiters although only some can get in: then waiters whose attempts fail
    /// ask less often.
    pub(crate) const fn is_rationed(self) -> bool {
        self.properties().is_rationed
    }

    /// Whether an attempt leaves nothing in the store, granted or not.
    pub(crate) const fn only_asks(self) -> bool {
        self.properties().only_asks
    }

    /// Whether its end in the store is shared with other holders, whose renewals may bring it forward.
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
