//! The store against real servers, and against bad ones.

mod fake;
mod harness;
mod hub;
mod rights;
mod scripts;
mod token;
mod wire;
