#![forbid(unsafe_code)]
//! Distributed locks for threads.

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("leasehold runs on Linux and macOS only");

mod client;
mod compose;
mod config;
mod error;
mod hosts;
mod ident;
mod inspection;
mod lock;
mod observe;
mod room;
mod store;
mod sync;
mod time;
#[cfg(feature = "tls")]
mod tls;

pub use client::{ClientBuilder, LockClient};
pub use compose::fencing;
pub use compose::leader::{Leader, LeaderEvent};
pub use compose::multi::MultiLock;
pub use compose::ring::plan::{Ring, RingNode};
pub use config::{ClusterPubSub, RedlockNode};
pub use crossbeam_channel;
pub use error::{Error, ErrorKind, NotHeld, Result};
pub use ident::{ClientId, Fence, LONGEST_NAME, Owner};
pub use inspection::{Holder, Inspection, Mode, ObjectKind, PermitOut, Waiter, Whereabouts};
pub use lock::condition::Condition;
pub use lock::group::{MultiGuard, OwnedMultiGuard};
pub use lock::guard::{Guard, HoldState, OwnedGuard};
pub use lock::interrupt::Interrupt;
pub use lock::latch::CountDownLatch;
pub use lock::named::{FencedLock, Lock, RedisLock};
pub use lock::rw::ReadWriteLock;
pub use lock::semaphore::{ExpirableSemaphore, Permit, Semaphore};
pub use lock::terms::{Backoff, LockOptions};
pub use observe::{Loss, LossReason, Observer};
pub use store::memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use store::sql::mysql::in_transaction as mysql;
#[cfg(feature = "postgres")]
pub use store::sql::postgres::in_transaction as postgres;
pub use time::ManualClock;

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guarantees.md")]
    mod guarantees {}
    #[doc = include_str!("../docs/porting-from-redisson.md")]
    mod porting {}
    #[doc = include_str!("../docs/stores.md")]
    mod stores {}
    #[doc = include_str!("../docs/porting-from-curator.md")]
    mod porting_from_curator {}
}
