//! The reference store: in this process, for tests and examples.
//!
//! Clients share a `store`, and each has an `access`; `faults` makes requests fail. `state` is the data, and
//! each module of `kinds` implements one kind of lock on it.

mod access;
mod counted;
mod directory;
mod fault;
mod faults;
mod held;
mod kinds;
mod parties;
mod shown;
mod state;
mod store;

pub(crate) use access::MemoryAccess;
pub use fault::Fault;
pub use store::MemoryStore;
