//! Stores made of several stores: a majority of servers, or a ring. No code here names a particular store.

pub(crate) mod redlock;
pub(crate) mod ring;
