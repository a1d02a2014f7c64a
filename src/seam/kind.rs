//! The kinds of lock that a store may be asked for.

/// The kinds of lock a store may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Reentrant, Redisson's `RLock`.
    Mutex,
    /// The same lock, each new grant with a fence: Redisson's `RFencedLock`.
    Fenced,
    /// Reentrant, and granted in the order in which it was asked for, across clients: Redisson's fair `RLock`.
    Fair,
    /// The half of a read-write lock that many may hold at a time: Redisson's `RReadWriteLock.readLock()`.
    Read,
    /// The half that one may hold, while nobody else holds either.
    Write,
    /// One string key with a token; not reentrant.
    Token,
    /// Permits that nobody owns and that never end: Redisson's `RSemaphore`.
    Semaphore,
    /// Permits with ids and leases: Redisson's `RPermitExpirableSemaphore`.
    Permits,
    /// Granted to everybody while a count is zero: Redisson's `RCountDownLatch`.
    Latch,
    /// Granted to those who wait for a condition and are notified, in order.
    Signal,
}

impl Kind {
    /// Whether it is the lock by token.
    pub(crate) fn is_token(self) -> bool {
        self == Kind::Token
    }

    /// The kinds of one name that are one lock: a thread that holds the one holds the other.
    pub(crate) fn family(self) -> Family {
        match self {
            Kind::Mutex | Kind::Fenced | Kind::Fair => Family::Lock,
            Kind::Read => Family::Read,
            Kind::Write => Family::Write,
            Kind::Token => Family::Token,
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => Family::Counted,
        }
    }

    /// Whether several owners may hold it at a time.
    pub(crate) fn is_shared(self) -> bool {
        self == Kind::Read || self.family() == Family::Counted
    }

    /// Whether those who wait want different things, so that each asks for itself: what the first must wait for may be
    /// there for the second.
    pub(crate) fn is_counted(self) -> bool {
        self.family() == Family::Counted
    }

    /// Whether what is granted ends with a lease.
    pub(crate) fn is_leased(self) -> bool {
        !matches!(self, Kind::Semaphore | Kind::Latch | Kind::Signal)
    }

    /// Whether a thread may be given it by the one that lets go of it.
    pub(crate) fn is_handed_off(self) -> bool {
        matches!(self, Kind::Mutex | Kind::Fenced)
    }
}

/// Kinds that are the same lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Lock,
    Read,
    Write,
    Token,
    /// No thread holds these.
    Counted,
}
