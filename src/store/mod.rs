//! Where locks are kept.

pub(crate) mod redis;
