//! One Redis (or Valkey) server.
use crate::{
    config::RedisOptions,
    error::{Error, ErrorKind, Result},
    lock::report::Reporter,
};
use std::sync::Arc;
pub(crate) type RedisStore = RedisStoreStub;
pub(crate) use super::memory::MemoryAccess as RedisStoreStub;
impl RedisStoreStub {
    pub(crate) fn connect(_: &RedisOptions, _: Arc<Reporter>) -> Result<RedisStoreStub> {
        Err(Error::new(ErrorKind::Unsupported, "connect", "x"))
    }
}
