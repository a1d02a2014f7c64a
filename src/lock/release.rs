//! Giving a lock back, level by level.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, NotHeld, Result};
use crate::ident::{LockName, ThreadMark};
use crate::lock::engine::{Engine, is_forked};
use crate::lock::hand::{Handed, Parted, Told};
use crate::lock::hold::{Hold, Standing};
use crate::lock::park::Parker;
use crate::lock::store::{Answer, Kind, Release};
use crate::lock::table::Next;
use crate::lock::wait::Entered;
use crate::lock::watchdog::TEND_EVERY;
use crate::observe::LossReason;
use crate::time::{Moment, random_between};

/// What came of trying to hand a lock over.
pub(super) enum Over {
    /// It is on its way.
    Sent,
    /// There is nobody here to hand it to.
    Nobody,
    /// There is, but others come first.
    Others,
}

/// Between failed releases the caller pauses for a random part of this.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(60));

impl Engine {
    /// Ends the innermost level of the calling thread's hold.
    pub(crate) fn unlock(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Result<()> {
        self.usable(action)?;
        let thread = ThreadMark::current();
        match self.table.of_thread(kind, name, thread.id()) {
            Some(hold) => self.end_level(action, &hold, None),
            None => Err(self.not_holding(action, kind, name)),
        }
    }

    /// Ends one level of a hold, and the hold with its last, and waits for the store's answer.
    ///
    /// A request without an answer is repeated: the count is absolute and the caller waits here, so within this hold
    /// a repetition changes nothing. What stays unknown goes to the watchdog.
    pub(crate) fn end_level(&self, action: &'static str, hold: &Arc<Hold>, level: Option<u64>) -> Result<()> {
        let _call = self.calls.begin();
        self.usable(action)?;
        let Some(left) = hold.end_level(level) else {
            return Err(self.not_holding(action, hold.kind(), hold.name()));
        };
        self.leave(action, hold, left)
    }

    /// Ends all levels of a hold, as [`end_level`](Self::end_level) does the last.
    pub(crate) fn end_all_levels(&self, action: &'static str, hold: &Arc<Hold>) -> Result<()> {
        let _call = self.calls.begin();
        while hold.end_level(None).is_some_and(|left| left > 0) {}
        self.leave(action, hold, 0)
    }

    /// Leaves so many levels to the owner.
    fn leave(&self, action: &'static str, hold: &Arc<Hold>, left: u32) -> Result<()> {
        let expired = || Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired));
        if !self.still_held(hold, left) {
            return expired();
        }
        let begun = self.clock.now();
        if left == 0
            && let Some(parted) = self.hand_over(hold)
        {
            return self.parted(action, hold, parted, begun);
        }
        let outcome = self.send_release(hold, left, self.options.patience, None);
        self.released(action, hold, left, outcome)
    }

    /// Ends a hold that has one level, but leaves the lock taken until `at_least` has passed since it was asked for. If
    /// that fails, the lock ends with its lease.
    pub(crate) fn end_after(
        &self,
        action: &'static str,
        entered: &Entered,
        at_least: Duration,
    ) -> Result<()> {
        let (hold, level) = (&entered.hold, Some(entered.level));
        let rest = hold.since().plus(at_least).since(self.clock.now());
        if rest.is_zero() {
            return self.end_level(action, hold, level);
        }
        let _call = self.calls.begin();
        self.usable(action)?;
        let expired = || Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired));
        if hold.end_level(level) != Some(0) || !self.still_held(hold, 0) {
            return expired();
        }
        let answer = self.store.expire_in(&hold.claim(), rest, self.one_command());
        self.table.remove(hold);
        match answer {
            Answer::Done(true) => {
                let held = self.aftermath.note_ended(hold);
                self.reporter.tell(|observer| observer.released(hold.name().given(), hold.owner(), held));
                Ok(())
            }
            Answer::Done(false) => {
                self.aftermath.lose(hold, LossReason::Gone);
                expired()
            }
            Answer::Refused(error) | Answer::Unknown(error) => {
                hold.forget_listeners(&self.reporter);
                Err(error.during(action).on(hold.name().given()))
            }
        }
    }

    /// What a caller who waited is told of its release.
    pub(super) fn released(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        left: u32,
        outcome: Result<Option<u32>>,
    ) -> Result<()> {
        // Whose turn it is, first; taken out, which wakes the next here, second.
        let held = match &outcome {
            Ok(Some(others)) if left == 0 => Some(self.aftermath.note_released(hold, *others)),
            _ => None,
        };
        if left == 0 {
            self.table.remove(hold);
        }
        match outcome {
            Ok(Some(_)) => {
                if let Some(held) = held {
                    self.reporter.tell(|observer| observer.released(hold.name().given(), hold.owner(), held));
                }
                Ok(())
            }
            Ok(None) => {
                self.aftermath.lose(hold, LossReason::Gone);
                Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired))
            }
            Err(error) => {
                if left == 0 {
                    self.aftermath.leave_behind(hold);
                }
                Err(error.during(action).on(hold.name().given()))
            }
        }
    }

    /// Gives the lock to the local thread that is next, and waits for what that hears. `None`: nobody is next, or it
    /// could not be sent.
    fn hand_over(&self, hold: &Arc<Hold>) -> Option<Parted> {
        let told = Told::default();
        let Over::Sent = self.send_over(hold, Some(told.clone())) else { return None };
        Some(self.wait_told(&told))
    }

    /// Waits for what the next owner tells of a hand-over.
    pub(super) fn wait_told(&self, told: &Told) -> Parted {
        // Whoever reads the answer gives up after a command time-out; a little more, and it has lost its processor.
        let limit = self.options.command_timeout * 2;
        told.wait(limit).unwrap_or_else(|| {
            let words = "the thread that was handed the lock did not tell what came of it";
            Parted::Unknown(Error::new(ErrorKind::TimedOut, "unlock", words).with_unknown_outcome())
        })
    }

    /// Sends the hand-over, if there is somebody to hand to.
    pub(super) fn send_over(&self, hold: &Arc<Hold>, told: Option<Told>) -> Over {
        let sent = self.clock.now();
        let (ticket, mut wish) = match self.table.promise(hold, sent) {
            Next::Nobody => return Over::Nobody,
            Next::Others => return Over::Others,
            Next::Local(ticket, wish) => (ticket, wish),
        };
        let from = hold.claim();
        wish.claim.home = from.home; // it stays where it was granted, wherever that name is asked for by now
        match self.store.hand_over(&from, &wish.claim, wish.wants_fence, self.one_command()) {
            Some(pending) => {
                // Taken out first, given second: in between the promise shows that the lock is held here. The other
                // way round, who comes after the next owner could go to sleep for a hold that ends without a word.
                self.table.remove_handed(hold);
                ticket.give(Handed::new(pending, sent, wish.claim, hold, &self.aftermath, told));
                Over::Sent
            }
            None => {
                ticket.withdraw();
                Over::Nobody
            }
        }
    }

    /// What a caller is told whose lock was handed over, since `begun`.
    ///
    /// What was not answered is asked again as a plain release, which cannot hurt whoever has the lock by then: it is for
    /// the old owner's number alone. If that holds nothing any more, it was the hand-over; if it did, a hand-over that comes
    /// later finds nothing to pass on, since the number is not used again. The next owner has given its own number up too.
    pub(super) fn parted(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        parted: Parted,
        begun: Moment,
    ) -> Result<()> {
        let patience = || self.options.patience.saturating_sub(self.clock.now().since(begun));
        let outcome = match parted {
            Parted::Freed { .. } | Parted::HandedOn => {
                let held = self.aftermath.note_ended(hold);
                self.reporter.tell(|observer| observer.released(hold.name().given(), hold.owner(), held));
                return Ok(());
            }
            Parted::Lost => Ok(None),
            // Still ours there: released the plain way.
            Parted::Refused(_) => self.send_release(hold, 0, patience(), None),
            Parted::Unknown(error) => self.send_release(hold, 0, patience(), Some(Answer::Unknown(error))),
        };
        self.released(action, hold, 0, outcome)
    }

    /// Ends one level for a guard that is dropped. The last level's release is sent and not waited for; what comes of it
    /// is reported, and what fails is left to the watchdog.
    pub(crate) fn drop_level(&self, hold: &Arc<Hold>, level: u64) {
        if is_forked() {
            return;
        }
        let call = self.calls.begin();
        let Some(left) = hold.end_level(Some(level)) else { return };
        if !self.still_held(hold, left) {
            return;
        }
        let over = if left > 0 { Over::Others } else { self.send_over(hold, None) };
        match over {
            Over::Sent => {}
            Over::Nobody => {
                let (aftermath, ended) = (Arc::clone(&self.aftermath), Arc::clone(hold));
                let done = Box::new(move |answer| {
                    aftermath.settle(&ended, Parted::of_release(answer));
                    drop(call); // not over before
                });
                self.store.release_later(&hold.claim(), self.one_command(), done);
                // On its way first, taken out second: what is asked from here on goes behind it.
                self.table.remove(hold);
                self.watchdog.look_by(self.clock.after(TEND_EVERY));
            }
            // An inner level, whose count is to be right before the next; or others' turn: the answer tells whether
            // they listen, and so whether those who wait here stand back.
            Over::Others => {
                let outcome = self.send_release(hold, left, Duration::ZERO, None);
                if let Err(error) = self.released("unlock", hold, left, outcome) {
                    self.reporter.tell(|observer| observer.release_failed(hold.name().given(), &error));
                }
            }
        }
    }

    /// Whether the hold stands, so that its level can be given back. If not, and this was the last level, it is
    /// forgotten here; nothing is sent, but what may remain of a lease that ended by our reckoning (1 % early) is left
    /// to the watchdog.
    pub(super) fn still_held(&self, hold: &Arc<Hold>, left: u32) -> bool {
        let now = self.clock.now();
        if hold.is_live(now, &self.reporter) && (left > 0 || hold.begin_release()) {
            return true;
        }
        hold.retire_number();
        if left == 0 {
            self.table.remove(hold);
            if matches!(hold.standing(now), Standing::Lost(LossReason::Expired | LossReason::HeldTooLong)) {
                self.watchdog.clean_ups().add(hold.claim(), now, now);
            }
        }
        false
    }

    /// Asks the store to leave `left` levels, again after failures for as long as `patience` and the window last.
    /// `None`: the owner did not hold it. Else how many other clients listened. `first`: what came of asking once.
    pub(super) fn send_release(
        &self,
        hold: &Arc<Hold>,
        left: u32,
        patience: Duration,
        mut first: Option<Answer<Release>>,
    ) -> Result<Option<u32>> {
        let claim = hold.claim();
        let started = self.clock.now();
        let give_up = started.plus(patience).min(hold.until());
        let mut in_doubt = false;
        loop {
            let ask = || self.store.release(&claim, left, self.one_command());
            let error = match first.take().unwrap_or_else(ask) {
                Answer::Done(Release::Freed { others }) => return Ok(Some(others)),
                Answer::Done(Release::StillHeld) => return Ok(Some(0)),
                // An earlier request of ours did it, if the lease cannot have ended meanwhile.
                Answer::Done(Release::NotHeld { .. }) => {
                    let was_ours = in_doubt && left == 0 && self.clock.now() < hold.until();
                    return Ok(was_ours.then_some(0));
                }
                Answer::Refused(error) => error,
                Answer::Unknown(error) => {
                    // It may arrive at any time from now on. The thread's next hold must not be under this number.
                    in_doubt = true;
                    hold.spend_number();
                    error
                }
            };
            let now = self.clock.now();
            // Where a repetition would not be recognised for ever, the watchdog does it, which knows for how long.
            let is_left = in_doubt && !claim.kind.is_leased();
            if now >= give_up || !error.is_retryable() || is_left {
                return Err(if in_doubt { error.with_unknown_outcome() } else { error });
            }
            Parker::new(&self.clock).park(now.plus(random_between(PAUSE)), None);
        }
    }

    /// The error for a caller that holds nothing, with who does: one question to the store.
    pub(crate) fn not_holding(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Error {
        match self.inspect(action, kind, name) {
            Ok(None) => Error::not_holding(action, name.given(), NotHeld::Free),
            Ok(Some(snapshot)) => Error::not_holding(action, name.given(), NotHeld::HeldBy(snapshot.holder)),
            Err(error) => error,
        }
    }
}
