//! One call to acquire a lock: the request of the caller, how long it waits, and its result.

use std::sync::Arc;

use crate::engine::acquire::lock_config::LockConfig;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::lock::Reuse;
use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::interrupt::Interrupt;
use crate::seam::Kind;
use crate::time::{Lease, Moment};

#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireCall<'a> {
    pub(crate) action: &'static str,
    pub(crate) kind: Kind,
    pub(crate) name: &'a Arc<LockName>,
    pub(crate) local: &'a Arc<LocalLock>,
    pub(crate) lease: Lease,
    pub(crate) limit: WaitLimit,
    pub(crate) interrupt: Option<&'a Interrupt>,
    pub(crate) config: LockConfig,
    pub(crate) units: u32,
    /// The owner number to wait under, if a place was already taken under it.
    pub(crate) number: Option<u64>,
    pub(crate) by_thread: bool,
}

impl<'a> AcquireCall<'a> {
    /// A guard's, for one, renewed, with nothing that ends the wait.
    pub(crate) fn new(
        action: &'static str,
        kind: Kind,
        (name, local): (&'a Arc<LockName>, &'a Arc<LocalLock>),
        limit: WaitLimit,
    ) -> AcquireCall<'a> {
        AcquireCall {
            action,
            kind,
            name,
            local,
            lease: Lease::Renewed,
            limit,
            interrupt: None,
            config: LockConfig::default(),
            units: 1,
            number: None,
            by_thread: false,
        }
    }

    /// Whether the hold may be cached for a time slice after its last level, and taken again by this call:
    /// the client renews it, and nothing tells its grants apart.
    pub(crate) fn may_cache_slice(&self) -> bool {
        let LockConfig { time_slices, fenced, max_hold, backoff, .. } = self.config;
        let is_plain = !fenced && max_hold.is_none() && backoff.is_none();
        let is_threads = self.by_thread && self.number.is_none();
        self.kind == Kind::Mutex && self.lease == Lease::Renewed && time_slices && is_plain && is_threads
    }

    pub(crate) fn caches(&self) -> bool {
        self.config.cached && self.by_thread && self.number.is_none() && self.lease == Lease::Renewed
    }

    pub(crate) fn may_use(&self, hold: &Hold, reuse: Reuse) -> bool {
        let is_meant = match reuse {
            // The plain and the fenced lock of a name are one.
            Reuse::UntilRecall => !self.wants_fence() || hold.fencing_token().is_some(),
            Reuse::ForTimeSlice => self.may_cache_slice(),
            Reuse::Never => false,
        };
        is_meant && hold.holder.is_this_task()
    }

    pub(crate) fn wants_fence(&self) -> bool {
        self.kind.is_fenced() || self.config.fenced
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    Once,
    Deadline(Moment),
}

impl WaitLimit {
    pub(crate) fn is_over(self, now: Moment) -> bool {
        match self {
            WaitLimit::Once => true,
            WaitLimit::Deadline(deadline) => now >= deadline,
        }
    }

    pub(crate) fn moment(self, now: Moment) -> Moment {
        match self {
            WaitLimit::Once => now,
            WaitLimit::Deadline(deadline) => deadline,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: u64,
}

pub(crate) fn interrupted(call: &AcquireCall<'_>) -> Error {
    Error::new(ErrorKind::Interrupted, call.action, "the wait was interrupted").on(call.name.given())
}
