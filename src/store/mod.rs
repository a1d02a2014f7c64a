//! Where locks are kept.

pub(crate) mod memory;
pub(crate) mod redis;
