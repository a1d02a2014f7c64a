//! The parts that a client's threads work with, and the work that any thread leaves to them: claims in doubt,
//! holds to renew, and moments to look by.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::engine::calls::{Call, Calls};
use crate::engine::directory::Announcer;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::pace::sample;
use crate::engine::policy::renewal_period;
use crate::engine::registry::Registry;
use crate::engine::store::{StoreCell, attach};
use crate::engine::stuck::{PublishedWaits, Stuck};
use crate::ident::ClientId;
use crate::observe::LossReason;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, Service};
use crate::seam::Claim;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::{Clock, Moment, wall_ms};

/// The state of a client that its threads share with its callers, and with whoever reads an answer for it.
/// It keeps no client alive: the engine ends the threads, and closes the store, which lets answers go that
/// did not come.
pub(crate) struct Core {
    pub(crate) id: ClientId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: StoreCell,
    pub(crate) registry: Registry,
    pub(crate) calls: Arc<Calls>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) published_waits: PublishedWaits,
    pub(crate) watchdog: Service,
    pub(crate) timer: Service,
    /// Gives back what is cached for a time slice.
    pub(crate) cache_thread: CacheThread,
    pub(crate) inbox: Mutex<Inbox>,
    /// Until then, as `Moment::nanos`, one lost hold makes the watchdog renew all: a connection has ended,
    /// and only a sample was asked about.
    pub(crate) sampled_until: AtomicU64,
}

impl Core {
    /// Also the places where the watchdog and the timer sleep, which are not started yet.
    pub(crate) fn new(
        options: Options,
        clock: Clock,
        store: StoreCell,
        reporter: Arc<Reporter>,
    ) -> (Arc<Core>, [Parker; 2]) {
        let id = ClientId::random();
        let (watchdog, watchdogs_parker) = Service::new(&clock);
        let (timer, timers_parker) = Service::new(&clock);
        attach(&*store, timer.waker());
        let core = Core {
            id,
            store,
            registry: Registry::default(),
            calls: Arc::default(),
            reporter,
            announcer: Arc::new(Announcer::new(id, &options, &clock)),
            published_waits: PublishedWaits::new(options.detect_deadlocks_after),
            watchdog,
            timer,
            cache_thread: CacheThread::default(),
            inbox: Mutex::default(),
            sampled_until: AtomicU64::new(0),
            options,
            clock,
        };
        (Arc::new(core), [watchdogs_parker, timers_parker])
    }

    /// Has the threads stand still, or go on: see [`Parker::service`].
    pub(crate) fn stand_still(&self, still: bool) {
        self.watchdog.waker().stand_still(still);
        self.timer.waker().stand_still(still);
    }

