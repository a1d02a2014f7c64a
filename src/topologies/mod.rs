//! Stores that are made of stores: a majority of servers, a ring of servers, a store that connects at its
//! first use. Nothing here knows a store by name.

pub(crate) mod lazy;
pub(crate) mod redlock;
pub(crate) mod ring;
