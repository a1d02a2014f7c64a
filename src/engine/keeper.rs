//! The thread that gives back what is kept: see `release/keep.rs`.

use std::sync::Arc;

use crate::engine::hold::LockEntry;
use crate::park::Service;
use crate::sync::{Mutex, OnceLock, Waker};

/// The thread that gives back kept holds, once there was one, and the locks it looks at.
#[derive(Default)]
pub(crate) struct Keeper {
    /// `None` inside: it could not be started, so nothing is kept.
    pub(crate) service: OnceLock<Option<(Arc<Service>, Waker)>>,
    pub(crate) locks: Mutex<Vec<Arc<LockEntry>>>,
}

impl Keeper {
    pub(crate) fn stop(&self) {
        if let Some(Some((service, _))) = self.service.get() {
            service.stop();
        }
    }
}
