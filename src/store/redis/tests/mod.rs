//! The store against real servers, and against bad ones.

mod cluster;
mod fake;
mod harness;
mod hub;
mod kinds;
mod permits;
mod rights;
mod scripts;
mod several;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod wire;
