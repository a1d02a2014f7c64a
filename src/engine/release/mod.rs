//! Releasing a lock, level by level. After the last level a local waiter gets the lock, the store frees it,
//! or the hold is cached.

pub(crate) mod cache;
pub(crate) mod completion;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{Granted, RETRY_PAUSE, interrupted};
use crate::engine::hold::{Hold, LocalLock, State};
use crate::engine::lock::{End, Next};
use crate::error::{Error, NotHeld, Result};
use crate::fork::is_forked;
use crate::ident::{LockName, Owner, ThreadMarker};
use crate::interrupt::Interrupt;
use crate::observe::LossReason;
use crate::observe::event::Event;
use crate::park::{Parker, Woken};
use crate::seam::{Answer, Failure, Kind, Others, Release};
use crate::time::{Moment, random_between};

impl Engine {
    pub(crate) fn unlock(
        &self,
        action: &'static str,
        (kind, name): (Kind, &Arc<LockName>),
        local: &LocalLock,
    ) -> Result<()> {
        let _call = self.calls.begin();
        self.usable(action)?;
        let (begun, thread) = (self.clock.now(), ThreadMarker::current().id());
        let ended = local.on(begun, |lock, at| {
            let hold = lock.of_thread(thread).filter(|hold| hold.holder.is_this_task()).cloned()?;
            let ended = lock.end(hold.serial, None, |own| self.may_stay(own, false), at)?;
            Some((hold, ended))
        });
        match ended {
            Some((hold, ended)) => self.leave(action, &hold, ended, begun, false).map_err(Error::after_work),
            None => Err(self.not_holding(action, kind, name)),
        }
    }

    /// Ends one level of a hold, and waits for the answer. Repeats an unanswered request, which is safe
    /// because it names the count that remains. If the outcome stays unknown, the watchdog repeats it.
    pub(crate) fn end_level(&self, action: &'static str, hold: &Arc<Hold>, level: Option<u64>) -> Result<()> {
        let _call = self.calls.begin();
        self.usable(action).map_err(Error::after_work)?;
        self.end_one(action, hold, level, |own| self.may_stay(own, false))
    }

    fn end_one(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        level: Option<u64>,
        may_stay: impl FnOnce(&State) -> Option<bool>,
    ) -> Result<()> {
        let begun = self.clock.now();
        let ended = hold.local.on(begun, |lock, at| lock.end(hold.serial, level, may_stay, at));
        let ended = ended.ok_or_else(|| self.no_level(action, hold));
        ended.and_then(|ended| self.leave(action, hold, ended, begun, false)).map_err(Error::after_work)
    }

    /// The error for a level that has ended already, or whose hold is lost.
    pub(crate) fn no_level(&self, action: &'static str, hold: &Arc<Hold>) -> Error {
        let now = self.clock.now();
        if hold.loss_at(now).is_some() {
            self.forget_lost(hold, now);
            return Error::not_holding(action, hold.name().given(), NotHeld::Expired);
        }
        self.not_holding(action, hold.kind(), hold.name())
    }

    /// Ends all levels, without caching, because the caller is about to wait for other threads.
    pub(crate) fn end_all_levels(&self, action: &'static str, hold: &Arc<Hold>) -> Result<()> {
        let _call = self.calls.begin();
        hold.with(|own| {
            while own.levels.open.len() > 1 {
                own.levels.take(None);
            }
        });
        self.end_one(action, hold, None, |_| None)
    }

