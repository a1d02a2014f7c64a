//! Holds that hear of others who want their lock: `guard.on_contended` and `guard.is_contended`.
//!
//! Waiters of other clients send such a hold a recall, as they do where the hold is cached; a check once a second
//! finds those that send none, and has the next one send a recall. Waiters of this client are seen in the local
//! queue. The thread that releases cached holds looks, and the callback thread calls back.
//!
//! The mark by which a store sends recalls is about one owner. A request that sets the mark may be late, so the
//! hold's owner number is given up with the hold: a late request finds nobody.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::renewals::CHUNK;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::LossReason;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::CachedCheck;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Kind};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Clock, Moment};

/// Between two checks of a hold, and between two calls of its callbacks.
const EVERY: Duration = Duration::from_secs(1);

/// A message has a hold checked sooner, this long after its last check. ZooKeeper also sends one for each reader
/// that comes to other readers.
const APART: Duration = Duration::from_millis(50);

/// Other clients count as waiting for this long after their last sign: a waiter's pause between two requests, and
/// the time until the next check.
const COUNTS_FOR: Duration = Duration::from_millis(2_500);

pub(crate) type OnContended = Arc<dyn Fn() + Send + Sync>;

/// A hold's part of this.
#[derive(Default)]
pub(crate) struct Contention {
    /// Others are to send the hold recalls, so the store may have more of the hold than its owner.
    hears: AtomicBool,
    /// Until when other clients count as waiting, as `Moment::nanos`.
    until: AtomicU64,
    callbacks: Mutex<Vec<OnContended>>,
}

impl Contention {
    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    fn note_wanted(&self, now: Moment) {
        self.until.store(now.plus(COUNTS_FOR).nanos(), Ordering::SeqCst);
    }

    fn is_wanted(&self, now: Moment) -> bool {
        now.nanos() < self.until.load(Ordering::SeqCst)
    }

    fn take(&self) -> Vec<OnContended> {
        std::mem::take(&mut *self.callbacks.lock())
    }

    /// Drops callbacks where they would have run: they may own the client.
    pub(crate) fn forget(&self, reporter: &Reporter) {
        let callbacks = self.take();
        if !callbacks.is_empty() {
            reporter.run_later(move || drop(callbacks));
        }
    }
}

/// The holds of a client that hear of others.
#[derive(Default)]
pub(crate) struct Hearers {
    list: Mutex<Vec<Hearer>>,
    /// How many there are, in the list or taken out of it for a look.
    count: AtomicU64,
}

impl Hearers {
    fn add(&self, hearer: Hearer) {
        // Counted first, looked at second. Pairs with `Core::note_waiter`.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.list.lock().push(hearer);
    }

    fn is_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    fn let_go(&self, ended: Vec<Hearer>, reporter: &Reporter) {
        for Hearer { hold, .. } in ended {
            self.count.fetch_sub(1, Ordering::SeqCst);
            if !hold.keeps_listeners() {
                hold.contention.forget(reporter);
            }
        }
    }
}

struct Hearer {
    hold: Arc<Hold>,
    recalls: Option<Subscription>,
    /// The messages that had come before the last check.
    heard: u64,
    since: Moment,
    last_check: Option<Moment>,
    /// The store was asked to have recalls sent.
    is_marked: bool,
    /// There was a sign of other clients since the last call.
    is_wanted: bool,
    called: Option<Moment>,
    is_calling: Arc<AtomicBool>,
}

impl Hearer {
    fn count(&self) -> u64 {
        self.recalls.as_ref().map(Subscription::message_count).unwrap_or_default()
    }

    /// First when recalls can be heard, so that none is missed. Not before the next call may be made: a crowd
    /// sends many messages.
    fn due(&self) -> Moment {
        let Some(last) = self.last_check else {
            let is_heard = |recalls: &Subscription| recalls.is_up() || recalls.is_refused();
            let is_ready = self.recalls.as_ref().is_none_or(is_heard);
            return if is_ready { self.since } else { self.since.plus(EVERY) };
        };
        let latest = last.plus(EVERY);
        if self.heard == self.count() { latest } else { latest.min(last.plus(APART).max(self.next_call())) }
    }

    fn next_call(&self) -> Moment {
        self.called.map_or(Moment::from_nanos(0), |called| called.plus(EVERY))
    }

