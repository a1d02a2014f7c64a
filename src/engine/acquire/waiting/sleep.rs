//! The sleep of a waiter: what it does before and after, and how it lets other processes go first.

use std::sync::Arc;
use std::time::Duration;

use super::Waiting;
use crate::engine::acquire::call::interrupted;
use crate::engine::hold::QueuePlace;
use crate::engine::lock::{Look, Withdrawn};
use crate::engine::waiter::{PendingHandoff, Sleeper};
use crate::error::Result;
use crate::observe::event::Event;
use crate::park::{Parker, Woken};
use crate::seam::{Claim, ListensFor, Others};
use crate::time::Moment;

/// The second client in the wait queue, notified as *standby*, asks after this time in case the first hangs.
const STANDBY: Duration = Duration::from_millis(25);
/// The longest time for which a process, after its own release, lets listening processes go first.
const STAND_BACK: Duration = Duration::from_micros(500);
/// A process pauses only if it released the lock less than this ago; the pause gets shorter with time.
const FRESH: Duration = Duration::from_millis(8);

impl Waiting<'_> {
    /// Sleeps until `wake_at`, or until an event: the waiter becomes the head, a thread here releases the
    /// lock or hands it to this waiter, or a message comes. May wake without a reason.
    pub(super) fn sleep(&mut self, place: &QueuePlace, wake_at: Moment) -> Result<()> {
        let Waiting { engine, call, thread, begun, .. } = *self;
        let now = engine.clock.now();
        let until = wake_at.min(call.limit);
        let claim = self.claim();
        self.parker(place);
        // All conditions are checked after the waker is set, because earlier events could not wake this
        // thread. The first condition is the client's end, which wakes all threads only once. Pairs with
        // `Engine::shutdown`.
        engine.usable(call.action)?;
        let sleeper = Sleeper {
            number: claim.owner.number(),
            thread: Arc::clone(thread),
            since: begun,
            kind: call.kind,
            takes_again: call.config.takes_again,
            writers_first: call.config.writers_first,
        };
        // The wait is reported before the waiter can be handed the lock: a slow observer would leave the
        // hand-off unread.
        if !self.is_waiting {
            let (name, kind) = (call.name.given(), call.kind.label());
            engine.reporter.report(|observer| observer.event(&Event::Waiting { name, kind }));
        }
        // Other threads here probably wait too, so a hold that this thread is handed is not to be cached.
        let offer = call.kind.has_queue().then(|| Box::new(Claim { caches: false, ..claim }));
        let Some((is_head, is_new)) = place.sleep(sleeper, offer, wake_at == Moment::NEVER) else {
            return Ok(());
        };
        engine.announce(now);
        if is_new && !call.kind.is_counted() {
            engine.find_by(begun.plus(engine.options.detect_deadlocks_after));
        }
        if !std::mem::replace(&mut self.is_waiting, true) {
            engine.reporter.counters.begin_wait(call.name.given());
            engine.note_waiter(call.local);
        }
        let watches_releases = self.watch_releases_at.take_if(|at| *at <= now).is_some() && is_head;
        let is_held_here =
            || !self.asks_for_itself() && call.local.state().held_here(engine.clock.now()).is_some();
        let uses_messages =
            call.config.backoff.is_none() && self.listening.listens_for != ListensFor::Nothing;
        if uses_messages && (self.all_ask || is_head && !is_held_here()) {
            if self.listening.subscription.is_none() {
                let claim = self.claim();
                let subscription = engine.store.listen(&claim, self.parker(place).waker());
                self.listening.listen(subscription);
            }
            if self.listening.is_refused() {
                self.go_by_releases();
                return Ok(());
            }
            if self.listening.has_moved() {
                return Ok(());
            }
            // The waiter may have missed a release, so the confirmation of this subscription wakes it for an
            // attempt.
            if watches_releases {
                let claim = Claim { listens_for: ListensFor::Releases, ..self.claim() };
                let subscription = engine.store.listen(&claim, self.parker(place).waker());
                self.release_watch.listen(subscription);
            }
            if self.release_watch.has_moved() {
                return Ok(());
            }
        }
        let watch_releases_at = self.watch_releases_at.filter(|at| *at < until);
        let ended = self.parker(place).park(watch_releases_at.unwrap_or(until), call.interrupt);
        if watch_releases_at.is_some() && ended == Woken::Time {
            self.sleep_on = Some(until);
            return Ok(());
        }
        let is_message = self.note_woken(ended);
        if ended == Woken::Interrupted {
            return Err(interrupted(call.action));
        }
        if !is_message && self.listening.stands_by() {
            self.sleep_on = Some(until.min(engine.clock.now().plus(STANDBY)));
        }
        Ok(())
    }

    /// After this process's own release, lets other waiting processes go first. Redis notifies its
    /// subscribers always in the same order, so without the pause the same process might win each time.
    pub(super) fn stand_back(&self) {
        let (engine, call) = (self.engine, self.call);
        let Some((since, others)) = call.local.state().contended else { return };
        // If only one other client listens, one pause is enough, before the first attempt. No pause is needed
        // if the lock is reserved for the next client in the wait queue.
        if others == Others::Listen(1) && self.attempts > 0 || others == Others::Next {
            return;
        }
        let age = engine.clock.now().since(since);
        if age < FRESH {
            let part = 1.0 - age.as_secs_f64() / FRESH.as_secs_f64();
            Parker::new(&engine.clock).park(engine.clock.after(STAND_BACK.mul_f64(part)), call.interrupt);
        }
    }

    /// Counts the wake-up by its reason. Returns whether a message was the reason.
    fn note_woken(&mut self, ended: Woken) -> bool {
        let is_message = ended == Woken::Signal && self.listening.has_message();
        let counters = &self.engine.reporter.counters;
        match ended {
            Woken::Signal if is_message => counters.woken_by_message.add(1),
            Woken::Signal => counters.woken_locally.add(1),
            Woken::Time => counters.woken_by_time.add(1),
            Woken::Interrupted => {}
        }
        self.coming = is_message.then(|| (self.engine.clock.now(), false));
        is_message
    }
}

