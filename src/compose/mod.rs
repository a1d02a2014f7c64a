//! What is made of locks and of stores: elections, jobs that run once, writes that are fenced; a majority of servers, a
//! ring of servers. Nothing here knows a store by name.

pub mod fencing;
pub(crate) mod lazy;
pub(crate) mod leader;
pub(crate) mod multi;
pub(crate) mod redlock;
pub(crate) mod ring;
pub(crate) mod run_once;
