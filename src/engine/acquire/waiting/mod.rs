//! The wait of one caller for one lock: the crate's only waiting loop.
//!
//! A waiter joins the local queue of its lock. The head of this queue attempts, listens for messages, and
//! sleeps. The others sleep until they become the head, or are handed the lock. Of some kinds all waiters
//! attempt (`all_ask`).

mod attempt;
mod sleep;
mod store_queue;
mod wait_mode;

use std::sync::Arc;
use std::time::Duration;

use self::wait_mode::{Listening, WaitMode};
use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, ONCE};
use crate::engine::hold::QueuePlace;
use crate::engine::lock::{Look, Withdrawn};
use crate::engine::waiter::PendingHandoff;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ThreadMarker, unbound_number};
use crate::observe::event::{Event, GaveUpReason};
use crate::observe::spans::WaitSpan;
use crate::park::Parker;
use crate::seam::{Capabilities, Claim, Kind, QueueMode};
use crate::time::{Moment, random_between};

pub(crate) struct Waiting<'a> {
    engine: &'a Engine,
    capabilities: &'a Capabilities,
    call: &'a AcquireCall<'a>,
    thread: &'a Arc<ThreadMarker>,
    lease: Duration,
    begun: Moment,
    /// When the call must return: one command time-out after the caller's limit.
    latest: Moment,
    unbound: Option<u64>,
    /// The number of recalls received before the last claim was made.
    heard: Option<u64>,
    /// The place in the local queue of a caller that has joined already, because the lock was uncontended. A
    /// grant gives the place up.
    place: Option<QueuePlace>,
    wait_mode: WaitMode,
    /// Whether the caller waits, or has a place in the store's queue. If not, its attempt must not join that
    /// queue.
    waits: bool,
    all_ask: bool,
    /// The claim under which this caller may be in the store's queue, or registered as a waiting writer.
    queued: Option<Claim>,
    home: u32,
    is_answered: bool,
    listening: Listening,
    release_watch: Listening,
    watch_releases_at: Option<Moment>,
    /// After a wake-up that needs no attempt, the waiter sleeps on until this moment.
    sleep_on: Option<Moment>,
    /// When the waiter attempts even if a thread of this process still has a hold.
    next_poll: Option<Moment>,
    parker: Option<Parker>,
    /// Since when this waiter has had only failures, and the last failure.
    failure: Option<(Moment, Error)>,
    span: WaitSpan,
    attempts: u32,
    is_waiting: bool,
    /// The cause of the grant: the moment when a message woke this waiter (`false`), or when a thread of this
    /// client sent the hand-off (`true`).
    coming: Option<(Moment, bool)>,
}

enum Step {
    Granted(Granted),
    Sleep(Moment),
    /// Until this moment the waiter sends nothing, and accepts no hand-off.
    Pause(Moment),
    Again,
}

impl<'a> Waiting<'a> {
    /// `number`: a fresh owner number instead of the thread's. Earlier requests under the thread's number may
    /// arrive later, on another connection, and must not find the new hold.
    pub(crate) fn new(
        engine: &'a Engine,
        capabilities: &'a Capabilities,
        call: &'a AcquireCall<'a>,
        lease: Duration,
        (thread, number): (&'a Arc<ThreadMarker>, Option<u64>),
        begun: Moment,
    ) -> Waiting<'a> {
        let (store_queues, spins) = ((capabilities.queues)(call.kind), call.config.backoff.is_some());
        // The release of a token lock compares only the token, so a late release would free a later hold with
        // the same token. Each wait has a token of its own.
        let is_threads = call.by_thread && !call.kind.is_token();
        let queue_mode = if spins { QueueMode::Barges } else { QueueMode::Waits };
        Waiting {
            engine,
            capabilities,
            call,
            thread,
            lease,
            begun,
            latest: call.limit.max(begun).plus(engine.options.command_timeout),
            unbound: number.or(call.number).or_else(|| (!is_threads).then(unbound_number)),
            heard: None,
            place: None,
            wait_mode: WaitMode::new(queue_mode, store_queues),
            waits: true,
            all_ask: store_queues
                || call.kind.is_counted() && !(call.kind.has_permits() && call.units == 1)
                || engine.writes_here(call, thread),
            queued: None,
            home: 0,
            is_answered: true,
            listening: Listening::default(),
            release_watch: Listening::default(),
            watch_releases_at: None,
            sleep_on: None,
            next_poll: None,
            parker: None,
            failure: None,
            span: WaitSpan::open(call.name.given(), call.kind.label()),
            attempts: 0,
            is_waiting: false,
            coming: None,
        }
    }

    /// Makes the attempt join no queue in the store. `keeps_place`: the caller has a place there already, and
    /// leaves it on drop.
    pub(crate) fn ask_once(&mut self, queue_mode: QueueMode, keeps_place: bool) {
        (self.wait_mode, self.waits) = (WaitMode::new(queue_mode, true), keeps_place);
    }

    fn store_queues(&self) -> bool {
        (self.capabilities.queues)(self.call.kind)
    }

