//! Giving a lock back, level by level.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, NotHeld, Result};
use crate::ident::{LockName, ThreadMark};
use crate::lock::engine::Engine;
use crate::lock::hold::{Hold, Standing};
use crate::lock::park::Parker;
use crate::lock::store::{Answer, Kind, Release};
use crate::lock::wait::random_between;
use crate::observe::LossReason;

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
        self.usable(action)?;
        let Some(left) = hold.end_level(level) else {
            return Err(self.not_holding(action, hold.kind(), hold.name()));
        };
        let expired = || Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired));
        if !self.still_held(hold, left) {
            return expired();
        }
        let outcome = self.send_release(hold, left, self.options.patience);
        if left == 0 {
            self.table.remove(hold);
        }
        match outcome {
            Ok(true) => {
                if left == 0 {
                    self.note_released(hold);
                }
                Ok(())
            }
            Ok(false) => {
                self.lose(hold, LossReason::Gone);
                expired()
            }
            Err(error) => {
                if left == 0 {
                    self.leave_behind(hold);
                }
                Err(error.during(action).on(hold.name().given()))
            }
        }
    }

    /// Ends one level for a guard that is dropped: tries once, reports, and leaves the rest to the watchdog.
    pub(crate) fn drop_level(&self, hold: &Arc<Hold>, level: u64) {
        if self.is_forked() {
            return;
        }
        let Some(left) = hold.end_level(Some(level)) else { return };
        if !self.still_held(hold, left) {
            return;
        }
        let outcome = self.send_release(hold, left, Duration::ZERO);
        if left == 0 {
            self.table.remove(hold);
        }
        match outcome {
            Ok(true) if left == 0 => self.note_released(hold),
            Ok(true) => {}
            Ok(false) => self.lose(hold, LossReason::Gone),
            Err(error) => {
                if left == 0 {
                    self.leave_behind(hold);
                }
                let error = error.during("unlock").on(hold.name().given());
                self.reporter.tell(|observer| observer.release_failed(hold.name().given(), &error));
            }
        }
    }

    /// Whether the hold stands, so that its level can be given back. If not, and this was the last level, it is
    /// forgotten here; nothing is sent, but what may remain of a lease that ended by our reckoning (1 % early) is left
    /// to the watchdog.
    fn still_held(&self, hold: &Arc<Hold>, left: u32) -> bool {
        let now = self.clock.now();
        if hold.is_live(now, &self.reporter) && (left > 0 || hold.begin_release()) {
            return true;
        }
        hold.retire_number();
        if left == 0 {
            self.table.remove(hold);
            if hold.standing(now) == Standing::Lost(LossReason::Expired) {
                self.watchdog.clean_up(hold.claim(), now, now);
            }
        }
        false
    }

    /// Asks the store to leave `left` levels, again after failures for as long as `patience` and the window last.
    /// `false`: the owner did not hold it.
    fn send_release(&self, hold: &Arc<Hold>, left: u32, patience: Duration) -> Result<bool> {
        let claim = hold.claim();
        let started = self.clock.now();
        let give_up = started.plus(patience).min(hold.until());
        let mut in_doubt = false;
        loop {
            let error = match self.store.release(&claim, left, self.one_command()) {
                Answer::Done(Release::Freed | Release::StillHeld) => return Ok(true),
                // An earlier request of ours did it, if the lease cannot have ended meanwhile.
                Answer::Done(Release::NotHeld { .. }) => {
                    return Ok(in_doubt && left == 0 && self.clock.now() < hold.until());
                }
                Answer::Refused(error) => error,
                Answer::Unknown(error) => {
                    // It may arrive at any time from now on. The thread's next hold must not be under this number.
                    in_doubt = true;
                    hold.retire_number();
                    error
                }
            };
            let now = self.clock.now();
            if now >= give_up || !error.is_retryable() {
                return Err(if in_doubt { error.with_unknown_outcome() } else { error });
            }
            Parker::new(&self.clock).park(now.plus(random_between(PAUSE)), None);
        }
    }

    /// The release did not get through: the watchdog repeats it until it is answered or the lease has run out.
    fn leave_behind(&self, hold: &Arc<Hold>) {
        hold.retire_number();
        hold.forget_listeners();
        let until = self.clock.after(self.options.lease).min(hold.until().plus(self.options.lease));
        self.watchdog.clean_up(hold.claim(), until, self.clock.now());
    }

    fn note_released(&self, hold: &Arc<Hold>) {
        hold.forget_listeners();
        let held = self.clock.now().since(hold.since());
        self.reporter.tell(|observer| observer.released(hold.name().given(), hold.owner(), held));
    }

    /// The error for a caller that holds nothing, with who does: one question to the store.
    fn not_holding(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Error {
        match self.inspect(action, kind, name) {
            Ok(None) => Error::not_holding(action, name.given(), NotHeld::Free),
            Ok(Some(snapshot)) => Error::not_holding(action, name.given(), NotHeld::HeldBy(snapshot.holder)),
            Err(error) => error,
        }
    }
}
