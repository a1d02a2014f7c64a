//! The sleep of a waiter, and its turn between processes.

use std::sync::Arc;
use std::time::Duration;

use super::Waiting;
use crate::engine::acquire::call::interrupted;
use crate::engine::queue::Sleeper;
use crate::engine::registry::QueuePlace;
use crate::error::Result;
use crate::park::{Parker, Woken};
use crate::seam::subscription::Subscription;
use crate::seam::{Others, Wakeups};
use crate::time::Moment;

/// Other processes listen for the lock that this process has just released: they go first, for so long.
const STAND_BACK: Duration = Duration::from_micros(500);
/// On a message, a process that held the lock a moment ago lets others go first, less so the longer ago it was.
const FRESH: Duration = Duration::from_millis(8);

impl Waiting<'_> {
    /// Sleeps until there may be something to do: the turn in the queue, the lock given, a release here, a message, or
    /// `wake_at`. May end for no reason.
    ///
    /// Subscribes first, the first time it waits for another process; unless the subscription stood before the
    /// attempt, and no message has come since, that is reason to try again as soon as it stands.
    pub(super) fn sleep(&mut self, place: &QueuePlace, wake_at: Moment) -> Result<()> {
        let (engine, call, ticket) = (self.engine, self.call, place.ticket());
        let claim = call.kind.is_handed_off().then(|| self.claim());
        let now = engine.clock.now();
        let until = wake_at.min(call.limit.moment(now));
        let number = claim.as_ref().map_or_else(|| self.claim().owner.number(), |claim| claim.owner.number());
        ticket.note_sleeper(Sleeper { number, thread: Arc::clone(self.thread), since: self.started });
        engine.watchdog.announce(now);
        self.parker(place);
        // All that follows is looked at after the waker is set: what happened before found nobody to wake. First the end
        // of the client, which wakes everyone once. Pairs with `Engine::shutdown`.
        engine.usable(call.action)?;
        if let Some(claim) = claim {
            ticket.open(claim);
        }
        let is_held_here = || {
            !self.asks_for_itself()
                && engine.registry.held_here(call.kind, call.name, engine.clock.now()).is_some()
        };
        let is_told = call.terms.backoff.is_none();
        if is_told && (self.all_ask || ticket.is_head() && !is_held_here()) {
            if self.subscription.is_none() {
                let claim = self.claim();
                let parker = self.parker.get_or_insert_with(|| Parker::new(&engine.clock));
                self.subscription = engine.store.listen(&claim, parker.waker());
                if let Some(subscription) = &self.subscription {
                    self.line.listens(subscription);
                }
            }
            if self.line.wakeups != Wakeups::Releases
                && self.subscription.as_ref().is_some_and(Subscription::is_refused)
            {
                self.go_by_releases();
                return Ok(());
            }
            let moved = |at: &Subscription| at.is_up() && Some(at.message_count()) != self.message_count;
            if self.subscription.as_ref().is_some_and(moved) {
                return Ok(());
            }
        }
        if ticket.is_given() || ticket.take_nudge() {
            return Ok(());
        }
        match self.parker(place).park(until, call.interrupt) {
            Woken::Signal | Woken::Time => {
                if let Some(subscription) = &self.subscription
                    && Some(subscription.message_count()) == self.message_count
                {
                    self.line.stand_by(subscription, engine.clock.now(), until);
                }
                Ok(())
            }
            Woken::Interrupted => Err(interrupted(call)),
        }
    }

    /// Lets other processes go first that wait for the lock that this one has just released. Redis notifies its subscribers in the
    /// same order every time; without this the same process would win every time.
    pub(super) fn stand_back(&self) {
        let (engine, call) = (self.engine, self.call);
        let Some((since, others)) = engine.registry.contended_since(call.kind, call.name) else { return };
        // The one other process has held it since: it is ours now. Or it is kept for the next in line: nobody gets ahead.
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
