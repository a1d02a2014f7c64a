//! Holds that learn of waiters: `guard.on_contended` and `guard.is_contended`. Such a hold is said to *hear*.
//!
//! A *recall* is a waiter's message that asks a holder for the lock. A mark in the store, which names an
//! owner, makes the next waiter of another client send one. Once a second the cache thread checks such a hold
//! (`lock/hearing.rs`): it sets the mark, and finds waiters that send no recalls, such as Redisson's. Waiters
//! of this client are in the local queue. The callback thread calls back.
//!
//! The mark may be set late, so the owner number is retired with the hold: then a late mark names no hold.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::hold::{Hold, Listener, LocalLock, OnContended};
use crate::engine::lock::Hears;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::inspect::Mode;
use crate::seam::capabilities::HoldCaching;
use crate::seam::{Family, Kind};
use crate::sync::atomic::Ordering;

impl Engine {
    pub(crate) fn can_hear(
        &self,
        action: &'static str,
        kind: Kind,
        name: &LockName,
    ) -> Result<&dyn HoldCaching> {
        let is_heard = matches!(kind, Kind::Mutex | Kind::Fenced | Kind::Fair | Kind::Read | Kind::Write);
        self.store.capabilities.hold_caching.as_deref().filter(|_| is_heard).ok_or_else(|| {
            let words = "on_contended and is_contended work for plain, fenced, fair and read-write locks on one Redis, with Sentinels or in a cluster, in a \
                         table of PostgreSQL, on etcd, on ZooKeeper and in memory: elsewhere a waiter cannot recall the lock";
            Error::new(ErrorKind::Unsupported, action, words).on(name.given())
        })
    }

    pub(crate) fn hear_contenders(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        callback: Option<OnContended>,
    ) -> Result<()> {
        let recalls = self.can_hear(action, hold.kind(), hold.name())?;
        let no_thread = || Error::new(ErrorKind::Resource, action, "the system could not start a thread");
        let (_, waker) = self.cache_thread().ok_or_else(no_thread)?;
        callback
            .into_iter()
            .for_each(|callback| hold.listen(Listener::OnContended(callback), &self.reporter));
        if !hold.hears.swap(true, Ordering::SeqCst) {
            hold.retire_owner_on_end();
            let now = self.clock.now();
            // `hears` is set before `listen`, or `LocalLock::watch` would end the subscription as unneeded.
            hold.with(|own| (own.recallable, own.hears) = (None, Some(Box::new(Hears::new(now)))));
            hold.local.listen(false, || recalls.hear(&hold.claim(), waker));
            self.core.cache_thread.watch(&hold.local, now);
        }
        waker.wake();
        Ok(())
    }

    /// Moves the listeners of the `ended` hold, which its guard released, to the `next` hold of the same
    /// guard.
    pub(crate) fn hand_listeners(&self, action: &'static str, ended: &Hold, next: &Arc<Hold>) {
        for listener in ended.listeners.end() {
            match listener {
                // An error is unlikely: the store accepted `on_contended` for the guard's previous hold.
                Listener::OnContended(callback) => {
                    drop(self.hear_contenders(action, next, Some(callback)));
                }
                other => next.listen(other, &self.reporter),
            }
        }
    }

    /// Whether anyone waits for the lock, as far as known. The first call for a hold makes the hold *hear*.
    pub(crate) fn is_contended(&self, action: &'static str, hold: &Arc<Hold>) -> Result<bool> {
        if !hold.hears() {
            self.hear_contenders(action, hold, None)?;
        }
        let now = self.clock.now();
        let is_wanted = hold.with(|own| own.hears.as_ref().is_some_and(|hears| hears.is_wanted(now)));
        Ok(is_wanted || self.is_waited_for_here(&hold.local))
    }
}

impl Core {
    pub(crate) fn note_waiter(&self, local: &LocalLock) {
        if let Some(Some((_, waker))) = self.cache_thread.service.get()
            && (local.hears() || self.other_half(local).is_some_and(|other| other.hears()))
        {
            waker.wake();
        }
    }

    fn other_half(&self, local: &LocalLock) -> Option<Arc<LocalLock>> {
        let half = if local.key.family.mode()? == Mode::Read { Kind::Write } else { Kind::Read };
        self.registry.found(half, &local.key.name)
    }

    /// Whether a thread of this client waits for the lock. Waiting readers do not count for a reader's hold.
    pub(super) fn is_waited_for_here(&self, local: &LocalLock) -> bool {
        let is_waited_for = |local: &LocalLock| !local.state().queue.tickets.is_empty();
        self.other_half(local).is_some_and(|other| is_waited_for(&other))
            || local.key.family != Family::Read && is_waited_for(local)
    }
}