    /// Carries out what the end of a level decided. `is_dropped`: the level of a dropped guard.
    fn leave(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        ended: End,
        begun: Moment,
        is_dropped: bool,
    ) -> Result<()> {
        let End { left, next, may_cache } = ended;
        let ended = match self.unless_lost(hold, left, next, begun) {
            None => return Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired)),
            Some(Next::Cached(cached)) => {
                self.cached(hold, cached, begun);
                return Ok(());
            }
            // A dropped guard does not wait here. It waits in the next arm, in two cases: for an inner level,
            // whose count must be right before the thread's next request; and if other processes are next,
            // because the answer says whether this process must stand back.
            Some(next @ (Next::Nobody | Next::Local(_))) if is_dropped => {
                self.core.leave_later(hold, next, begun, None);
                Ok(())
            }
            Some(next) => match self.hand_off(hold, next, begun) {
                Some(result) => self.handed_off(action, hold, &result, begun),
                None => {
                    let retries = if is_dropped { Duration::ZERO } else { self.options.retry_timeout };
                    self.send_release(action, hold, left, begun.plus(retries), None)
                }
            },
        };
        if may_cache {
            // The thread may have waited for the answer: its time to come back "at once" begins only now.
            let (thread, now) = (ThreadMarker::current().id(), self.clock.now());
            hold.local.state().caching.note_return(thread, now);
        }
        ended
    }

    /// Ends a hold that has one level, but makes the store hold the lock until `least` has passed since
    /// the grant was requested. Repeats failed requests like [`end_level`](Self::end_level).
    pub(crate) fn end_after(&self, action: &'static str, entered: &Granted, least: Duration) -> Result<()> {
        let (hold, level) = (&entered.hold, Some(entered.level));
        let begun = self.clock.now();
        let ends = hold.since().plus(least);
        if ends <= begun {
            return self.end_level(action, hold, level);
        }
        let _call = self.calls.begin();
        self.usable(action)?;
        let expired = || Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired).after_work());
        if !hold.with(|own| own.levels.take(level).is_some() && own.levels.open.is_empty()) {
            return expired();
        }
        if !hold.is_live(begun, &self.reporter) || !hold.local.state().begin_return(hold.serial) {
            self.forget_lost(hold, begun);
            return expired();
        }
        let ended = self.send_end(hold, ends, begun.plus(self.options.retry_timeout));
        let outcome = ended.map(|is_held| is_held.then_some(Others::Nobody));
        self.released(action, hold, 0, outcome, Some(ends)).map_err(Error::after_work)
    }

    /// Makes the store end a hold at `ends`, or soon if that has passed. `false`: the store had no hold.
    fn send_end(&self, hold: &Arc<Hold>, ends: Moment, give_up: Moment) -> Result<bool> {
        let claim = hold.claim();
        let ask = || {
            let rest = ends.since(self.clock.now()).max(Duration::from_millis(1));
            self.ask("release", || self.store.expire_in(&claim, rest, self.one_command()))
        };
        let (is_held, in_doubt) = self.repeat_release(hold, give_up, ask)?;
        Ok(is_held || in_doubt && self.clock.now() < hold.until())
    }

    /// Handles the answer to a release. `outcome`: which other clients were notified; `None`: the owner held
    /// nothing. `ends`: when the watchdog frees the lock if the release failed.
    pub(crate) fn released(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        left: u32,
        outcome: Result<Option<Others>>,
        ends: Option<Moment>,
    ) -> Result<()> {
        if left == 0 {
            let released = outcome.as_ref().ok().copied().flatten();
            self.registry.remove_ended(hold, released.map(|others| (others, self.clock.now())));
        }
        match outcome {
            Ok(Some(_)) => {
                if left == 0 {
                    self.report_end(hold);
                }
                Ok(())
            }
            Ok(None) => {
                self.lose(hold, LossReason::Gone);
                Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired))
            }
            Err(error) => {
                self.reporter.counters.releases_failed.add(1);
                if left == 0 {
                    self.leave_behind(hold, ends.unwrap_or_else(|| self.clock.now()));
                }
                Err(error.during(action).on(hold.name().given()))
            }
        }
    }

    /// Ends one level for a dropped guard. Waits in the cases that `leave` names, and if the store waits.
    pub(crate) fn drop_level(&self, hold: &Arc<Hold>, level: u64) {
        if is_forked() {
            return;
        }
        let _call = self.calls.begin();
        let begun = self.clock.now();
        let may_stay = |own: &State| self.may_stay(own, true);
        let ended = hold.local.on(begun, |lock, at| lock.end(hold.serial, Some(level), may_stay, at));
        let Some(ended) = ended else {
            if hold.loss_at(begun).is_some() {
                self.forget_lost(hold, begun);
            }
            return;
        };
        let is_lost = ended.next.is_none();
        let ended = self.leave("unlock", hold, ended, begun, true).map_err(Error::after_work);
        if let Err(error) = ended
            && !is_lost
        {
            let event = Event::ReleaseFailed { name: hold.name().given(), error: &error };
            self.reporter.report(|observer| observer.event(&event));
        }
    }

    /// Sets the hold count to `left`. `first`: the answer to a request that was sent already.
    pub(crate) fn send_release(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        left: u32,
        give_up: Moment,
        mut first: Option<Answer<Release>>,
    ) -> Result<()> {
        let claim = hold.claim();
        let send = || self.ask("release", || self.store.release(&claim, left, self.one_command()));
        let ask = || first.take().unwrap_or_else(send);
        let outcome = self.repeat_release(hold, give_up, ask).map(|(released, in_doubt)| match released {
            Release::Freed { others } => Some(others),
            Release::StillHeld => Some(Others::Nobody),
            // Within the lease, `NotHeld` after an unanswered request means that this request freed the lock.
            Release::NotHeld { .. } => {
                let was_ours = in_doubt && left == 0 && self.clock.now() < hold.until();
                was_ours.then_some(Others::Nobody)
            }
        });
        self.released(action, hold, left, outcome, None)
    }

    /// Repeats a request that ends levels, until an answer, `give_up` or the end of the window.
    fn repeat_release<T>(
        &self,
        hold: &Arc<Hold>,
        give_up: Moment,
        ask: impl FnMut() -> Answer<T>,
    ) -> Result<(T, bool)> {
        self.repeat(give_up.min(hold.until()), None, ask, |in_doubt| {
            if in_doubt {
                // The request may still arrive, so the thread's next hold needs another number.
                hold.retire_owner_on_end();
            }
            // Without a lease the store recognizes a repetition for some minutes only. So this loop ends, and
            // the watchdog, which knows that limit, repeats the request.
            !in_doubt || hold.kind().is_leased()
        })
    }

    /// Repeats a request until it is answered, an error is not retryable, `give_up` has passed, the pause
    /// between two requests was interrupted, or `may_go_on` says no after a failure.
    /// Returns the answer, and whether an earlier request had an unknown outcome.
    pub(crate) fn repeat<T>(
        &self,
        give_up: Moment,
        interrupt: Option<&Interrupt>,
        mut ask: impl FnMut() -> Answer<T>,
        may_go_on: impl Fn(bool) -> bool,
    ) -> Result<(T, bool)> {
        let mut in_doubt = false;
        loop {
            let failure = match ask() {
                Ok(answer) => return Ok((answer, in_doubt)),
                Err(failure) => failure,
            };
            in_doubt |= matches!(failure, Failure::Unknown(_));
            let mut error = failure.into_error();
            let (goes_on, now) = (may_go_on(in_doubt), self.clock.now());
            if now < give_up && error.is_retryable() && goes_on {
                let later = now.plus(random_between(RETRY_PAUSE));
                if Parker::new(&self.clock).park(later, interrupt) != Woken::Interrupted {
                    continue;
                }
                error = interrupted("wait");
            }
            return Err(if in_doubt { error.with_unknown_outcome() } else { error });
        }
    }

    /// The error for a caller that does not hold the lock. Asks the store who does.
    pub(crate) fn not_holding(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Error {
        let why = match self.inspect(action, kind, name) {
            Ok(None) => NotHeld::Free,
            // Whoever knows another program's token can release the lock, so the token is hidden.
            Ok(Some(snapshot)) if kind.is_token() && !Owner::is_one(&snapshot.holder) => {
                NotHeld::HeldBy("the token of another program".to_owned())
            }
            Ok(Some(snapshot)) => NotHeld::HeldBy(snapshot.holder),
            // The caller may have worked under the lock. `after_work` makes the error not retryable.
            Err(error) => return error.after_work(),
        };
        Error::not_holding(action, name.given(), why)
    }
}
