//! The types that users touch: locks and guards, permits, latches, conditions, multi-locks, elections.

pub(crate) mod acquire;
pub(crate) mod condition;
pub(crate) mod counted;
pub mod fencing;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod leader;
pub(crate) mod multi;
pub(crate) mod named;
pub(crate) mod options;
pub(crate) mod run_once;
