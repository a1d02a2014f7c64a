//! The types that users touch: locks and their guards, permits, latches, conditions, several locks as one, elections.

pub(crate) mod condition;
pub mod fencing;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod latch;
pub(crate) mod leader;
pub(crate) mod lock_options;
pub(crate) mod multi;
pub(crate) mod named;
pub(crate) mod options;
mod owned;
pub(crate) mod run_once;
pub(crate) mod rw;
mod scoped;
pub(crate) mod semaphore;
