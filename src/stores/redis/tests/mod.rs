//! The store against real servers and misbehaving ones.

mod cluster;
mod connections;
mod fake;
mod given_up;
mod harness;
mod hearing;
mod kinds;
#[cfg(leasehold_fuzz)]
pub(super) mod made_up;
mod permits;
mod replicas;
mod rights;
mod ring;
mod scripts;
mod several;
mod subscriber;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod turns;
mod wait_queue;
