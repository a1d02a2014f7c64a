//! The reference store: in this process, for tests and examples.
//!
//! Clients share a `store`, and each has an `access`; its faults make requests fail. `state` is the data, and
//! `kinds` has the kinds of lock on it.

mod access;
mod counted;
mod directory;
mod kinds;
mod line;
mod parties;
mod state;
mod store;

pub(crate) use access::MemoryAccess;
pub use store::{Fault, MemoryStore};

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