    /// Whether this writer registers in the store that it waits, so that readers let it go first.
    fn announces(&self) -> bool {
        self.call.kind == Kind::Write && self.call.config.writers_first
    }

    /// `place`: the caller's place in the local queue, if the lock was uncontended and the call may wait;
    /// such a call has joined already.
    pub(crate) fn run(&mut self, is_uncontended: bool, place: Option<QueuePlace>) -> Result<Option<Granted>> {
        self.place = place;
        let ended = self.take_or_give_up(is_uncontended);
        self.report_given_up(&ended);
        ended
    }

    fn report_given_up(&self, ended: &Result<Option<Granted>>) {
        let reason = match ended {
            Ok(Some(_)) => return,
            Ok(None) if self.call.limit == ONCE => GaveUpReason::Busy,
            Ok(None) => GaveUpReason::TimedOut,
            Err(error) if error.kind() == ErrorKind::Interrupted => GaveUpReason::Interrupted,
            Err(error) => GaveUpReason::Failed(error),
        };
        self.engine.reporter.counters.gave_up.add(1);
        self.span.gave_up(&reason, self.attempts);
        if self.engine.reporter.is_observed() {
            let (name, kind, attempts) = (self.call.name.given(), self.call.kind.label(), self.attempts);
            let waited = self.engine.clock.now().since(self.begun);
            let event = Event::GaveUp { name, kind, waited, attempts, reason };
            self.engine.reporter.report(|observer| observer.event(&event));
        }
    }

    fn take_or_give_up(&mut self, is_uncontended: bool) -> Result<Option<Granted>> {
        let Waiting { engine, call, begun, .. } = *self;
        let is_try = begun >= call.limit;
        if is_try {
            self.ask_once(QueueMode::Barges, call.number.is_some());
            let is_held_here = || call.local.state().held_here(engine.clock.now()).is_some();
            if !is_uncontended && !call.kind.is_shared() && is_held_here() {
                return Ok(None);
            }
        }
        let (place, first) = if is_uncontended || is_try {
            let first = self.ask();
            let Some(place) = self.place.take() else {
                return first.and_then(|granted| self.last(granted));
            };
            (place, first)
        } else {
            // Waiters that spin, or all attempt at a counter, queue apart: others must not wait for them.
            let is_apart = call.config.backoff.is_some() || call.kind.is_counted() && self.all_ask;
            let place = call.local.join(is_apart);
            if !place.is_head() {
                self.wait_mode.become_in_doubt(); // the head may have put the client into the wait queue
            }
            // A client sends no recall to itself, so the waiter, once in the queue, has the cached hold
            // released. Pairs with `Machine::cache`, which caches until a recall only if no thread waits.
            let is_idle = call.local.state().is_idle();
            if is_idle {
                engine.core.release_cached(call.local, None);
            }
            let first = self.step(&place);
            (place, first)
        };
        let mut ended = first.and_then(|first| self.wait(&place, first));
        if !matches!(ended, Ok(Some(_)))
            && let Some(handoff) = self.take_back(&place)
        {
            match self.receive(&place, handoff) {
                Ok(Step::Granted(granted)) => ended = Ok(Some(granted)),
                Ok(Step::Sleep(_) | Step::Pause(_) | Step::Again) => {}
                Err(error) => ended = Err(error),
            }
        }
        self.leave_wait_queue(&place);
        let wait = Arc::clone(&place.wait);
        // The hold was entered before the place is left, so the next head finds the hold and waits for it.
        drop(place);
        // The watchdog removes a published wait from the client's entry. `published` is read after the queue
        // was left, so it is final.
        if wait.published.get().is_some() {
            self.engine.find_by(Moment::from_nanos(0));
        }
        ended
    }

    fn wait(&mut self, place: &QueuePlace, first: Step) -> Result<Option<Granted>> {
        let mut step = first;
        loop {
            match step {
                Step::Granted(granted) => return Ok(Some(granted)),
                Step::Sleep(wake_at) => self.sleep(place, wake_at)?,
                Step::Pause(until) => self.pause_until(until)?,
                Step::Again => {}
            }
            if self.engine.clock.now() >= self.call.limit {
                return self.last(Step::Again);
            }
            step = self.step(place)?;
        }
    }

