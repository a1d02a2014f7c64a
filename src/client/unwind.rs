//! Which types may be used after a panic was caught (`catch_unwind`) that they were part of.
//!
//! All that are listed here. A panic of a program's own code never passes through code of this crate that has something half
//! done: observers, callbacks and name mappings are called where nothing is locked, and what they panic with is caught, or has
//! nothing changed yet. What a guard or a client is about is kept in the store, and behind locks of this crate's own. It has to
//! be said by hand, since the compiler sees only that there are locks.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::client::LockClient;
use crate::compose::leader::Leader;
use crate::compose::multi::MultiLock;
use crate::error::Error;
use crate::lock::condition::Condition;
use crate::lock::group::{MultiGuard, OwnedMultiGuard};
use crate::lock::guard::{Guard, OwnedGuard};
use crate::lock::interrupt::Interrupt;
use crate::lock::latch::CountDownLatch;
use crate::lock::named::{FencedLock, RedisLock};
use crate::lock::options::AcquireOptions;
use crate::lock::rw::ReadWriteLock;
use crate::lock::semaphore::{ExpirableSemaphore, Semaphore};
use crate::store::memory::MemoryStore;
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
    ReadWriteLock,
    RedisLock,
    Semaphore,
);
