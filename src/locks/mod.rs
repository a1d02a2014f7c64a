//! The types that users touch: locks and guards, permits, latches, conditions, multi-locks, elections.

mod acquire;
pub(crate) mod condition;
mod counted;
pub(crate) mod expirable;
pub(crate) mod fenced;
pub mod fencing;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod latch;
pub(crate) mod leader;
pub(crate) mod lock;
pub(crate) mod lock_builder;
pub(crate) mod multi;
pub(crate) mod named;
pub(crate) mod options;
pub(crate) mod run_once;
pub(crate) mod rw;
pub(crate) mod semaphore;
