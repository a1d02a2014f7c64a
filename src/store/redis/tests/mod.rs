//! The store against real servers, and against bad ones.

mod fake;
mod harness;
mod hub;
mod rights;
mod scripts;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod wire;
