#![forbid(unsafe_code)]
//! Distributed locks for threads.

mod client;
mod config;
mod error;
mod ident;
mod lock;
mod observe;
mod store;
mod sync;
mod time;

pub use client::{ClientBuilder, LockClient};
pub use crossbeam_channel;
pub use error::{Error, ErrorKind, NotHeld, Result};
pub use ident::{ClientId, Fence, LONGEST_NAME, Owner};
pub use lock::guard::{Guard, HoldState, OwnedGuard};
pub use lock::interrupt::Interrupt;
pub use lock::named::{FencedLock, Lock, NamedLock, RedisLock};
pub use observe::{Loss, LossReason, Observer};
pub use store::memory::MemoryStore;
pub use time::ManualClock;

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guarantees.md")]
    mod guarantees {}
    #[doc = include_str!("../docs/porting-from-redisson.md")]
    mod porting {}
}