    /// Ends the threads; returns the claims that are due to be cleaned up. A claim that is to be held for a
    /// while yet is not among them: it ends with its lease.
    pub(crate) fn stop(&self) -> Vec<Claim> {
        self.watchdog.stop();
        self.timer.stop();
        self.cache_thread.stop();
        let cleanups = std::mem::take(&mut self.inbox.lock().cleanups);
        let now = self.clock.now();
        cleanups.into_iter().filter(|cleanup| cleanup.from <= now).map(|cleanup| cleanup.claim).collect()
    }

    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.timer.run_by(self.registry.look_in_time(hold, self.clock.now()));
    }

    /// Something is held or waited for: has the client's entry in the directory be written, if that is due.
    pub(crate) fn announce(&self, now: Moment) {
        if self.announcer.want(now) {
            self.watchdog.wake();
        }
    }

    /// A wait that has lasted since then begins to sleep: has it be looked at when it may be part of a
    /// deadlock. Costs nothing if another will be looked at sooner.
    pub(crate) fn note_wait(&self, since: Moment) {
        if let Some(by) = self.published_waits.note_wait(since) {
            self.watchdog.run_by(by);
        }
    }

    /// The waits of this client that have lasted for long enough to be part of a deadlock.
    pub(crate) fn stuck(&self, now: Moment) -> Stuck {
        self.registry.stuck(self.id, (now, wall_ms()), self.published_waits.after, &self.options.under)
    }

    /// Takes over a claim whose acquire or release has an unknown outcome: until it is certain that the owner
    /// holds nothing, or until `until`, when the lease has run out and with it what was left (see
    /// [`Cleanup::until`]). The owner number must have been given up.
    pub(crate) fn clean_up(&self, claim: Claim, until: Moment, now: Moment) {
        self.clean_up_from(now, claim, until);
    }

    /// As `clean_up`, but until `from` the owner may keep what it holds.
    pub(crate) fn clean_up_from(&self, from: Moment, claim: Claim, until: Moment) {
        let cleanup = Cleanup { claim, until, from, next: from, pause: RETRY_LEAST, tries: 0 };
        self.inbox.lock().cleanups.push(cleanup);
        self.watchdog.wake();
    }

    /// A hold is lost here, but the store may have prolonged it, or may yet, by a renewal without an answer.
    /// The lock would be taken and held by nobody, so the renewal is undone.
    pub(crate) fn undo_renewal(&self, hold: &Arc<Hold>, now: Moment) {
        hold.retire_owner(); // by its time alone it is lost; nobody may have said so yet
        let claim = hold.claim();
        let until = now.plus(claim.lease).plus(self.options.command_timeout);
        self.clean_up(claim, until, now);
    }

    /// Tells a store of several servers that the hold of this claim has ended while it was renewed. A server
    /// may have got the release first, and the hold released second: then it has to forget it once more. A
    /// release that is sent from here on comes after both. Pairs with `Majority::ended_meanwhile`.
    pub(crate) fn tell_if_ended(&self, hold: &Hold, claim: &Claim, now: Moment) {
        if (hold.is_releasing() || hold.loss_at(now).is_some())
            && let Some(majority) = self.store.capabilities().majority
        {
            majority.ended_meanwhile(claim);
        }
    }

    pub(crate) fn confirm(&self, hold: &Arc<Hold>, sent: Moment, lease: Duration) {
        let in_time = if hold.is_renewed() {
            hold.confirm(sent, lease, &self.clock)
        } else {
            hold.with(|own| own.kept_alive_at = sent);
            true
        };
        let now = self.clock.now();
        if !in_time {
            self.lose_at(hold, LossReason::Expired, now);
        }
        if matches!(hold.loss_at(now), Some(LossReason::Expired | LossReason::HeldTooLong)) {
            self.undo_renewal(hold, now);
        }
    }

    /// Has these renewed, wherever they are among those that wait. Until the watchdog has done with them,
    /// only their ends are looked for by the timer.
    pub(crate) fn renew(&self, mut holds: Vec<Arc<Hold>>, now: Moment) {
        holds.retain(|hold| {
            let is_new = hold.is_first(|own| &mut own.is_queued);
            self.registry.look_in_time(hold, now);
            is_new
        });
        if !holds.is_empty() {
            self.inbox.lock().renewals.append(&mut holds);
            self.watchdog.wake();
        }
    }

    /// A connection has ended, and what is held may be gone with its server: asks about some. If one of them
    /// turns out to be lost, all are asked about (see `Round::renew`); if none, the end of a connection was
    /// all there was.
    pub(crate) fn renew_some(&self, now: Moment) {
        let (some, has_more) = sample(self.registry.renewed(now));
        if has_more {
            let until = now.plus(renewal_period(self.options.lease)).nanos();
            self.sampled_until.store(until, Ordering::SeqCst);
        }
        self.renew(some, now);
    }
}

/// The thread that releases cached holds, once there was one, and the locks it looks at.
#[derive(Default)]
pub(crate) struct CacheThread {
    /// `None` inside: it could not be started, so nothing is kept.
    pub(crate) service: OnceLock<Option<(Arc<Service>, Waker)>>,
    pub(crate) locks: Mutex<Vec<Arc<LocalLock>>>,
    /// The threads that wait for what they keep to be released.
    pub(crate) ended: Mutex<Vec<Ended>>,
}

pub(crate) struct Ended {
    /// `None`: those of all threads.
    pub(crate) thread: Option<u64>,
    pub(crate) call: Arc<Call>,
}

impl CacheThread {
    /// Has the thread look at the lock by `moment`.
    pub(crate) fn watch(&self, service: &Service, lock: &Arc<LocalLock>, moment: Moment) {
        if lock.begin_watch() {
            // Listed first, woken second: the thread reads the list when it wakes.
            self.locks.lock().push(Arc::clone(lock));
        }
        service.run_by(moment);
    }

    pub(crate) fn stop(&self) {
        if let Some(Some((service, _))) = self.service.get() {
            service.stop();
            // Stopped first, cleared second. Pairs with `Core::end_cached`.
            self.ended.lock().clear();
        }
    }
}

/// The pause after the first failed clean-up. It doubles up to a thirtieth of the lease, at most `RETRY_MOST`.
pub(crate) const RETRY_LEAST: Duration = Duration::from_millis(10);
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) renewals: Vec<Arc<Hold>>,
    pub(crate) cleanups: Vec<Cleanup>,
}

/// A request of unknown outcome, to be undone or repeated until that is certain.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) claim: Claim,
    /// The request can have no effect that outlives this: what it may have set ends with its lease. If the
    /// store says that it does not ([`outlasts_leases`](crate::seam::capabilities::Capabilities)), the store
    /// has to answer as well.
    pub(crate) until: Moment,
    /// Until then the owner may keep what it holds, even if the client ends sooner.
    pub(crate) from: Moment,
    pub(crate) next: Moment,
    /// The pause after the next failure. The first is short: what broke the request in doubt has often broken
    /// this connection too, and others may wait for this clean-up.
    pub(crate) pause: Duration,
    /// How often the owner was found to hold nothing: the longer a request has not come, the less likely it
    /// comes.
    pub(crate) tries: u32,
}
