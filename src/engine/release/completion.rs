//! Releases for which no thread waits, hand-offs to local threads, and what follows the answers to both.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::core::{Call, Core};
use crate::engine::hold::Hold;
use crate::engine::lock::Next;
use crate::engine::pace::POLL_COMPLETIONS_EVERY;
use crate::engine::waiter::{HandoffResult, PendingHandoff, Releaser};
use crate::error::Result;
use crate::observe::event::Event;
use crate::observe::{LossReason, Observer};
use crate::seam::{Answer, Claim, Failure, REQUEST_LASTS, Release, Sink};
use crate::time::Moment;

impl Core {
    /// Returns `next`; `None`: the hold is lost. Removes a lost hold after its last level, without a release:
    /// the watchdog frees what may remain of the lease.
    pub(crate) fn unless_lost(
        &self,
        hold: &Arc<Hold>,
        left: u32,
        next: Option<Next>,
        now: Moment,
    ) -> Option<Next> {
        if next.is_none() {
            hold.is_live(now, &self.reporter); // also records a loss
            if left == 0 {
                self.forget_lost(hold, now);
            }
        }
        next
    }

    pub(crate) fn forget_lost(&self, hold: &Arc<Hold>, now: Moment) {
        self.registry.remove(hold);
        if matches!(hold.loss_at(now), Some(LossReason::Expired | LossReason::HeldTooLong)) {
            self.clean_up(hold.claim(), now, now);
        }
    }

    /// Hands the lock off or releases it without waiting for the answer. The call `ending` ends when
    /// the answer has been read.
    pub(crate) fn leave_later(
        self: &Arc<Core>,
        hold: &Arc<Hold>,
        next: Next,
        begun: Moment,
        ending: Option<Arc<Call>>,
    ) {
        let calls = || (self.calls.begin(), ending.clone());
        // The waiter that reads the answer runs this closure while the machine still has the hold. So no
        // thread here asks for the lock before the release below is sent.
        let releaser = || {
            let (core, ended, calls) = (Arc::clone(self), Arc::clone(hold), calls());
            Releaser::new(false, move |outcome| match outcome {
                Err(Failure::Refused(_)) => core.release_later(&ended, core.clock.now(), calls),
                outcome => core.settle(&ended, outcome),
            })
        };
        if !self.start_handoff(hold, next, begun, releaser) {
            self.release_later(hold, begun, calls());
            // The hold is removed last, so that this process's next request follows the release.
            self.registry.remove(hold);
        }
    }

    /// Sends a release for which no thread waits. Whoever reads the answer drops `calls`, for whose end a
    /// shutdown waits.
    fn release_later(self: &Arc<Core>, hold: &Arc<Hold>, begun: Moment, calls: impl Send + 'static) {
        let (core, ended) = (Arc::clone(self), Arc::clone(hold));
        let done = Sink::new(move |answer: Answer<Release>| {
            let failure = answer.as_ref().err().map(Failure::error);
            core.reporter.observe_request("release", begun, &core.clock, failure);
            core.settle(&ended, answer);
            drop(calls);
        });
        self.store.release_later(
            &hold.claim(),
            begun.plus(self.options.command_timeout),
            done.of(Some(Arc::clone(hold) as _)),
        );
        self.watchdog.run_by(begun.plus(POLL_COMPLETIONS_EVERY));
    }

    /// Handles the outcome of a release whose releaser does not wait. May run on a thread that reads answers
    /// for others, so observers are called on the callback thread.
    pub(crate) fn settle(&self, hold: &Arc<Hold>, outcome: Answer<Release>) {
        match outcome {
            Ok(Release::Freed { others }) => self.registry.note_released(hold, others, self.clock.now()),
            Ok(Release::StillHeld) => {} // by another thread of this process: local hand-offs go on
            Ok(Release::NotHeld { .. }) => return self.lose(hold, LossReason::Gone),
            Err(Failure::Refused(error) | Failure::Unknown(error)) => {
                self.reporter.counters.releases_failed.add(1);
                self.leave_behind(hold, self.clock.now());
                let name = hold.name().given().to_owned();
                let error = error.during("unlock").on(&name).after_work();
                return self.reporter.observe_news(move |observer| {
                    observer.event(&Event::ReleaseFailed { name: &name, error: &error });
                });
            }
        }
        hold.forget_listeners(&self.reporter);
        // The end of a cached hold was reported when its last level ended.
        if !hold.is_cached() {
            self.reporter.observe_news(released(hold, self.clock.now()));
        }
    }

