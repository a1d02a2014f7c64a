//! Taking a lock again that the calling thread holds.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::engine::Engine;
use crate::lock::hold::Hold;
use crate::lock::park::{Parker, Woken};
use crate::lock::store::{Answer, Attempt, Kind};
use crate::lock::wait::{Entered, TROUBLE_PAUSE, Trouble, Want, interrupted, random_between};
use crate::observe::LossReason;

/// More re-entries than any program means; what Redisson's counter holds.
const MOST_HOLDS: u32 = i32::MAX as u32;

impl Engine {
    /// A token lock is not reentrant: waiting for it would be waiting for oneself.
    pub(crate) fn reenter_token(&self, want: &Want<'_>) -> Result<Option<Entered>> {
        if want.until.is_over(self.clock.now()) {
            return Ok(None);
        }
        let detail = "this thread holds it, and a token lock is not reentrant";
        Err(Error::new(ErrorKind::WouldDeadlock, want.action, detail).on(want.name.given()))
    }

    /// Adds a level to a live hold; `None` if it turned out to be lost.
    ///
    /// The count is absolute, so a request of unknown outcome is simply repeated.
    pub(crate) fn reenter(
        &self,
        want: &Want<'_>,
        hold: &Arc<Hold>,
        asked: Duration,
    ) -> Result<Option<Entered>> {
        let Some(count) = hold.count().checked_add(1).filter(|count| *count <= MOST_HOLDS) else {
            let detail = format!("it is held {MOST_HOLDS} times already");
            return Err(Error::new(ErrorKind::Resource, want.action, detail).on(want.name.given()));
        };
        let mut claim = hold.claim();
        claim.kind = want.kind;
        claim.lease = asked;
        let wants_fence = want.kind == Kind::Fenced && hold.fence().is_none();
        let mut trouble = Trouble::default();
        let parker = Parker::new(&self.clock);
        loop {
            let sent = self.clock.now();
            match self.store.attempt(&claim, count, wants_fence, sent.plus(self.options.command_timeout)) {
                Answer::Done(Attempt::Granted { fence }) => {
                    hold.confirm(sent, asked);
                    hold.set_fence(fence);
                    let level = hold.add_level(want.lease);
                    self.watch(hold);
                    return Ok(Some(Entered { hold: Arc::clone(hold), level }));
                }
                Answer::Done(Attempt::Lost | Attempt::Busy { .. }) => {
                    self.aftermath.lose(hold, LossReason::Gone);
                    return Ok(None);
                }
                Answer::Refused(error) | Answer::Unknown(error) => {
                    if error.outcome_unknown() {
                        hold.retire_number(); // it may yet set the count: not that of the thread's next hold
                    }
                    let now = self.clock.now();
                    let error = trouble.note(self, error, now, want.until)?;
                    if !hold.is_live(now, &self.reporter) {
                        return Err(error.during(want.action).on(want.name.given()));
                    }
                    if parker.park(now.plus(random_between(TROUBLE_PAUSE)), want.interrupt)
                        == Woken::Interrupted
                    {
                        return Err(interrupted(want));
                    }
                }
            }
        }
    }
}