    /// One step: receives a hand-off, attempts, or returns until when to sleep. Fails if the client has
    /// ended, if this wait must end to break a deadlock, or if the head of the local queue has had only
    /// failures for `retry_timeout`.
    fn step(&mut self, place: &QueuePlace) -> Result<Step> {
        let (engine, call, now) = (self.engine, self.call, self.engine.clock.now());
        engine.open(call.action)?;
        if self.parker.is_some() {
            if let Some(ring) = place.wait.ends_for.get() {
                let words =
                    format!("{ring}; this youngest wait was ended: release all locks and begin again");
                return Err(Error::new(ErrorKind::Deadlock, call.action, words));
            }
            let spent = call.local.spent_retry_budget(engine.options.retry_timeout, now);
            spent.map_or(Ok(()), Err)?;
        }
        // Several waiters may get permits at once, so each attempts once before it queues here.
        let is_first_try = call.kind.has_permits() && self.attempts == 0;
        match place.look(self.all_ask || is_first_try, self.asks_for_itself(), now) {
            Look::Behind => return Ok(Step::Sleep(Moment::NEVER)),
            Look::OnItsWay => {
                // The end of the hand-off wakes this thread. Until then the thread ignores messages and sends
                // nothing, because the hold that is handed off may have this thread's number.
                self.parker(place);
                self.listening.pass_over();
                return Ok(Step::Sleep(self.next_poll()));
            }
            Look::HeldHere(until) => {
                // The release of the local hold wakes this waiter. But the store may have lost the hold, so
                // the waiter still polls now and then.
                let next_poll = self.next_poll();
                let poll = *self.next_poll.get_or_insert(next_poll);
                if now < poll {
                    return Ok(Step::Sleep(until.min(poll)));
                }
            }
            Look::Receive => self.sleep_on = None,
            Look::Free => {}
        }
        if let Some(until) = self.sleep_on.take().filter(|until| now < *until) {
            return Ok(Step::Sleep(until));
        }
        match self.take_back(place) {
            Some(handoff) => self.receive(place, handoff),
            None => {
                self.stand_back();
                self.ask()
            }
        }
    }

    /// Withdraws this waiter's offer to accept a hand-off. `Some`: a hand-off to it was sent already, and the
    /// waiter must receive that.
    fn take_back(&mut self, place: &QueuePlace) -> Option<PendingHandoff> {
        loop {
            match place.withdraw() {
                (Withdrawn::Promised, _) => drop(self.parker(place).park(Moment::NEVER, None)),
                (Withdrawn::Free | Withdrawn::Given, handed) => return handed,
            }
        }
    }

    /// Whether this waiter attempts despite a local hold: the store may grant a second one, or must know that
    /// it waits.
    fn asks_for_itself(&self) -> bool {
        self.all_ask || self.announces() || self.call.kind.is_shared()
    }

    fn parker(&mut self, place: &QueuePlace) -> &Parker {
        let parker = self.parker.get_or_insert_with(|| Parker::new(&self.engine.clock));
        place.wait.set_waker(parker.waker());
        parker
    }

    fn next_poll(&self) -> Moment {
        self.engine.clock.after(random_between((self.capabilities.poll_every)(self.call.kind)))
    }

    fn last(&mut self, step: Step) -> Result<Option<Granted>> {
        if let Step::Granted(granted) = step {
            return Ok(Some(granted));
        }
        self.failure.take().map_or(Ok(None), |(_, error)| Err(error))
    }
}

impl Drop for Waiting<'_> {
    /// Leaves the store's queue however the call ends: a place that nobody uses would delay other waiters.
    fn drop(&mut self) {
        if self.is_waiting {
            self.engine.reporter.counters.end_wait();
        }
        if let Some(claim) = self.queued.take() {
            self.leave_queue(claim);
        }
        self.end_release_watch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::acquire::call::{Backoff, LockConfig};
    use crate::seam::PLACE_LASTS;

    #[test]
    fn an_attempt_of_a_caller_that_does_not_wait_joins_no_queue() {
        let engine = crate::LockClient::in_memory().get_lock("a").engine.clone();
        let name = crate::tests::name("a");
        let local = engine.registry.local(Kind::Mutex, &name);
        let call = AcquireCall::new("lock", Kind::Mutex, (&name, &local), ONCE);
        let (thread, lease) = (ThreadMarker::current(), Duration::from_secs(1));
        let capabilities = &engine.store.capabilities;
        let mut waiting = Waiting::new(&engine, capabilities, &call, lease, (&thread, None), Moment::NEVER);
        let sent = |claim: Claim| (claim.queue_mode, claim.waits);
        assert_eq!(sent(waiting.claim()), (QueueMode::Waits, true));
        for keeps_place in [true, false] {
            waiting.ask_once(QueueMode::Yields, keeps_place);
            assert_eq!(sent(waiting.claim()), (QueueMode::Yields, keeps_place));
        }
    }

    #[test]
    fn a_slowly_spinning_fair_waiter_keeps_its_place() {
        let hour = Duration::from_secs(3600);
        let engine = crate::LockClient::in_memory().get_fair_lock("a").engine.clone();
        let name = crate::tests::name("a");
        let pause = |kind, backoff| {
            let config = LockConfig { backoff: Some(backoff), ..LockConfig::default() };
            let local = engine.registry.local(kind, &name);
            let call = AcquireCall::new("lock", kind, (&name, &local), ONCE);
            let call = AcquireCall { config, by_thread: true, ..call };
            let thread = ThreadMarker::current();
            Waiting::new(&engine, &engine.store.capabilities, &call, hour, (&thread, None), Moment::NEVER)
                .pause()
        };
        assert!(pause(Kind::Mutex, Backoff::constant(hour)) >= hour / 2);
        assert!(pause(Kind::Fair, Backoff::constant(hour)) < PLACE_LASTS / 2);
        let soon = Duration::from_millis(1);
        assert!(pause(Kind::Fair, Backoff::constant(soon)) <= soon);
    }
}
