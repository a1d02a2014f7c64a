//! The watchdog: one thread for each client, which renews holds, and cleans up after requests of unknown
//! outcome. The timer tells it when a renewal is due.
//!
//! A hold is renewed from its grant until its release begins. A renewal that arrives after the release finds
//! no hold in the store.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::engine::core::{Cleanup, Core};
use crate::engine::deadlock::Finder;
use crate::engine::hold::{Hold, free_first, take_free};
use crate::engine::pace::{
    Budget, CLEANUP, CLEANUPS_AHEAD, POLL_COMPLETIONS_EVERY, renewal_period, renewal_slack,
};
use crate::engine::renewals::{Batch, CHUNK, Due};
use crate::error::Result;
use crate::observe::event::Event;
use crate::park::Parker;
use crate::seam::{Capabilities, Claim, Failure, Release};
use crate::shrink::Shrink;
use crate::sync::atomic::Ordering;
use crate::time::Moment;

/// A clean-up that could not be sent is kept for this long after its `from`, even if its `until` has passed:
/// for an expired hold `from` and `until` are the same moment.
const WAITS: Duration = Duration::from_secs(30);

/// The pause after the first failed clean-up. It is short, because the connection that lost the request has
/// probably been replaced, and other owners may wait. The pauses double, up to a 30th of the lease, at
/// most `RETRY_MOST`.
const RETRY_LEAST: Duration = Duration::from_millis(10);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// Longest pause after a clean-up that found nothing, unless the command time-out is longer.
const FOUND_NOTHING: Duration = Duration::from_secs(2);

const FIND_AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn start(core: &Arc<Core>, parker: Parker) -> Result<()> {
    let mut round = Round {
        core: Arc::clone(core),
        due: Due::new(core.options.lease, core.options.command_timeout),
        pace: Budget::default(),
        finder: Finder::new(core),
    };
    core.watchdog.start("leasehold-watch", move || {
        let core = Arc::clone(&round.core);
        core.watchdog.run(&parker, |_woken_for| round.round());
    })
}

struct Round {
    core: Arc<Core>,
    due: Due,
    pace: Budget,
    finder: Finder,
}

impl Round {
    /// Sends a batch of renewals if any are due, else does all other work that is due. Returns when to go on.
    fn round(&mut self) -> Moment {
        // Read before the inbox is emptied. Otherwise a renewal that the timer moves to the inbox in between
        // would be in neither, and a clean-up could delay it.
        let next_renewal = self.core.registry.first_check();
        self.due.add(std::mem::take(&mut self.core.inbox.lock().renewals));
        let now = self.core.clock.now();
        let gone = self.due.let_go(now);
        free_first(gone, |hold| &hold.local).for_each(|hold| self.let_go(&hold));
        let again = match self.due.next(now) {
            Ok(batch) => {
                self.renew(batch);
                return self.core.clock.now(); // more may be due
            }
            Err(again) => again,
        };
        let cleaned = self.clean_up(next_renewal);
        let (core, lease) = (&self.core, self.core.options.lease);
        // No search for deadlocks while renewals fail or a shutdown waits. A search takes at most a sixth of
        // the lease, because renewals wait until it ends.
        let searched = if self.due.is_well() && !core.watchdog.is_stopped() {
            self.finder.round(core.clock.after(core.options.command_timeout.min(lease / 6)))
        } else {
            core.clock.after(FIND_AGAIN)
        };
        let is_awaiting = core.store.poll_completions();
        let now = core.clock.now();
        core.registry.tidy(now);
        let next = now.plus(if is_awaiting { POLL_COMPLETIONS_EVERY } else { renewal_period(lease) });
        next.min(again).min(cleaned).min(searched).max(now.plus(Duration::from_millis(1)))
    }

    fn let_go(&self, hold: &Arc<Hold>) {
        hold.with(|own| own.is_queued = false);
        self.core.watch(hold);
    }

