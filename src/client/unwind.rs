//! Types that may be used after a panic was caught (`catch_unwind`) that they were part of.
//!
//! All that are listed here. A panic of a program's own code never passes through code of this crate that has
//! something half done: observers, callbacks and name mappings are called where nothing is locked, and what
//! they panic with is caught, or has nothing changed yet. The state of a guard or a client is in the store,
//! and behind locks of this crate's own. It has to be said by hand, since the compiler sees only that there
//! are locks.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::client::LockClient;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::locks::condition::Condition;
use crate::locks::expirable::ExpirableSemaphore;
use crate::locks::fenced::FencedLock;
use crate::locks::group::{MultiGuard, OwnedMultiGuard};
use crate::locks::guard::{Guard, OwnedGuard, Permit};
use crate::locks::latch::CountDownLatch;
use crate::locks::leader::Leader;
use crate::locks::multi::MultiLock;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::locks::rw::ReadWriteLock;
use crate::locks::semaphore::Semaphore;
use crate::stores::memory::MemoryStore;
use crate::time::ManualClock;

macro_rules! unwind_safe {
    ($($name:ty),+ $(,)?) => {
        $(
            impl UnwindSafe for $name {}
            impl RefUnwindSafe for $name {}
        )+
    };
}

unwind_safe!(
    AcquireOptions,
    Condition,
    CountDownLatch,
    Error,
    ExpirableSemaphore,
    FencedLock,
    Guard,
    Interrupt,
    Leader,
    LockClient,
    ManualClock,
    MemoryStore,
    MultiGuard,
    MultiLock,
    OwnedGuard,
    OwnedMultiGuard,
    Permit,
    ReadWriteLock,
    RedisLock,
    Semaphore,
);
