//! What is written once for every store: waiting, the local queue, holds, renewal, guards, and the lock types.

pub(crate) mod interrupt;
pub(crate) mod park;
pub(crate) mod report;
pub(crate) mod store;
pub(crate) mod topic;