    fn renew(&mut self, mut batch: Batch) {
        let core = &self.core;
        let sent = core.clock.now();
        let (mut asked, mut claims) = (Vec::new(), Vec::new());
        let mut lag = Duration::ZERO;
        // Locks whose mutex is taken wait for the next batch. If all are taken, `take_free` takes out one.
        let free = take_free(&mut batch.items, |item| &item.hold.local);
        self.due.put_off(&mut batch.items);
        for item in free {
            lag = lag.max(item.hold.with(|own| sent.since(own.due())));
            match item.hold.begin_renewal(sent) {
                Some(claim) => {
                    claims.push(Claim { levels: item.hold.count().max(1), ..claim });
                    asked.push(item);
                }
                None => self.let_go(&item.hold),
            }
        }
        if claims.is_empty() {
            return;
        }
        let answers = core.store.renew(&claims, sent.plus(batch.limit));
        let error = answers.iter().find_map(|answer| answer.as_ref().err().map(Failure::error));
        core.reporter.observe_request("renew", sent, &core.clock, error);
        let (mut renewed, mut is_any_lost) = (0, false);
        let answered = asked.into_iter().zip(&claims).zip(answers).collect();
        for ((item, claim), answer) in free_first(answered, |((item, _), _)| &item.hold.local) {
            let hold = &item.hold;
            match answer {
                Ok(is_held) => {
                    batch.answered.insert(hold.home());
                    hold.end_renewal();
                    is_any_lost |= core.renewed(hold, claim, sent, is_held);
                    renewed += u64::from(is_held);
                    self.let_go(hold);
                }
                Err(Failure::Refused(error) | Failure::Unknown(error)) => {
                    if error.outcome_unknown() {
                        hold.retire_owner_on_end(); // the late renewal must not prolong the next hold
                    }
                    hold.end_renewal();
                    hold.with(|own| own.renewal_has_failed = true);
                    let (now, hold) = (core.clock.now(), Arc::clone(hold));
                    // No thread relies on a cached hold, so its failed renewal is not reported.
                    let is_used = !hold.is_cached();
                    core.reporter.counters.renewals_failed.add(u64::from(is_used));
                    if self.due.put_back(&mut batch, item, now) && is_used {
                        let error = error.during("renew").on(hold.name().given());
                        let (name, remaining) = (Arc::clone(hold.name()), hold.until().since(now));
                        let (kind, owner) = (hold.kind().label(), hold.owner());
                        let span = hold.span.around();
                        core.reporter.observe_news(move |observer| {
                            let (name, error) = (name.given(), &error);
                            let event = Event::RenewalFailed { name, kind, owner, error, remaining };
                            span(&|| observer.event(&event));
                        });
                    }
                }
            }
        }
        let now = core.clock.now();
        self.due.report(&batch, now);
        if is_any_lost && core.is_sampled.swap(false, Ordering::SeqCst) {
            let renewed = core.registry.renewed(now);
            core.renew(renewed);
        }
        core.reporter.counters.renewals.add(renewed);
        if renewed > 0 && core.reporter.is_observed() {
            let (holds, took) = (renewed, now.since(sent));
            core.reporter.observe_news(move |observer| observer.event(&Event::Renewed { holds, took, lag }));
        }
    }

    /// Sends some of the clean-ups that are due, and returns when the next ones are. Clean-ups delay renewals
    /// by a sixth of the lease at most. Home nodes that answer no renewals get none.
    fn clean_up(&mut self, next_renewal: Moment) -> Moment {
        let core = &self.core;
        let Options { lease, command_timeout, .. } = core.options;
        let now = core.clock.now();
        let Capabilities { cleaned_up_at_a_time: together, outlasts_leases, .. } = core.store.capabilities;
        let mut asked: Vec<Cleanup> = {
            let mut inbox = core.inbox.lock();
            inbox
                .cleanups
                .retain(|cleanup| cleanup.until.max(cleanup.from.plus(WAITS)) > now || outlasts_leases);
            let is_asked = |cleanup: &mut Cleanup| {
                let is_due = cleanup.repeat.at <= now && !self.due.is_down(cleanup.claim.home);
                let share = CLEANUP / together(cleanup.claim.kind).max(1);
                let is_asked = is_due && self.pace.take(share, CLEANUPS_AHEAD, now);
                if is_due && !is_asked {
                    cleanup.repeat.at = now.plus(CLEANUP);
                }
                is_asked
            };
            inbox.cleanups.extract_if(.., is_asked).take(CHUNK).collect()
        };
        if !asked.is_empty() {
            let limit = next_renewal.since(now).max(lease / 6).min(command_timeout);
            let claims: Vec<Claim> = asked.iter().map(|cleanup| cleanup.claim.clone()).collect();
            let mut answers = core.store.clean_up(&claims, core.clock.after(limit)).into_iter();
            let now = core.clock.now();
            asked.retain_mut(|cleanup| {
                let answer = answers.next();
                // Data that outlasts its lease is cleaned up even after `until`, if a retry may succeed.
                let is_to_be_answered = outlasts_leases
                    && matches!(&answer, Some(Err(failure)) if failure.error().is_retryable());
                let (least, most) = match answer {
                    Some(Ok(Release::Freed { .. })) => {
                        core.registry.nudge(cleanup.claim.kind, &cleanup.claim.name);
                        return false; // the request had been carried out, and is undone now
                    }
                    // Nothing was freed, but the unanswered request may still arrive, so the clean-up is
                    // repeated. A late arrival gets less likely with time, so the pauses grow.
                    Some(Ok(_)) => (command_timeout, command_timeout.max(FOUND_NOTHING)),
                    Some(Err(_)) | None => (RETRY_LEAST, renewal_slack(lease).clamp(RETRY_LEAST, RETRY_MOST)),
                };
                cleanup.repeat.plan(least, most, now);
                is_to_be_answered || cleanup.repeat.at < cleanup.until
            });
        }
        let mut inbox = core.inbox.lock();
        inbox.cleanups.append(&mut asked);
        inbox.cleanups.shrink_if_sparse();
        let waiting = inbox.cleanups.iter().filter(|cleanup| !self.due.is_down(cleanup.claim.home));
        waiting.map(|cleanup| cleanup.repeat.at).min().unwrap_or(Moment::NEVER)
    }
}