/// A waiter's actions in the local queue. Each method takes the lock's mutex.
impl QueuePlace {
    pub(crate) fn is_head(&self) -> bool {
        self.local.state().queue.get(self.ticket).is_some_and(|ticket| ticket.is_head)
    }

    pub(crate) fn look(&self, all_ask: bool, asks_for_itself: bool, now: Moment) -> Look {
        let mut state = self.local.state();
        // A sent hand-off is received even if the releaser does not wait for its outcome any more.
        let is_handed = state.queue.get(self.ticket).is_some_and(|ticket| ticket.waiter.handed.is_some());
        if is_handed { Look::Receive } else { state.look(self.ticket, all_ask, asks_for_itself, now) }
    }

    /// Notes in the local queue that the waiter is about to sleep: see `Machine::sleep`. `offer`: the claim
    /// under which a thread may hand the lock to this waiter. Returns whether the waiter is the head, and
    /// whether it sleeps for the first time under its owner number; `None`: something has changed since the
    /// waiter checked, so it must not sleep.
    pub(crate) fn sleep(
        &self,
        sleeper: Sleeper,
        offer: Option<Box<Claim>>,
        for_head: bool,
    ) -> Option<(bool, bool)> {
        let mut state = self.local.state();
        if !state.sleep(self.ticket, offer.is_some(), for_head) {
            return None;
        }
        let ticket = state.queue.get_mut(self.ticket)?;
        ticket.waiter.offer = offer;
        Some((ticket.is_head, ticket.waiter.note_sleeper(sleeper)))
    }

    /// Makes the waiter accept no hand-off from now on: see `Machine::withdraw`. Also returns a hand-off that
    /// was sent already, which the caller must receive.
    pub(crate) fn withdraw(&self) -> (Withdrawn, Option<PendingHandoff>) {
        let mut state = self.local.state();
        let withdrawn = state.withdraw(self.ticket);
        (withdrawn, state.queue.get_mut(self.ticket).and_then(|ticket| Some(*ticket.waiter.handed.take()?)))
    }
}
