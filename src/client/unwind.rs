//! Types that may be used after a caught panic (`catch_unwind`). Observers, callbacks and name mappings run
//! where nothing is locked or half done, and their panics are caught, so no panic leaves a guard or a client
//! inconsistent. The compiler cannot see this through the locks inside.

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
