//! Giving a lock back, level by level.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, NotHeld, Result};
use crate::ident::{LockName, ThreadMark};
use crate::lock::engine::Engine;
use crate::lock::hand::{Handed, Parted};
use crate::lock::hold::{Hold, Standing};
use crate::lock::park::Parker;
use crate::lock::store::{Answer, Kind, Release};
use crate::lock::table::Next;
use crate::lock::wait::random_between;
use crate::lock::watchdog::TEND_EVERY;
use crate::observe::LossReason;
use crate::sync::channel::{Sender, bounded};

/// What came of trying to hand a lock over.
enum Over {
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
        self.usable(action)?;
        let Some(left) = hold.end_level(level) else {
            return Err(self.not_holding(action, hold.kind(), hold.name()));
        };
        let expired = || Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired));
        if !self.still_held(hold, left) {
            return expired();
        }
        if left == 0
            && let Some(parted) = self.hand_over(hold)
        {
            return self.parted(action, hold, parted);
        }
        let outcome = self.send_release(hold, left, self.options.patience);
        self.released(action, hold, left, outcome)
    }

    /// What a caller who waited is told of its release.
    fn released(
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
        let (told, heard) = bounded(1);
        let Over::Sent = self.send_over(hold, Some(told)) else { return None };
        // Whoever reads the answer gives up after a command time-out; a little more, and it has lost its processor.
        let limit = self.options.command_timeout * 2;
        Some(heard.recv_timeout(limit).unwrap_or_else(|_none| {
            let words = "the thread that was handed the lock did not tell what came of it";
            Parted::Unknown(Error::new(ErrorKind::TimedOut, "unlock", words).with_unknown_outcome())
        }))
    }

    /// Sends the hand-over, if there is somebody to hand to.
    fn send_over(&self, hold: &Arc<Hold>, told: Option<Sender<Parted>>) -> Over {
        let sent = self.clock.now();
        let (ticket, wish) = match self.table.promise(hold, sent) {
            Next::Nobody => return Over::Nobody,
            Next::Others => return Over::Others,
            Next::Local(ticket, wish) => (ticket, wish),
        };
        match self.store.hand_over(&hold.claim(), &wish.claim, wish.wants_fence, self.one_command()) {
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

    /// What a caller whose lock was handed over is told.
    fn parted(&self, action: &'static str, hold: &Arc<Hold>, parted: Parted) -> Result<()> {
        let outcome = match parted {
            Parted::Freed { .. } | Parted::HandedOn => {
                let held = self.aftermath.note_ended(hold);
                self.reporter.tell(|observer| observer.released(hold.name().given(), hold.owner(), held));
                return Ok(());
            }
            Parted::Lost => Ok(None),
            // Still ours there: released the plain way.
            Parted::Refused(_) => self.send_release(hold, 0, self.options.patience),
            Parted::Unknown(error) => Err(error),
        };
        self.released(action, hold, 0, outcome)
    }

    /// Ends one level for a guard that is dropped. The last level's release is sent and not waited for; what comes of it
    /// is reported, and what fails is left to the watchdog.
    pub(crate) fn drop_level(&self, hold: &Arc<Hold>, level: u64) {
        if self.is_forked() {
            return;
        }
        let Some(left) = hold.end_level(Some(level)) else { return };
        if !self.still_held(hold, left) {
            return;
        }
        let over = if left > 0 { Over::Others } else { self.send_over(hold, None) };
        match over {
            Over::Sent => {}
            Over::Nobody => {
                let (aftermath, ended) = (self.aftermath.clone(), Arc::clone(hold));
                let done = Box::new(move |answer| aftermath.settle(&ended, Parted::of_release(answer)));
                self.store.release_later(&hold.claim(), self.one_command(), done);
                // On its way first, taken out second: what is asked from here on goes behind it.
                self.table.remove(hold);
                self.watchdog.look_by(self.clock.after(TEND_EVERY));
            }
            // An inner level, whose count is to be right before the next; or others' turn: the answer tells whether
            // they listen, and so whether those who wait here stand back.
            Over::Others => {
                let outcome = self.send_release(hold, left, Duration::ZERO);
                if let Err(error) = self.released("unlock", hold, left, outcome) {
                    self.reporter.tell(|observer| observer.release_failed(hold.name().given(), &error));
                }
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
                self.watchdog.clean_ups().add(hold.claim(), now, now);
            }
        }
        false
    }

    /// Asks the store to leave `left` levels, again after failures for as long as `patience` and the window last.
    /// `None`: the owner did not hold it. Else how many other clients listened.
    fn send_release(&self, hold: &Arc<Hold>, left: u32, patience: Duration) -> Result<Option<u32>> {
        let claim = hold.claim();
        let started = self.clock.now();
        let give_up = started.plus(patience).min(hold.until());
        let mut in_doubt = false;
        loop {
            let error = match self.store.release(&claim, left, self.one_command()) {
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

    /// The error for a caller that holds nothing, with who does: one question to the store.
    fn not_holding(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Error {
        match self.inspect(action, kind, name) {
            Ok(None) => Error::not_holding(action, name.given(), NotHeld::Free),
            Ok(Some(snapshot)) => Error::not_holding(action, name.given(), NotHeld::HeldBy(snapshot.holder)),
            Err(error) => error,
        }
    }
}