    fn note(&mut self, answer: CachedCheck, now: Moment) {
        // The first check sets the mark; later a mark that is gone was taken by a recall.
        if answer == CachedCheck::Wanted || answer == CachedCheck::Unmarked && self.is_marked {
            self.hold.contention.note_wanted(now);
            self.is_wanted = true;
        }
        self.is_marked = true;
    }
}

fn stands(hold: &Hold, now: Moment) -> bool {
    !hold.is_releasing() && hold.loss_at(now).is_none()
}

impl Engine {
    /// Has this hold hear of others, from now on.
    pub(crate) fn hear_contenders(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        callback: Option<OnContended>,
    ) -> Result<()> {
        let is_heard =
            matches!(hold.kind(), Kind::Mutex | Kind::Fenced | Kind::Fair | Kind::Read | Kind::Write);
        let Some(recalls) = self.store.capabilities().hold_caching.filter(|_| is_heard) else {
            let words = "waiters are heard of by locks, fenced, fair and read-write locks on one Redis, with Sentinels or in a cluster, in a \
                         table of PostgreSQL, on etcd, on ZooKeeper and in memory: elsewhere a waiter cannot recall the lock";
            return Err(Error::new(ErrorKind::Unsupported, action, words).on(hold.name().given()));
        };
        let Some((_, waker)) = self.cache_thread() else {
            let words = "the system could not start a thread";
            return Err(Error::new(ErrorKind::Resource, action, words));
        };
        hold.contention.callbacks.lock().extend(callback);
        if !hold.contention.hears.swap(true, Ordering::SeqCst) {
            hold.retire_owner_on_end();
            self.end_until_recall(hold);
            let recalls = recalls.hear(&hold.claim(), waker);
            self.hearers.add(Hearer {
                hold: Arc::clone(hold),
                recalls,
                heard: 0,
                since: self.clock.now(),
                last_check: None,
                is_marked: false,
                is_wanted: false,
                called: None,
                is_calling: Arc::default(),
            });
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
    /// A thread of this client begins to wait.
    pub(crate) fn note_waiter(&self) {
        if self.hearers.is_any()
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
        let ended = hearers.extract_if(.., |hearer| !stands(&hearer.hold, now)).collect();
        self.hearers.let_go(ended, &self.reporter);
        let mut due: Vec<&mut Hearer> = hearers.iter_mut().filter(|hearer| hearer.due() <= now).collect();
        due.chunks_mut(CHUNK).for_each(|due| self.check_hearers(due));
        let (mut next, now) = (Moment::NEVER, self.clock.now());
        for hearer in &mut hearers {
            let is_wanted = hearer.is_wanted || self.is_waited_for_here(&hearer.hold);
            if is_wanted && hearer.next_call() <= now {
                (hearer.called, hearer.is_wanted) = (Some(now), false);
                self.call_back(hearer);
            }
            next = next.min(hearer.due());
            if is_wanted {
                next = next.min(hearer.next_call());
            }
        }
        self.hearers.list.lock().append(&mut hearers);
        next
    }

    fn check_hearers(&self, hearers: &mut [&mut Hearer]) {
        let Some(recalls) = self.store.capabilities().hold_caching else { return };
        let (sent, limit) = (self.clock.now(), self.options.command_timeout.min(EVERY));
        for hearer in hearers.iter_mut() {
            // Counted first, asked second: a message that comes from here on has the hold checked again.
            (hearer.heard, hearer.last_check) = (hearer.count(), Some(sent));
        }
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

    /// Each callback by itself, so that a panic in one does not keep the others. A callback that still runs is
    /// not called again.
    fn call_back(&self, hearer: &Hearer) {
        let callbacks = hearer.hold.contention.callbacks.lock().clone();
        if callbacks.is_empty() || hearer.is_calling.swap(true, Ordering::SeqCst) {
            return;
        }
        for callback in callbacks {
            let (hold, clock) = (Arc::clone(&hearer.hold), Clock::clone(&self.clock));
            let call = move || {
                if stands(&hold, clock.now()) {
                    callback();
                }
            };
            self.reporter.run_later(call);
        }
        let is_calling = Arc::clone(&hearer.is_calling);
        self.reporter.run_later(move || is_calling.store(false, Ordering::SeqCst));
    }
}
