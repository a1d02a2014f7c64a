//! The one thread per client that renews, and cleans up what was left in doubt. The timer says when.
//!
//! Renewals begin with a hold's entry in the registry and end with its release beginning, so none is sent for
//! a hold that is not known to be granted or that is being given up. One that is in flight at the release
//! finds the field gone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::engine::agenda::slot_of;
use crate::engine::cleanup::{
    Cleanup, CleanupQueue, Inbox, RETRY_LEAST, RETRY_MOST, RenewalOrders, WatchdogShared, tell_if_ended,
};
use crate::engine::deadlock::Finder;
use crate::engine::directory::Announcer;
use crate::engine::hold::{Hold, Standing};
use crate::engine::pace::{CleanupPace, longer};
use crate::engine::policy::{POLL_COMPLETIONS_EVERY, renewal_period, renewal_slack};
use crate::engine::registry::Registry;
use crate::engine::renewals::{Batch, CHUNK, Due};
use crate::engine::timer::{Alarm, Looks, Timer};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::LossReason;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, ServiceWaker};
use crate::room::Roomy;
use crate::seam::{Claim, Failure, Release, Store};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};

pub(crate) struct Watchdog {
    shared: Arc<WatchdogShared>,
    waker: ServiceWaker,
    cleanups: CleanupQueue,
    announcer: Arc<Announcer>,
    finder: Arc<Finder>,
    registry: Arc<Registry>,
    clock: Clock,
    timer: Timer,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A clean-up waits for its turn so long at least, also if it is asked once only.
const WAITS: Duration = Duration::from_secs(30);

/// While renewals fail, so often is tried whether deadlocks can be looked for again.
const FIND_AGAIN: Duration = Duration::from_secs(1);

impl Watchdog {
    pub(crate) fn start(
        options: &Options,
        clock: &Clock,
        store: &Arc<dyn Store>,
        registry: &Arc<Registry>,
        reporter: &Arc<Reporter>,
        (announcer, finder): (&Arc<Announcer>, &Arc<Finder>),
    ) -> Result<Watchdog> {
        let shared = Arc::new(WatchdogShared {
            inbox: Mutex::new(Inbox::default()),
            next_look: AtomicU64::new(u64::MAX),
            sampled_until: AtomicU64::new(0),
        });
        let (parker, timers_parker) = (Parker::service(clock), Parker::service(clock));
        let (waker, alarm) = (parker.service_waker(), Alarm::new(&timers_parker));
        if let Some(sessions) = store.capabilities().sessions {
            sessions.attach(alarm.waker().clone());
        }
        let cleanups = CleanupQueue { shared: Arc::clone(&shared), waker: waker.clone() };
        let orders = RenewalOrders { cleanups: cleanups.clone(), command_timeout: options.command_timeout };
        let round = Round {
            shared: Arc::clone(&shared),
            lease: options.lease,
            command_timeout: options.command_timeout,
            clock: clock.clone(),
            store: Arc::clone(store),
            registry: Arc::clone(registry),
            reporter: Arc::clone(reporter),
            announcer: Arc::clone(announcer),
            finder: Arc::clone(finder),
            alarm: alarm.clone(),
            orders: orders.clone(),
        };
        let looks = Looks {
            lease: options.lease,
            clock: clock.clone(),
            store: Arc::clone(store),
            registry: Arc::clone(registry),
            reporter: Arc::clone(reporter),
            announcer: Arc::clone(announcer),
            orders,
        };
        let timer = Timer::start(alarm, timers_parker, looks)?;
        let thread = thread::Builder::new()
            .name("leasehold-watch".to_owned())
            .spawn(move || round.run(&parker))
            .map_err(|error| {
                timer.stop();
                Error::new(ErrorKind::Resource, "connect", "the watchdog thread could not be started")
                    .with_source(error)
            })?;
        Ok(Watchdog {
            shared,
            waker,
            cleanups,
            announcer: Arc::clone(announcer),
            finder: Arc::clone(finder),
            registry: Arc::clone(registry),
            clock: clock.clone(),
            timer,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Has the thread look by `moment`. Costs nothing if it will anyway.
    ///
    /// The caller has changed first what the thread will see. Pairs with `Round::run`, which opens
    /// `next_look` before it looks and sets it after.
    pub(crate) fn look_by(&self, moment: Moment) {
        if moment.nanos() < self.shared.next_look.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Has a hold be renewed, and its end be noticed, in time, whatever has changed about it.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        let slot = slot_of(hold, self.clock.now());
        self.registry.put_earlier(hold, slot);
        self.look_at_holds_by(slot.moment());
    }

    /// Has the timer look by `moment`, at which the registry has something to be looked at.
    pub(crate) fn look_at_holds_by(&self, moment: Moment) {
        self.timer.alarm().look_by(moment);
    }

    /// Something is waited for: has the client's entry in the directory be written, if that is due.
    pub(crate) fn announce(&self, now: Moment) {
        if self.announcer.want(now) {
            self.waker.wake();
        }
    }

    /// A wait that has lasted since then begins to sleep: has it be looked at when it may be part of a
    /// deadlock. Costs nothing if another will be looked at sooner.
    pub(crate) fn note_wait(&self, since: Moment) {
        if let Some(by) = self.finder.note_wait(since) {
            self.look_by(by);
        }
    }

    /// Has a wait taken out of the client's entry that is over and has left its queue: see
    /// [`Finder::take_out`].
    pub(crate) fn take_out_wait(&self, deadline: Moment) {
        self.finder.take_out(deadline, || self.waker.wake());
    }

    /// The queue for claims in doubt.
    pub(crate) fn cleanups(&self) -> &CleanupQueue {
        &self.cleanups
    }

    /// Has the threads stand still, or go on: see [`Parker::service`].
    pub(crate) fn stand_still(&self, still: bool) {
        self.waker.stand_still(still);
        self.timer.alarm().waker().stand_still(still);
    }

    /// Ends the threads; returns what was left to clean up by now: what is to stay for a while ends with its
    /// lease. Never waits for itself.
    pub(crate) fn stop(&self) -> Vec<Claim> {
        self.shared.inbox.lock().stop = true;
        self.waker.end();
        self.timer.alarm().waker().end();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches nothing and panics nowhere; if it did, there is nothing left to do about it.
            drop(thread.join());
        }
        self.timer.stop();
        let cleanups = std::mem::take(&mut self.shared.inbox.lock().cleanups);
        let now = self.clock.now();
        cleanups.into_iter().filter(|cleanup| cleanup.from <= now).map(|cleanup| cleanup.claim).collect()
    }

    /// For a forked child: see `Engine`'s `Drop`.
    #[expect(clippy::mem_forget, reason = "a channel's end may not be dropped in a forked child")]
    pub(crate) fn leak(&self) {
        crate::fork::leak(&self.shared);
        std::mem::forget(self.waker.clone());
        self.timer.leak();
    }
}

/// The state of the thread. It keeps no client alive: the engine ends it.
struct Round {
    shared: Arc<WatchdogShared>,
    lease: Duration,
    command_timeout: Duration,
    clock: Clock,
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    reporter: Arc<Reporter>,
    announcer: Arc<Announcer>,
    finder: Arc<Finder>,
    alarm: Alarm,
    orders: RenewalOrders,
}

impl Round {
    fn run(&self, parker: &Parker) {
        parker.is_mine();
        let mut due = Due::new(self.lease, self.command_timeout);
        let mut pace = CleanupPace::new(self.clock.now());
        loop {
            self.shared.next_look.store(u64::MAX, Ordering::SeqCst);
            {
                let mut inbox = self.shared.inbox.lock();
                if inbox.stop {
                    drop(inbox);
                    return self.finder.close();
                }
                due.add(std::mem::take(&mut inbox.renewals));
            }
            let next = self.round(&mut due, &mut pace);
            self.shared.next_look.store(next.nanos(), Ordering::SeqCst);
            parker.park(next, None);
        }
    }

    /// Does one thing that is due, renewals first, and says when the next is.
    fn round(&self, due: &mut Due, pace: &mut CleanupPace) -> Moment {
        let now = self.clock.now();
        due.let_go(now).iter().for_each(|hold| self.let_go(hold));
        let again = match due.next(now) {
            Ok(batch) => {
                self.renew(due, batch);
                return self.clock.now(); // there may be more
            }
            Err(again) => again,
        };
        let cleaned = self.clean_up(due, pace);
        // Not while renewals fail: the store has more urgent things to answer then. Nor for longer than they
        // can spare, if it has to connect first. Nor when a shutdown waits for this round.
        let looked = if due.is_well() && !self.shared.inbox.lock().stop {
            let spare = self.command_timeout.min(self.lease / 6);
            let looked = self.finder.round(self.clock.after(spare));
            if !self.finder.tells() {
                let now = self.clock.now();
                self.announcer.write(&*self.store, &self.registry, now, now.plus(spare));
            }
            looked
        } else {
            self.finder.let_go();
            self.clock.after(FIND_AGAIN)
        };
        let is_awaiting = self.store.poll_completions();
        let now = self.clock.now();
        self.registry.tidy(now);
        let next =
            if is_awaiting { now.plus(POLL_COMPLETIONS_EVERY) } else { now.plus(renewal_period(self.lease)) };
        next.min(again).min(cleaned).min(looked).max(now.plus(Duration::from_millis(1)))
    }

    /// The watchdog has done with it for now.
    fn let_go(&self, hold: &Arc<Hold>) {
        hold.set_queued(false);
        let slot = slot_of(hold, self.clock.now());
        self.registry.put(hold, slot);
        self.alarm.look_by(slot.moment());
    }

    fn renew(&self, due: &mut Due, batch: Batch) {
        let sent = self.clock.now();
        let (mut outcome, limit) = (batch.outcome(), batch.limit);
        let (mut asked, mut claims) = (Vec::new(), Vec::new());
        let late = batch.items.iter().map(|item| sent.since(item.hold.due()));
        let lag = if self.reporter.is_observed() { late.max().unwrap_or_default() } else { Duration::ZERO };
        for item in batch.items {
            match item.hold.begin_renewal(sent) {
                Some(claim) => {
                    claims.push(Claim { levels: item.hold.count().max(1), ..claim });
                    asked.push(item);
                }
                None => self.let_go(&item.hold),
            }
        }
        if claims.is_empty() {
            return;
        }
        let answers = self.store.renew(&claims, sent.plus(limit));
        let error = answers.iter().find_map(|answer| answer.as_ref().err().map(Failure::error));
        self.reporter.observe_request("renew", sent, &self.clock, error);
        let (mut renewed, mut is_any_lost) = (0, false);
        for ((mut item, claim), answer) in asked.into_iter().zip(&claims).zip(answers) {
            let hold = &item.hold;
            let tally = outcome.tallies.entry(hold.home()).or_default();
            match answer {
                Ok(is_held) => {
                    tally.answered += 1;
                    tell_if_ended(&*self.store, hold, claim, self.clock.now());
                    hold.end_renewal();
                    if is_held {
                        renewed += 1;
                        self.confirm(hold, sent, claim.lease);
                    } else if !hold.is_releasing() && hold.lose(LossReason::Gone, sent, &self.reporter) {
                        // A hold whose release began meanwhile is rightly gone; its owner learns that from
                        // the release.
                        hold.entry().nudge();
                        is_any_lost = true;
                    }
                    self.let_go(hold);
                }
                // An error is not a loss: tried again until the window ends.
                Err(Failure::Refused(error) | Failure::Unknown(error)) => {
                    tally.failed += 1;
                    if error.outcome_unknown() {
                        hold.retire_owner_on_end(); // it may yet come, and is not to prolong the thread's next hold
                    }
                    hold.end_renewal();
                    hold.note_failed_renewal();
                    self.reporter.counters.renewals_failed.add(1);
                    let now = self.clock.now();
                    if item.is_told(now) {
                        let hold = &item.hold;
                        let error = error.during("renew").on(hold.name().given());
                        let (name, remaining) = (Arc::clone(hold.name()), hold.until().since(now));
                        let (kind, owner) = (hold.kind().label(), hold.owner());
                        let span = hold.span.around();
                        self.reporter.observe_news(move |observer| {
                            let (name, error) = (name.given(), &error);
                            let event = Event::RenewalFailed { name, kind, owner, error, remaining };
                            span(&|| observer.event(&event));
                        });
                    }
                    due.put_back(item);
                }
            }
        }
        let now = self.clock.now();
        due.report(&outcome, now);
        if is_any_lost && self.shared.sampled_until.swap(0, Ordering::SeqCst) > now.nanos() {
            self.orders.queue(&self.registry, self.registry.renewed(), now);
        }
        self.reporter.counters.renewals.add(renewed);
        if renewed > 0 && self.reporter.is_observed() {
            let (holds, took) = (renewed, now.since(sent));
            self.reporter.observe_news(move |observer| observer.event(&Event::Renewed { holds, took, lag }));
        }
    }

    /// The store has prolonged it.
    fn confirm(&self, hold: &Arc<Hold>, sent: Moment, lease: Duration) {
        let in_time = if hold.is_renewed() {
            hold.confirm(sent, lease, &self.clock)
        } else {
            hold.note_keepalive(sent);
            true
        };
        let now = self.clock.now();
        if !in_time {
            hold.lose(LossReason::Expired, now, &self.reporter);
        }
        if matches!(hold.standing(now), Standing::Lost(LossReason::Expired | LossReason::HeldTooLong)) {
            self.orders.undo_renewal(hold, now);
        }
    }

    /// Goes through some of the clean-ups that are due; returns when the next one is.
    ///
    /// Renewals wait for it no longer than they can; where they fail, it waits for them.
    fn clean_up(&self, due: &Due, pace: &mut CleanupPace) -> Moment {
        let now = self.clock.now();
        pace.count(now);
        let together = self.store.capabilities().abandons_at_a_time;
        let mut is_held_back = false;
        let mut asked: Vec<Cleanup> = {
            let mut inbox = self.shared.inbox.lock();
            let mut room = CHUNK;
            // A clean-up whose lease has ended meanwhile, and that was not asked about for want of room, need
            // not be.
            let outlasts_leases = self.store.capabilities().outlasts_leases;
            inbox
                .cleanups
                .retain(|cleanup| cleanup.until.max(cleanup.from.plus(WAITS)) > now || outlasts_leases);
            let is_asked = |cleanup: &mut Cleanup| {
                let is_due = room > 0 && cleanup.next <= now && !due.is_down(cleanup.claim.home);
                let is_asked = is_due && pace.take(together(cleanup.claim.kind));
                is_held_back |= is_due && !is_asked;
                room -= usize::from(is_asked);
                is_asked
            };
            inbox.cleanups.extract_if(.., is_asked).collect()
        };
        if !asked.is_empty() {
            let claims: Vec<Claim> = asked.iter().map(|cleanup| cleanup.claim.clone()).collect();
            let limit =
                self.registry.first_renewal().since(now).max(self.lease / 6).min(self.command_timeout);
            let answers = self.store.abandon(&claims, now.plus(limit));
            let now = self.clock.now();
            let mut answers = answers.into_iter();
            let outlasts_leases = self.store.capabilities().outlasts_leases;
            asked.retain_mut(|cleanup| {
                let answer = answers.next();
                // One that is refused for good stays refused.
                let is_to_be_answered = outlasts_leases
                    && matches!(&answer, Some(Err(failure)) if failure.error().is_retryable());
                let pause = match answer {
                    Some(Ok(Release::Freed { .. })) => {
                        self.registry.nudge(cleanup.claim.kind, &cleanup.claim.name);
                        return false; // the request in doubt had been carried out, once, and is undone
                    }
                    Some(Ok(Release::Never)) => return false,
                    // Nothing there: it never arrived, or may arrive yet. Look again until it could do no
                    // harm.
                    Some(Ok(_)) => {
                        let pause = longer(self.command_timeout, cleanup.looks);
                        cleanup.looks += 1;
                        pause
                    }
                    Some(Err(_)) | None => {
                        let most = renewal_slack(self.lease).clamp(RETRY_LEAST, RETRY_MOST);
                        let doubled = (cleanup.pause * 2).min(most);
                        std::mem::replace(&mut cleanup.pause, doubled)
                    }
                };
                cleanup.next = now.plus(pause);
                is_to_be_answered || cleanup.next < cleanup.until
            });
        }
        let mut inbox = self.shared.inbox.lock();
        inbox.cleanups.append(&mut asked);
        inbox.cleanups.give_back_room();
        // Those that wait for renewals are looked at after the next of these.
        let waiting = inbox.cleanups.iter().filter(|cleanup| !due.is_down(cleanup.claim.home));
        let next = waiting.map(|cleanup| cleanup.next).min().unwrap_or(Moment::NEVER);
        if is_held_back { next.max(CleanupPace::next(now)) } else { next }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").finish_non_exhaustive()
    }
}
