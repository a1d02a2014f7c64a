#![forbid(unsafe_code)]
//! Distributed locks for threads.

mod client;
mod config;
mod error;
mod ident;
mod lock;
mod observe;
mod store;
mod time;

pub use error::{Error, ErrorKind, NotHeld, Result};
pub use ident::{ClientId, Fence, LONGEST_NAME, Owner};
pub use observe::{Loss, LossReason, Observer};
pub use time::ManualClock;
