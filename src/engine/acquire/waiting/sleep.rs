//! The sleep of a waiter, and its turn between processes.

use std::sync::Arc;
use std::time::Duration;

use super::Waiting;
use crate::engine::acquire::call::interrupted;
use crate::engine::hold::QueuePlace;
use crate::engine::waiter::Sleeper;
use crate::error::Result;
use crate::park::{Parker, Woken};
use crate::seam::{Claim, ListensFor, Others};
use crate::time::Moment;

/// The time after which a client asks that got a standby message: the one that was notified to be next may
/// not come.
const STANDBY: Duration = Duration::from_millis(25);
/// The time for which other processes that listen for the lock which this process has just released go first.
const STAND_BACK: Duration = Duration::from_micros(500);
/// On a message, a process that held the lock a moment ago lets others go first, less so the longer ago it
/// was.
const FRESH: Duration = Duration::from_millis(8);

impl Waiting<'_> {
    /// Sleeps until there may be something to do: the turn in the queue, the lock given, a release here, a
    /// message, or `wake_at`. May end for no reason.
    pub(super) fn sleep(&mut self, place: &QueuePlace, wake_at: Moment) -> Result<()> {
        let Waiting { engine, call, .. } = *self;
        self.report_waiting();
        let now = engine.clock.now();
        let until = wake_at.min(call.limit.moment(now));
        let claim = self.claim();
        self.show_sleeper(place, &claim, now);
        self.parker(place);
        // Everything is checked after the waker is set, since earlier events found nobody to wake: first
        // the client's end, which wakes everyone once. Pairs with `Engine::shutdown`.
        engine.usable(call.action)?;
        // Whoever is handed the lock caches it for a time slice at most: others here want it.
        let offer = call.kind.is_handed_off().then_some(Claim { caches: false, ..claim });
        let Some(is_head) = place.sleep(offer, wake_at == Moment::NEVER) else { return Ok(()) };
        self.count_waiter();
        let is_held_here =
            || !self.asks_for_itself() && call.local.state().held_here(engine.clock.now()).is_some();
        let uses_messages =
            call.config.backoff.is_none() && self.listening.listens_for() != ListensFor::Nothing;
        if uses_messages && (self.all_ask || is_head && !is_held_here()) {
            self.listen();
            if self.listening.is_refused() {
                self.go_by_releases();
                return Ok(());
            }
            if self.release_watch.has_moved() || self.listening.has_moved() {
                return Ok(());
            }
        }
        let watch_releases_at = self.release_watch.begins_at.filter(|at| *at < until);
        let ended = self.parker(place).park(watch_releases_at.unwrap_or(until), call.interrupt);
        if watch_releases_at.is_some() && ended == Woken::Time {
            self.watch_releases(place, until);
            return Ok(());
        }
        let is_message = self.note_woken(ended);
        if ended == Woken::Interrupted {
            return Err(interrupted(call));
        }
        if !is_message && self.listening.stands_by() {
            self.poll_pause.sleep_on(until.min(engine.clock.now().plus(STANDBY)));
        }
        Ok(())
    }

    fn show_sleeper(&self, place: &QueuePlace, claim: &Claim, now: Moment) {
        let Waiting { engine, call, thread, begun, .. } = *self;
        let is_new = place.note_sleeper(Sleeper {
            number: claim.owner.number(),
            thread: Arc::clone(thread),
            since: begun,
            kind: call.kind,
            takes_again: call.config.takes_again,
            writers_first: call.config.writers_first,
        });
        engine.announce(now);
        // Once: a wait that goes on sleeping is among those that the watchdog looks at.
        if is_new && !call.kind.is_counted() {
            engine.note_wait(begun);
        }
    }

    fn listen(&mut self) {
        if self.listening.subscription().is_none() {
            let claim = self.claim();
            let engine = self.engine;
            let parker = self.parker.get_or_insert_with(|| Parker::new(&engine.clock));
            self.listening.listen(engine.store.listen(&claim, parker.waker()));
        }
    }

    /// Lets other processes go first that wait for the lock that this one has just released. Redis notifies
    /// its subscribers in the same order every time; without this the same process would win every time.
    pub(super) fn stand_back(&self) {
        let (engine, call) = (self.engine, self.call);
        let Some((since, others)) = call.local.state().contended else { return };
        // The one other listener has had the lock since, so it is this client's turn. Or the lock is
        // reserved for the next in the wait queue, whom nobody can overtake.
        if others == Others::Listen(1) && self.attempts > 0 || others == Others::Next {
            return;
        }
        let age = engine.clock.now().since(since);
        if age < FRESH {
            let part = 1.0 - age.as_secs_f64() / FRESH.as_secs_f64();
            Parker::new(&engine.clock).park(engine.clock.after(STAND_BACK.mul_f64(part)), call.interrupt);
        }
    }
}
