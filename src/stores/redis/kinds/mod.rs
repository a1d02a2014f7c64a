//! The kinds of lock on Redis, each in a module: its requests, and what their replies mean.

pub(crate) mod condition;
pub(crate) mod fair;
pub(crate) mod mutex;
pub(crate) mod rw;
pub(crate) mod semaphore;
pub(crate) mod token;
