//! Re-entry: one more level for a thread that holds the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, interrupted};
use crate::engine::acquire::retry::{RETRY_PAUSE, RetryBudget};
use crate::engine::hold::Hold;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::LossReason;
use crate::park::{Parker, Woken};
use crate::seam::{Attempt, Failure};
use crate::time::{Lease, Moment, random_between};

/// More re-entries than any program means; what Redisson's counter holds.
const MOST_HOLDS: u32 = i32::MAX as u32;

impl Engine {
    /// Adds a level to a live hold; `None` if it turned out to be lost.
    ///
    /// The count is absolute, so a request of unknown outcome is simply repeated. A grant counts only
    /// if the window, as it was before this grant, is still open when the answer has been read. Once that has
    /// ended, others may have been notified, and may have held the lock.
    pub(crate) fn reenter(
        &self,
        call: &AcquireCall<'_>,
        hold: &Arc<Hold>,
        asked: Duration,
    ) -> Result<Option<Granted>> {
        let Some(count) = hold.count().checked_add(1).filter(|count| *count <= MOST_HOLDS) else {
            let detail = format!("this thread holds the lock {MOST_HOLDS} times already, which is the most");
            return Err(Error::new(ErrorKind::Resource, call.action, detail).on(call.name.given()));
        };
        let mut claim = hold.claim();
        claim.kind = call.kind;
        claim.wants_fence = call.wants_fence() && hold.fencing_token().is_none();
        if call.lease != Lease::Renewed {
            hold.end_until_recall(); // it would be kept under this level's lease
        }
        let mut retry_budget = RetryBudget::default();
        let parker = Parker::new(&self.clock);
        // Until this moment an unanswered request of this call may keep the lock.
        let mut in_doubt: Option<Moment> = None;
        loop {
            self.open(call.action)?;
            let sent = self.clock.now();
            claim.lease = hold.within_ceiling(asked, sent);
            let timeout = self.options.command_timeout;
            let answer = self.store.attempt(&claim, count, sent.plus(timeout));
            // Reported once it is certain whether the level exists: an observer may drop the guard of
            // another level.
            let report = self.reporter.request_report(
                "acquire",
                sent,
                &self.clock,
                answer.as_ref().err().map(Failure::error),
            );
            let now = self.clock.now();
            let is_granted = matches!(answer, Ok(Attempt::Granted { .. }));
            let mut stands = hold.is_live(now, &self.reporter);
            if stands && is_granted && !hold.confirm(sent, claim.lease, &self.clock) {
                self.lose(hold, LossReason::Expired);
                stands = false;
            }
            // No answer, or one read after the window: the store may count the level.
            if is_granted && !stands || matches!(answer, Err(Failure::Unknown(_))) {
                in_doubt = Some(sent.plus(claim.lease).plus(timeout));
            }
            if let (false, Some(until)) = (stands, in_doubt) {
                self.clean_up(claim.clone(), until, now);
            }
            match answer {
                Ok(Attempt::Granted { .. }) if !stands => return Ok(None),
                Ok(Attempt::Granted { fence, .. }) => {
                    hold.set_fence(fence);
                    // The outer level decides how the lock is kept until others are acquired too.
                    let level = hold.add_level(match call.lease {
                        Lease::Kept(lease) => Lease::Fixed(lease),
                        other => other,
                    });
                    self.watch(hold);
                    return Ok(Some(Granted { hold: Arc::clone(hold), level }));
                }
                Ok(Attempt::Lost | Attempt::Busy { .. } | Attempt::InWaitQueue { .. }) => {
                    self.lose(hold, LossReason::Gone);
                    return Ok(None);
                }
                Err(Failure::Refused(error) | Failure::Unknown(error)) => {
                    if in_doubt.is_some() {
                        hold.retire_owner_on_end(); // it may yet set the count: not that of the thread's next hold
                    }
                    let error =
                        retry_budget.note(self.options.retry_timeout, error, now, call.limit.is_over(now))?;
                    if !stands {
                        return Err(error.during(call.action).on(call.name.given()));
                    }
                    drop(report); // before the pause
                    if parker.park(now.plus(random_between(RETRY_PAUSE)), call.interrupt)
                        == Woken::Interrupted
                    {
                        return Err(interrupted(call));
                    }
                }
            }
        }
    }
}