    pub(crate) fn report_end(&self, hold: &Hold) {
        hold.forget_listeners(&self.reporter);
        self.reporter.report(released(hold, self.clock.now()));
    }

    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        self.lose_at(hold, reason, self.clock.now());
    }

    /// Records a loss noticed at `now`, and removes a cached hold. `false`: `Hold::lose` recorded no loss.
    pub(crate) fn lose_at(&self, hold: &Arc<Hold>, reason: LossReason, now: Moment) -> bool {
        let is_first = hold.lose(reason, now, &self.reporter);
        if is_first && hold.is_cached() {
            self.registry.remove(hold);
        }
        is_first
    }

    /// Leaves a failed release to the watchdog, which repeats it from `from` on.
    pub(crate) fn leave_behind(&self, hold: &Arc<Hold>, from: Moment) {
        drop(hold.span.end("release_failed"));
        hold.retire_owner();
        hold.forget_listeners(&self.reporter);
        // A late renewal may extend the lease once more, so the clean-up goes on for a whole lease.
        let until = if hold.kind().is_leased() {
            from.plus(self.options.lease).max(hold.until())
        } else {
            from.plus(REQUEST_LASTS / 2)
        };
        self.clean_up(hold.claim(), until, from);
    }
}

pub(super) fn released(hold: &Hold, now: Moment) -> impl Fn(&dyn Observer) + Send + use<> {
    let (name, kind, owner) = (Arc::clone(hold.name()), hold.kind().label(), hold.owner());
    let (held, span) = (now.since(hold.since()), hold.span.end("released"));
    move |observer| span(&|| observer.event(&Event::Released { name: name.given(), kind, owner, held }))
}

impl Engine {
    /// Hands the lock to a local waiter. `None`: there is none, or the store cannot hand off.
    pub(crate) fn hand_off(&self, hold: &Arc<Hold>, next: Next, begun: Moment) -> Option<HandoffResult> {
        let mut result = None;
        self.start_handoff(hold, next, begun, || result.insert(HandoffResult::default()).releaser());
        result
    }

    /// Waits for the outcome of a hand-off that began at `begun`.
    ///
    /// An unanswered hand-off is followed by a plain release, which names only the old owner and so cannot
    /// affect a later one. If the old owner holds nothing, the hand-off was carried out. Otherwise the
    /// release frees the lock, and a later hand-off does nothing. Neither owner's number is reused.
    pub(crate) fn handed_off(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        result: &HandoffResult,
        begun: Moment,
    ) -> Result<()> {
        // The thread that reads the answer sets a result after one time-out at the latest. If there is none
        // after two, the operating system has not let that thread run, and the outcome is unknown.
        let first = match result.wait(self.options.command_timeout * 2) {
            Ok(Release::Freed { .. } | Release::StillHeld) => {
                self.report_end(hold);
                return Ok(());
            }
            Err(Failure::Refused(_)) => None,
            first @ (Ok(Release::NotHeld { .. }) | Err(Failure::Unknown(_))) => Some(first),
        };
        self.send_release(action, hold, 0, begun.plus(self.options.retry_timeout), first)
    }
}

impl Core {
    /// Sends the hand-off if `next` is a local waiter and the store can hand off; returns whether it did. The
    /// waiter's window begins at `sent`.
    fn start_handoff(
        &self,
        hold: &Arc<Hold>,
        next: Next,
        sent: Moment,
        releaser: impl FnOnce() -> Releaser,
    ) -> bool {
        let Next::Local(waiter) = next else { return false };
        let from = hold.claim();
        // The lock stays on the node that granted it, even if the name has another home node by now.
        let offer =
            hold.local.state().queue.get(waiter).and_then(|ticket| ticket.waiter.offer.as_deref().cloned());
        let to = offer.map(|offer| Claim { home: from.home, ..offer });
        let deadline = sent.plus(self.options.command_timeout);
        let Some((pending, to)) = to.and_then(|to| Some((self.store.hand_off(&from, &to, deadline)?, to)))
        else {
            hold.local.state().not_sent(hold.serial);
            return false;
        };
        let mut handoff = Some(PendingHandoff { pending, sent, to, releaser: releaser() });
        if let Some(waiter) = hold.local.state().sent(hold.serial) {
            waiter.handed = handoff.take().map(Box::new);
        }
        if handoff.is_some() {
            self.registry.remove(hold); // the waiter panicked and is gone
        }
        true
    }
}
