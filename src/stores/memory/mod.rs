//! The reference store: in this process, for tests, examples, and users' own unit tests.
//!
//! `store` is shared by its clients, each of which has an `access`; `faults` has its requests fail. `state`
//! is what is kept, and each module in `kinds` what a kind of lock does with it.

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
