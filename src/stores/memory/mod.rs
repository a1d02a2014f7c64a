//! The reference store, in this process, for tests and examples.
//!
//! Clients share a `store`. Each client has an `access`, whose requests can be made to fail. `state` has the
//! data, `kinds` the kinds of lock. A *claim* names an owner, and the lock that it wants or holds.

mod access;
mod counted;
mod directory;
mod kinds;
mod lock;
mod state;
mod store;
mod wait_queue;

pub(crate) use access::MemoryAccess;
pub use store::{Fault, MemoryStore};

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
