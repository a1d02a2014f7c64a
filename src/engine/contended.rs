//! Holds that hear of others who want their lock: `guard.on_contended` and `guard.is_contended`.
//!
//! Waiters of other clients send such a hold a recall, as they do where the hold is cached; a check once a second
//! finds those that send none, and has the next one send a recall. Waiters of this client are seen in the local
//! queue. The thread that releases cached holds looks, and the callback thread calls back.
//!
//! The mark by which a store sends recalls is about one owner. A request that sets the mark may be late, so the
//! hold's owner number is given up with the hold: a late request finds nobody.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::hearers::{EVERY, Hearer};
use crate::engine::hold::contention::OnContended;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::renewals::CHUNK;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::observe::LossReason;
use crate::seam::capabilities::{CachedCheck, HoldCaching};
use crate::seam::{Claim, Kind};
use crate::time::Moment;

impl Engine {
    pub(crate) fn can_hear(
        &self,
        action: &'static str,
        kind: Kind,
        name: &LockName,
    ) -> Result<&dyn HoldCaching> {
        let is_heard = matches!(kind, Kind::Mutex | Kind::Fenced | Kind::Fair | Kind::Read | Kind::Write);
        self.store.capabilities().hold_caching.filter(|_| is_heard).ok_or_else(|| {
            let words = "waiters are heard of by locks, fenced, fair and read-write locks on one Redis, with Sentinels or in a cluster, in a \
                         table of PostgreSQL, on etcd, on ZooKeeper and in memory: elsewhere a waiter cannot recall the lock";
            Error::new(ErrorKind::Unsupported, action, words).on(name.given())
        })
    }

    /// Has this hold hear of others, from now on.
    pub(crate) fn hear_contenders(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        callback: Option<OnContended>,
    ) -> Result<()> {
        let recalls = self.can_hear(action, hold.kind(), hold.name())?;
        let Some((_, waker)) = self.cache_thread() else {
            let words = "the system could not start a thread";
            return Err(Error::new(ErrorKind::Resource, action, words));
        };
        if !hold.contention.begin(callback) {
            hold.retire_owner_on_end();
            self.end_until_recall(hold);
            let recalls = recalls.hear(&hold.claim(), waker);
            self.hearers.add(Hearer::new(hold, recalls, self.clock.now()));
        }
        waker.wake();
        Ok(())
    }

    /// A hold ended by release, and another follows it for its guard.
    pub(crate) fn hand_contenders(&self, action: &'static str, ended: &Hold, next: &Arc<Hold>) {
        for callback in ended.contention.take() {
            // The store has had such a hold, so the next one is not refused but for want of memory.
            drop(self.hear_contenders(action, next, Some(callback)));
        }
    }

    /// Whether others wait for the lock of this hold, as far as is known without asking the store.
    pub(crate) fn is_contended(&self, action: &'static str, hold: &Arc<Hold>) -> Result<bool> {
        if !hold.contention.hears() {
            self.hear_contenders(action, hold, None)?;
        }
        Ok(hold.contention.is_wanted(self.clock.now()) || self.is_waited_for_here(hold))
    }
}

impl Core {
    /// A thread of this client begins to wait for a lock of this kind.
    pub(crate) fn note_waiter(&self, kind: Kind, local: &LocalLock) {
        if !self.hearers.is_any() {
            return;
        }
        let hears = |local: &LocalLock| local.state().holds.iter().any(|one| one.hold.contention.hears());
        let other = kind.other_half().and_then(|half| self.registry.found(half, &local.key.name));
        if (hears(local) || other.is_some_and(|other| hears(&other)))
            && let Some(Some((_, waker))) = self.cache_thread.service.get()
        {
            waker.wake();
        }
    }

    /// The client ends.
    pub(super) fn end_hearers(&self) {
        let all = std::mem::take(&mut *self.hearers.list.lock());
        self.hearers.let_go(all, &self.reporter);
    }

    /// Whether a thread of this client waits for the lock of this hold. Readers do not wait for readers.
    fn is_waited_for_here(&self, hold: &Hold) -> bool {
        let is_waited_for = |local: &LocalLock| !local.state().queue.is_empty();
        let other = hold.kind().other_half().and_then(|half| self.registry.found(half, hold.name()));
        other.is_some_and(|other| is_waited_for(&other))
            || hold.kind() != Kind::Read && is_waited_for(hold.local())
    }

    /// On the thread of cached holds: checks what is due, calls back, and returns when to look next.
    pub(super) fn watch_hearers(&self) -> Moment {
        if !self.hearers.is_any() {
            return Moment::NEVER;
        }
        let (mut hearers, now) = (std::mem::take(&mut *self.hearers.list.lock()), self.clock.now());
        let ended = hearers.extract_if(.., |hearer| !hearer.hold.stands(now)).collect();
        self.hearers.let_go(ended, &self.reporter);
        let mut due: Vec<&mut Hearer> = hearers.iter_mut().filter(|hearer| hearer.due() <= now).collect();
        due.chunks_mut(CHUNK).for_each(|due| self.check_hearers(due));
        let tell = |hearer: &mut Hearer| {
            let is_waited_for_here = self.is_waited_for_here(&hearer.hold);
            hearer.tell(is_waited_for_here, &self.reporter, &self.clock)
        };
        let next = hearers.iter_mut().map(tell).min().unwrap_or(Moment::NEVER);
        self.hearers.list.lock().append(&mut hearers);
        next
    }

    fn check_hearers(&self, hearers: &mut [&mut Hearer]) {
        let Some(recalls) = self.store.capabilities().hold_caching else { return };
        let (sent, limit) = (self.clock.now(), self.options.command_timeout.min(EVERY));
        hearers.iter_mut().for_each(|hearer| hearer.begin_check(sent));
        let claims: Vec<Claim> = hearers.iter().map(|hearer| hearer.hold.claim()).collect();
        for (hearer, answer) in hearers.iter_mut().zip(recalls.check_holds(&claims, sent.plus(limit))) {
            match answer {
                Ok(CachedCheck::Lost) => {
                    let hold = &hearer.hold;
                    if !hold.is_releasing() && hold.lose(LossReason::Gone, sent, &self.reporter) {
                        hold.local().nudge();
                    }
                }
                Ok(answer) => hearer.note(answer, self.clock.now()),
                Err(_) => {} // the next check asks again
            }
        }
    }
}
