//! A request that was sent, and whose reply is read later.

use std::sync::Arc;

use crate::ident::LockName;
use crate::seam::{Answer, Pending, named};
use crate::stores::redis::conn::connections::Started;

/// A request that was sent, and what its reply means.
pub(super) struct Underway<F> {
    pub(super) started: Started,
    pub(super) read: F,
    pub(super) action: &'static str,
    pub(super) name: Arc<LockName>,
}

impl<T, F> Pending<T> for Underway<F>
where
    F: FnOnce(redis::Value) -> Answer<T> + Send,
{
    fn wait(self: Box<Self>) -> Answer<T> {
        named(self.started.wait().and_then(self.read), self.action, self.name.given())
    }
}
