//! The end of a client: it releases its holds, and ends its threads and connections.

use crate::engine::Engine;
use crate::engine::acquire::call::RETRY_PAUSE;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::is_forked;
use crate::observe::LossReason;
use crate::park::Parker;
use crate::seam::{Claim, Failure};
use crate::time::{Clock, random_between};

/// How often [`Engine::shutdown`] tries to release the holds, if the store refuses.
const LAST_TRIES: u32 = 5;

impl Engine {
    /// Releases all holds and ends the threads. A second call waits for the first, and repeats what failed.
    ///
    /// Takes little more than three command time-outs: for calls, the release, and the entry's removal.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if is_forked() {
            return Ok(());
        }
        self.refused_in_observer("shutdown")?;
        let mut left = self.left.lock();
        let Some(claims) = left.take() else { return Ok(()) };
        let (claims, outcome) = self.end(claims);
        match &outcome {
            Ok(()) => self.close_store(),
            Err(_) => *left = Some(claims),
        }
        outcome
    }

    /// Ends the client when its last clone is dropped. A lock whose release fails is free when its lease
    /// ends.
    pub(super) fn end_for_good(&self) -> Result<()> {
        // The program already has the error of a failed `shutdown`, so the drop does not repeat it.
        let has_failed = self.calls.is_closed() && self.left.lock().is_some();
        let outcome = if has_failed { Ok(()) } else { self.shutdown() };
        if has_failed || outcome.is_err() {
            self.close_store();
        }
        outcome
    }

    fn close_store(&self) {
        self.store.close();
        self.reporter.close();
    }

    fn end(&self, mut claims: Vec<Claim>) -> (Vec<Claim>, Result<()>) {
        self.calls.close();
        // A request that was sent is answered within one time-out, so calls under way end by this deadline.
        // Then all their holds are known, and `end_holds` and `stop` run again.
        let timeout = self.options.command_timeout;
        let deadline = Clock::System.after(timeout + timeout / 8);
        claims.append(&mut self.end_holds());
        self.ended.interrupt();
        claims.append(&mut self.stop());
        let is_still = self.calls.wait(deadline, || self.store.poll_completions());
        claims.append(&mut self.end_holds());
        claims.append(&mut self.stop());
        let (left, outcome) = self.release_all(claims);
        if outcome.is_ok() {
            self.remove_entry(self.one_command());
        }
        if !is_still {
            let words = "a call on another thread did not end in time: a lock that it acquired ends with its lease, or call shutdown() again";
            return (left, outcome.and(Err(Error::new(ErrorKind::TimedOut, "shutdown", words))));
        }
        (left, outcome)
    }

    /// Ends all holds, notifies their holders, wakes waiters, and returns the claims to be released.
    fn end_holds(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        for hold in self.registry.clear() {
            let now = self.clock.now();
            if hold.is_live(now, &self.reporter) {
                hold.lose(LossReason::ShutDown, now, &self.reporter);
                claims.push(hold.claim());
            }
        }
        claims
    }

    /// Releases the holds of these claims. While some requests are refused, repeats the failed ones a few
    /// times: waiters that leave at this moment may use all connections. Returns the claims that were not
    /// released, and the first failure.
    fn release_all(&self, mut claims: Vec<Claim>) -> (Vec<Claim>, Result<()>) {
        let deadline = self.one_command();
        for tries_left in (0..LAST_TRIES).rev() {
            if claims.is_empty() {
                break;
            }
            let answers = self.store.clean_up(&claims, deadline).into_iter();
            let failed =
                claims.into_iter().zip(answers).filter_map(|(claim, answer)| Some((claim, answer.err()?)));
            let (left, failures): (Vec<Claim>, Vec<Failure>) = failed.unzip();
            claims = left;
            let (Some(first), Some(claim)) = (failures.first(), claims.first()) else { break };
            let may_succeed =
                |failure: &Failure| matches!(failure, Failure::Refused(error) if error.is_retryable());
            // After the deadline the store refuses each request without sending it.
            let goes_on = tries_left > 0 && self.clock.now() < deadline && failures.iter().any(may_succeed);
            if !goes_on {
                let error = first.error().copy().during("shutdown").on(claim.name.given());
                return (claims, Err(error));
            }
            // Uses the system's clock, because perhaps no thread is left to advance a manual one.
            let later = Clock::System.after(random_between(RETRY_PAUSE));
            Parker::new(&Clock::System).park(later, None);
        }
        (claims, Ok(()))
    }
}
