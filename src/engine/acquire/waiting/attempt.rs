//! One attempt of a waiter: its claim, the reaction to each answer, and the hold of a grant.

use std::sync::Arc;
use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, LockConfig};
use crate::engine::hold::{Hold, Holder, QueuePlace};
use crate::engine::lock::caching::RULES;
use crate::engine::waiter::PendingHandoff;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{FencingToken, unbound_number};
use crate::inspect::Location;
use crate::observe::event::Event;
use crate::observe::spans::WaitSpan;
use crate::seam::{
    Answer, Attempt, Bound, Claim, Failure, Handoff, HoldNote, Kind, ListensFor, QueueMode, granted_too_late,
};
use crate::task::TaskMarker;
use crate::time::{Lease, Moment, random_between, window};

/// Names of the requests in reports to observers.
const ATTEMPT: &str = "acquire";
const HANDOFF: &str = "hand_off";

impl Waiting<'_> {
    pub(super) fn ask(&mut self) -> Result<Step> {
        // Messages are counted before the attempt. A release after the attempt changes the count, so `sleep`
        // returns at once. Pairs with `Channel::notify`.
        let heard = self.listening.note_heard();
        self.wait_mode.become_next(heard == Some(true));
        self.release_watch.note_heard();
        let (claim, engine) = (self.next_claim()?, self.engine);
        if heard.is_none() && self.waits {
            // This waiter has no subscription yet, but others here may have one: see `Listening::unheard`.
            let count = engine.store.message_count(&claim);
            (self.listening.unheard, self.listening.message_count) = (count, count);
        }
        self.next_poll = None;
        let sent = engine.clock.now();
        if let Some(left) = self.capabilities.majority.as_ref().and_then(|all| all.held_off(&claim)) {
            return Ok(Step::Sleep(sent.plus(left + Duration::from_millis(1))));
        }
        let answer =
            engine.store.attempt(&claim, 1, sent.plus(engine.options.command_timeout).min(self.latest));
        self.answered(ATTEMPT, claim, sent, answer)
    }

    /// Handles the answer to an attempt that a multi-lock sent at `sent`. Does not wait.
    pub(crate) fn came(
        &mut self,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Option<Granted>> {
        let call = self.call;
        let ended = self.answered(ATTEMPT, claim, sent, answer).and_then(|step| self.last(step));
        self.report_given_up(&ended);
        ended.map_err(|error| error.during(call.action).on(call.name.given()))
    }

    pub(crate) fn next_claim(&mut self) -> Result<Claim> {
        let (claim, engine, call) = (self.claim(), self.engine, self.call);
        if call.kind == Kind::Read
            && call.by_thread
            && let Some(words) = engine.own_hold_in_the_way(call, self.thread, Some(claim.owner))
        {
            engine.would_wait_for_itself(call, words)?;
        }
        if std::mem::replace(&mut self.home, claim.home) != claim.home {
            self.listening.subscription = None; // messages come from the new home node
        }
        if (self.store_queues() || self.announces()) && claim.waits {
            self.queue_as(&claim);
        }
        Ok(claim)
    }

    /// Handles an answer that was read just now. Reports a grant only after its hold was entered: an observer
    /// takes time, and the grant would not count if its owner number were retired meanwhile.
    fn answered(
        &mut self,
        op: &'static str,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Step> {
        let Waiting { engine, call, thread, .. } = *self;
        let answer = if claim.kind.only_asks() { answer.map_err(Failure::of_reading) } else { answer };
        let is_granted = matches!(answer, Ok(Attempt::Granted { .. }));
        let window = if is_granted { self.window_of(&claim, sent) } else { None };
        let report = |error| engine.reporter.report_request(op, sent, &engine.clock, error);
        if op == ATTEMPT {
            self.attempts = self.attempts.saturating_add(1);
            self.is_answered = answer.is_ok();
            let is_well = answer.is_ok() && is_granted == window.is_some();
            if is_well && (self.failure.is_some() || self.parker.is_some()) {
                self.failure = None;
                call.local.note_failure(None);
            }
        }
        if !is_granted {
            report(answer.as_ref().err().map(Failure::error));
        }
        match answer {
            Ok(Attempt::Granted { fence, queued }) => {
                let mut granted = None;
                if let Some(bound) = window {
                    // The grant of an attempt takes the client out of the wait queue; a hand-off between its
                    // threads does not.
                    if op == ATTEMPT && (self.wait_mode.may_stand() || call.kind == Kind::Read) {
                        let mut state = call.local.state();
                        state.queued = false;
                        if call.kind.is_counted() {
                            state.queue.nudge_apart();
                        }
                        self.wait_mode.change(QueueMode::Waits, false);
                    }
                    self.queued = None;
                    granted = self.enter(&claim, (sent, bound), fence, queued);
                }
                let Some(granted) = granted else {
                    report(None);
                    return self.granted_too_late(claim, sent);
                };
                if queued > 0 && call.may_cache_slice() {
                    let now = engine.clock.now();
                    call.local.on(now, |lock, at| lock.caching.begin(queued, at));
                    engine.registry.remember(call.local, now);
                }
                if engine.writes_here(call, thread) {
                    engine.end_writing_in_time(call, thread, &granted.hold);
                }
                // Reported after `end_writing_in_time`: the write hold may expire during a slow observer.
                report(None);
                let wait = (self.begun, self.attempts, self.coming);
                engine.report_granted(call, &granted.hold, wait, &self.span);
                engine.unless_shut_down(call, granted).map(Step::Granted)
            }
            Ok(Attempt::InWaitQueue { retry_after, listens_for, watches }) => {
                Ok(self.stand_in_queue(retry_after, listens_for, watches))
            }
            Ok(Attempt::Busy { retry_after }) => {
                self.coming = None;
                self.end_release_watch();
                self.listening.listen_for(ListensFor::Releases);
                if claim.kind == Kind::Read && claim.waits && !claim.writers_first {
                    call.local.state().queued = true; // the store has registered this client's readers
                }
                // One millisecond more, so that the lease has certainly ended.
                let ends = retry_after.map(|left| left + Duration::from_millis(1));
                Ok(self.sleep_for(self.pause(), ends))
            }
            Ok(Attempt::Lost) if op == ATTEMPT => {
                let words = "a first hold was answered like a re-entry";
                Err(Error::new(ErrorKind::Protocol, call.action, words))
            }
            Ok(Attempt::Lost) => Ok(Step::Again),
            Err(Failure::Refused(error)) => self.pause_after(error, false),
            Err(Failure::Unknown(error)) => {
                engine.reporter.counters.unknown_outcomes.add(1);
                let (name, kind) = (call.name.given(), call.kind.label());
                let event = Event::UnknownOutcome { name, kind, error: &error };
                engine.reporter.report(|observer| observer.event(&event));
                self.leave_behind(claim, sent);
                self.pause_after(error, false)
            }
        }
    }

    fn granted_too_late(&mut self, claim: Claim, sent: Moment) -> Result<Step> {
        self.leave_behind(claim, sent);
        let took = self.engine.clock.now().since(sent);
        if !is_late(self.lease, took) {
            return Ok(Step::Again); // the session has ended, or the owner number was retired
        }
        self.pause_after(granted_too_late(self.call.action, self.lease, took), true)
    }

    /// The step after a busy answer: a sleep for `poll`, or for `at_most` if that is shorter, because the
    /// store may answer differently then.
    pub(super) fn sleep_for(&self, poll: Duration, at_most: Option<Duration>) -> Step {
        Step::Sleep(self.engine.clock.after(at_most.map_or(poll, |most| most.min(poll))))
    }

    pub(super) fn pause(&self) -> Duration {
        let poll = random_between((self.capabilities.poll_every)(self.call.kind));
        match self.call.config.backoff {
            // A longer pause would let the waiter's place in the store's queue expire.
            Some(backoff) if self.store_queues() => backoff.pause(self.attempts).min(poll),
            Some(backoff) => backoff.pause(self.attempts),
            None => poll,
        }
    }

    pub(super) fn receive(&mut self, place: &QueuePlace, handoff: PendingHandoff) -> Result<Step> {
        let (claim, sent, waits) = (handoff.to.clone(), handoff.sent, handoff.releaser.waits);
        let answer = handoff.receive().map(|handoff| match handoff {
            Handoff::Granted { fence } => Attempt::granted(fence),
            Handoff::Lost => Attempt::Lost,
        });
        let is_refused = waits && matches!(answer, Err(Failure::Refused(_)));
        self.coming = Some((sent, true));
        let step = self.answered(HANDOFF, claim, sent, answer);
        // The old hold is removed last: from then on the releaser's thread may attempt, and must find the new
        // hold. Pairs with `Machine::held_here`.
        let ended = place.local.state().received(place.ticket, is_refused);
        drop(ended); // without the mutex
        step
    }
}

