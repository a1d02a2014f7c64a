//! What is written once for every store: waiting, the local queue, holds, renewal, guards, and the lock types.

mod agenda;
pub(crate) mod calls;
pub(crate) mod condition;
mod due;
pub(crate) mod engine;
mod grant;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod hand;
pub(crate) mod hold;
pub(crate) mod interrupt;
pub(crate) mod latch;
mod levels;
pub(crate) mod member;
pub(crate) mod named;
pub(crate) mod options;
mod owned;
pub(crate) mod park;
pub(crate) mod queue;
pub(crate) mod reenter;
pub(crate) mod release;
pub(crate) mod report;
pub(crate) mod rw;
mod scoped;
pub(crate) mod semaphore;
pub(crate) mod store;
pub(crate) mod table;
pub(crate) mod terms;
mod timer;
pub(crate) mod together;
pub(crate) mod topic;
pub(crate) mod trouble;
pub(crate) mod verdict;
pub(crate) mod wait;
pub(crate) mod watchdog;

#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
