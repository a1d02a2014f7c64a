//! Taking a lock again that the calling thread holds.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, ThreadMark};
use crate::lock::engine::Engine;
use crate::lock::hold::Hold;
use crate::lock::park::{Parker, Woken};
use crate::lock::store::{Answer, Attempt, Kind};
use crate::lock::trouble::Trouble;
use crate::lock::verdict::Verdict;
use crate::lock::wait::{Entered, TROUBLE_PAUSE, Want, interrupted};
use crate::observe::LossReason;
use crate::time::{Lease, Moment, random_between};

/// More re-entries than any program means; what Redisson's counter holds.
const MOST_HOLDS: u32 = i32::MAX as u32;

impl Engine {
    /// The calling thread has what it would wait for: an error, unless it would not wait anyway.
    pub(crate) fn would_wait_for_itself(&self, want: &Want<'_>, words: &str) -> Result<Option<Entered>> {
        if want.until.is_over(self.clock.now()) {
            return Ok(None);
        }
        Err(Error::new(ErrorKind::WouldDeadlock, want.action, words).on(want.name.given()))
    }

    /// Whether the thread has a live hold of this kind.
    pub(crate) fn has_live(&self, kind: Kind, name: &Arc<LockName>, thread: &ThreadMark) -> bool {
        let hold = self.table.of_thread(kind, name, thread.id());
        hold.is_some_and(|hold| hold.is_live(self.clock.now(), &self.reporter))
    }

    /// Adds a level to a live hold; `None` if it turned out to be lost.
    ///
    /// The count is absolute, so a request of unknown outcome is simply repeated. An answer counts as long as the hold
    /// stands without it. Once that has ended, others may have been told so, and may have had the lock.
    pub(crate) fn reenter(
        &self,
        want: &Want<'_>,
        hold: &Arc<Hold>,
        asked: Duration,
    ) -> Result<Option<Entered>> {
        let Some(count) = hold.count().checked_add(1).filter(|count| *count <= MOST_HOLDS) else {
            let detail = format!("this thread holds it {MOST_HOLDS} times already, which is the most");
            return Err(Error::new(ErrorKind::Resource, want.action, detail).on(want.name.given()));
        };
        let mut claim = hold.claim();
        claim.kind = want.kind;
        let wants_fence = want.wants_fence() && hold.fence().is_none();
        let mut trouble = Trouble::default();
        let parker = Parker::new(&self.clock);
        // Until when what was asked here, and was not answered in time, may keep the lock.
        let mut in_doubt: Option<Moment> = None;
        loop {
            self.open(want.action)?;
            let sent = self.clock.now();
            claim.lease = hold.within_ceiling(asked, sent);
            let timeout = self.options.command_timeout;
            let answer = self.store.attempt(&claim, count, wants_fence, sent.plus(timeout));
            let now = self.clock.now();
            let is_granted = matches!(answer, Answer::Done(Attempt::Granted { .. }));
            let mut stands = hold.is_live(now, &self.reporter);
            if stands && is_granted && !hold.confirm(sent, claim.lease, &self.clock) {
                self.aftermath.lose(hold, LossReason::Expired);
                stands = false;
            }
            let verdict = Verdict::of(answer, stands);
            if matches!(verdict, Verdict::TooLate | Verdict::InDoubt(_)) {
                in_doubt = Some(sent.plus(claim.lease).plus(timeout));
            }
            if let (false, Some(until)) = (stands, in_doubt) {
                // Nobody gives back what is lost.
                hold.retire_number();
                self.watchdog.clean_ups().add(claim.clone(), until, now);
            }
            match verdict {
                Verdict::Had { fence } => {
                    hold.set_fence(fence);
                    // What holds it besides says how it is kept until others are had too.
                    let level = hold.add_level(match want.lease {
                        Lease::Kept(lease) => Lease::Fixed(lease),
                        other => other,
                    });
                    self.watch(hold);
                    return Ok(Some(Entered { hold: Arc::clone(hold), level }));
                }
                Verdict::TooLate => return Ok(None),
                Verdict::Gone | Verdict::Busy { .. } => {
                    self.aftermath.lose(hold, LossReason::Gone);
                    return Ok(None);
                }
                Verdict::Failed(error) | Verdict::InDoubt(error) => {
                    if in_doubt.is_some() {
                        hold.spend_number(); // it may yet set the count: not that of the thread's next hold
                    }
                    let error = trouble.note(self, error, now, want.until)?;
                    if !stands {
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
