//! Stores made of several stores: Redlock, which needs a majority of its servers, and the ring, which spreads
//! names over servers.

pub(crate) mod redlock;
pub(crate) mod ring;