pub(super) fn is_late(lease: Duration, took: Duration) -> bool {
    took > window(lease) * 3 / 4
}

impl Waiting<'_> {
    /// The claim for the next request. Built anew each time, because the owner number may have been retired.
    pub(super) fn claim(&mut self) -> Claim {
        let Waiting { engine, call, .. } = *self;
        let number = engine.next_number(self.capabilities, self.thread, &mut self.unbound);
        let claim = engine.claim(self.capabilities, (call.kind, call.name), number, self.lease);
        let LockConfig { writers_first, max_hold, leads, .. } = call.config;
        let note = max_hold.map(|max_hold| HoldNote { max_hold, place: Arc::new(Location::here()) });
        // Recalls are counted before the attempt, because a recall that comes later may concern this hold.
        self.heard = if call.caches() { engine.heard(call.local, &claim) } else { None };
        Claim {
            caches: self.heard.is_some() && self.unbound.is_none(),
            waits: self.waits,
            queue_mode: self.wait_mode.queue_mode,
            listens_for: self.listening.listens_for,
            units: call.units,
            leads,
            writers_first,
            waited: self.waited(),
            note,
            wants_fence: call.wants_fence(),
            ..claim
        }
    }

    fn waited(&self) -> Duration {
        let Waiting { engine, call, thread, .. } = *self;
        match call.kind {
            Kind::Read
                if !call.by_thread && engine.live_hold(Kind::Read, call.name, thread.id()).is_some() =>
            {
                Duration::MAX
            }
            Kind::Read | Kind::Write | Kind::Semaphore | Kind::Permits if self.attempts > 0 => {
                // At least 1 ms, the stores' unit: zero would mean a first attempt.
                engine.clock.now().since(self.begun).max(Duration::from_millis(1))
            }
            _ => Duration::ZERO,
        }
    }

    /// Enters the hold of a grant, and gives up `self.place`. `bound` is what else ends the hold, such as a
    /// session; `queued` the number of clients in the store's queue. `None`: the grant does not count.
    fn enter(
        &mut self,
        claim: &Claim,
        (sent, bound): (Moment, Option<Arc<dyn Bound>>),
        fence: Option<FencingToken>,
        queued: u32,
    ) -> Option<Granted> {
        let Waiting { engine, call, thread, .. } = *self;
        let holder = if call.by_thread {
            Holder::Thread { id: thread.id(), mark: Arc::downgrade(thread), task: TaskMarker::current() }
        } else {
            let is_of_task = TaskMarker::current().is_some();
            Holder::Guard { taker: (!is_of_task).then(|| Arc::downgrade(thread)) }
        };
        let is_kept = matches!(call.lease, Lease::Kept(_));
        let renewed_lease = if is_kept { claim.lease } else { engine.options.lease };
        let mut hold = Hold::new(claim, holder, sent, renewed_lease, call.local);
        hold.set_fence(fence);
        (hold.bound, hold.ceiling) = (bound, call.config.max_hold.map(|most| sent.plus(most)));
        (hold.may_be_cached, hold.leads) = (call.may_cache_slice(), call.config.leads);
        let (hold, mut state, level) = hold.begin(call.lease);
        state.asks_to_cache = call.caches();
        let heard = self.heard.filter(|_| claim.caches).map(|heard| (heard, engine.clock.now()));
        if let Some((heard, now)) = heard {
            let is_wanted = queued > 1; // this client is included
            state.until_recall(heard, is_wanted, now, RULES.first_check);
        }
        let look = call.local.enter(state, &mut self.place, &engine.clock)?;
        engine.timer.run_by(look);
        if let Some((_, now)) = heard {
            engine.core.cache_thread.watch(call.local, now.plus(RULES.first_check));
        }
        Some(Granted { hold, level })
    }

    /// Decides whether a grant counts that was requested at `sent` and read just now. Returns what else ends
    /// the hold besides its lease, such as a session. `None`: the caller must undo the grant.
    pub(super) fn window_of(&self, claim: &Claim, sent: Moment) -> Option<Option<Arc<dyn Bound>>> {
        let bound = self.capabilities.sessions.as_ref().and_then(|sessions| sessions.bound(claim));
        let bound_until = bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        // Under a retired number, the watchdog may still repeat a release of this lock or of its other half,
        // which would free the new hold. A Redlock accepts no retired number at all.
        let number = claim.owner.number();
        let is_given_up = self.unbound.is_none()
            && self.thread.number() != number
            && (self.call.local.state().retired.has(number)
                || claim.kind.other_half().is_some()
                || self.capabilities.majority.is_some());
        let now = self.engine.clock.now();
        let is_open = now < bound_until.min(sent.plus(window(claim.lease)));
        // With less than a quarter of the lease left, the watchdog might renew too late.
        let is_renewed = self.call.lease.is_renewed() && claim.kind.is_leased() && !claim.kind.only_asks();
        let is_too_late = is_renewed && is_late(claim.lease, now.since(sent));
        (is_open && !is_too_late && !is_given_up).then_some(bound)
    }

    pub(super) fn give_up_number(&mut self, claim: &Claim) {
        match &mut self.unbound {
            Some(number) => *number = unbound_number(),
            None => self.call.local.retire(self.thread, claim.owner),
        }
    }
}

impl Engine {
    /// Reports a grant to observers. `coming`: when a message woke the waiter, or (`true`) when a thread of
    /// this client sent the hand-off.
    pub(crate) fn report_granted(
        &self,
        call: &AcquireCall<'_>,
        hold: &Hold,
        (started, attempts, coming): (Moment, u32, Option<(Moment, bool)>),
        span: &WaitSpan,
    ) {
        let (name, kind, owner) = (call.name.given(), call.kind.label(), hold.owner());
        let fence = hold.fencing_token();
        self.reporter.counters.grants.add(1);
        span.granted(owner, fence, attempts);
        hold.span.open(name, kind, owner, fence);
        self.reporter.report(|observer| {
            let now = self.clock.now();
            let waited = now.since(started);
            observer.event(&Event::Acquired { name, kind, owner, waited, attempts });
            if let Some((since, is_local)) = coming {
                let took = now.since(since);
                observer.event(&Event::HandedOff { name, kind, owner, is_local, took });
            }
        });
    }
}
