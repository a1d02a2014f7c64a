//! Connections to one server: `connections` chooses one for a request, many threads use the `shared` one.

pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod handshake;
pub(crate) mod ledger;
pub(crate) mod replies;
pub(crate) mod shared;

#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;
