//! Stores made of stores: a majority of servers, a ring of servers. Nothing here knows a store by name.

pub(crate) mod redlock;
pub(crate) mod ring;
#[cfg(all(test, not(leasehold_shuttle)))]
mod tests;
