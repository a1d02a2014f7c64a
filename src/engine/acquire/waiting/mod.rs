//! One caller's wait for a lock: the crate's only waiting loop.
//!
//! A waiter stands in the local queue of its lock. The head of that queue asks the store, listens, and
//! sleeps. Each other waiter sleeps until it is the head, or until the lock is handed to it.

mod attempt;
mod grant;
mod leave;
mod line;
mod lookout;
mod report;
mod sleep;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::acquire::line_place::LinePlace;
use crate::engine::acquire::lookout::Lookout;
use crate::engine::acquire::retry::RetryBudget;
use crate::engine::handoff::PendingHandoff;
use crate::engine::hold::{Asking, QueuePlace};
use crate::engine::queue::ClosedOffer;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ThreadMark, unbound_number};
use crate::observe::spans::WaitSpan;
use crate::park::Parker;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Bound, Claim, Kind, Turn};
use crate::time::{Moment, random_between};

/// One caller's wait for a lock that its owner does not hold yet.
pub(crate) struct Waiting<'a> {
    engine: &'a Engine,
    call: &'a AcquireCall<'a>,
    asked: Duration,
    thread: &'a Arc<ThreadMark>,
    started: Moment,
    /// The owner number, where the owner is not the thread.
    unbound: Option<u64>,
    /// Whether the store queues waiters of this kind, and serves them in its own order.
    store_queues: bool,
    /// Whether all who wait here ask, not only the first.
    all_ask: bool,
    /// Whether the store is to know that this writer waits, so that readers let it go first.
    announces: bool,
    /// By when the call is to return: a command time-out after the caller's time.
    latest: Moment,
    /// It has slept for the lock, and the observer knows.
    is_waiting: bool,
    /// Since when the lock is on its way here, and whether from a thread of this client: for the observer.
    coming: Option<(Moment, bool)>,
    /// Whether the last request was answered.
    is_answered: bool,
    attempts: u32,
    span: WaitSpan,
    /// The home that the last attempt went to.
    home: u32,
    retry_budget: RetryBudget,
    /// The end of the hold that was just granted, besides its lease.
    bound: Option<Arc<dyn Bound>>,
    parker: Option<Parker>,
    subscription: Option<Subscription>,
    /// The message count of the channel before the last attempt. `None`: no subscription stood then.
    message_count: Option<u64>,
    /// Whether a message was the reason for the last attempt.
    is_by_message: bool,
    lookout: Lookout,
    /// It does not ask until then, whatever happens.
    pauses_until: Option<Moment>,
    /// While a hold of this process stands: when the store is asked all the same.
    next_poll: Option<Moment>,
    /// Whether the store is to give this caller a place, where it queues.
    waits: bool,
    /// How it goes by the store's line of waiting clients, but for what `line` adds.
    turn: Turn,
    line: LinePlace,
    /// Under which claim this caller may stand in the store's queue, or as a writer that waits.
    queued: Option<Claim>,
}

/// An attempt that was made before there was a waiter: see `first.rs`.
pub(crate) struct Asked {
    /// None, if the caller does not wait.
    pub(crate) asking: Option<Asking>,
    pub(crate) claim: Claim,
    /// The messages of its channel before it was made, if a subscription to it stood.
    pub(crate) message_count: Option<u64>,
    pub(crate) sent: Moment,
    pub(crate) answer: Answer<Attempt>,
}

/// The next step of a waiter.
enum Step {
    /// Read the answer of a hand-off to this waiter.
    Receive(PendingHandoff),
    /// Ask the store.
    Ask,
    /// Sleep until then, if nothing wakes before.
    Sleep(Moment),
    /// Look again at once.
    Again,
}

/// The result of one step, for the loop.
enum Progress {
    Granted(Granted),
    /// Try again when this time has come, if nothing wakes before.
    Later(Moment),
    /// Try again at once, unless the deadline has passed.
    Again,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        call: &'a AcquireCall<'a>,
        asked: Duration,
        thread: &'a Arc<ThreadMark>,
        begun: Moment,
        span: WaitSpan,
    ) -> Waiting<'a> {
        // A token is compared, not counted: were it reused, a late release could free the next hold.
        let own_number = call.by_thread && !call.kind.is_token();
        let store_queues = (engine.store.capabilities().queues)(call.kind);
        Waiting {
            engine,
            call,
            asked,
            thread,
            started: begun,
            unbound: (!own_number).then(|| call.terms.number.unwrap_or_else(unbound_number)),
            store_queues,
            all_ask: store_queues || call.kind.is_counted() || engine.writes_here(call, thread),
            announces: call.kind == Kind::Write && call.terms.writers_first,
            latest: call.limit.moment(begun).max(begun).plus(engine.options.command_timeout),
            is_waiting: false,
            coming: None,
            is_answered: true,
            attempts: 0,
            span,
            home: 0,
            retry_budget: RetryBudget::default(),
            bound: None,
            parker: None,
            subscription: None,
            message_count: None,
            is_by_message: false,
            lookout: Lookout::default(),
            pauses_until: None,
            next_poll: None,
            waits: true,
            turn: if call.terms.backoff.is_some() { Turn::Barges } else { Turn::Waits },
            line: LinePlace::default(),
            queued: None,
        }
    }

    /// The same under a number of its own, although the owner is the thread: what is asked by another way
    /// than the thread's other requests about the lock could come before them, and is not to meet what they
    /// are about.
    pub(crate) fn under(mut self, number: u64) -> Waiting<'a> {
        self.unbound = Some(number);
        self
    }

    /// The same, but a busy attempt takes no place in the store's queue: a caller that waits asks again. One
    /// that does not wait takes a lock that is kept for another client, as it does where it asks for one
    /// lock. Pairs with `take_or_give_up`.
    pub(crate) fn asking_once(mut self, is_only_try: bool) -> Waiting<'a> {
        self.waits = false;
        self.turn = if is_only_try { Turn::Barges } else { Turn::Yields };
        self
    }

    /// Waits for the lock, and before that sees to the answer of the attempt that was made already.
    #[cold]
    pub(crate) fn run(mut self, asked: Option<Asked>) -> Result<Option<Granted>> {
        let ended = self.take_or_give_up(asked);
        self.tell_given_up(&ended);
        ended
    }

    fn take_or_give_up(&mut self, asked: Option<Asked>) -> Result<Option<Granted>> {
        let (engine, call) = (self.engine, self.call);
        if call.limit.is_over(self.started) {
            // A caller that has a place already leaves it. Pairs with `asking_once`.
            self.waits = call.terms.number.is_some();
            self.turn = Turn::Barges;
            let ended = match asked {
                Some(Asked { claim, sent, answer, .. }) => {
                    self.answered(claim, sent, answer).and_then(|progress| self.last(progress))
                }
                None => self.once(),
            };
            return self.unless_shut_down(ended);
        }
        let (place, ended) = match asked {
            Some(Asked { asking, claim, message_count, sent, answer }) => {
                let place = asking.map_or_else(|| call.entry.join(false), Asking::into_place);
                self.line.may_stand = !place.ticket().is_head();
                self.line.note_before(message_count);
                (self.home, self.message_count) = (claim.home, message_count);
                let progress = self.answered(claim, sent, answer);
                let ended = progress.and_then(|progress| self.wait(&place, Some(progress)));
                (place, ended)
            }
            None => {
                let place = call.entry.join(call.terms.backoff.is_some());
                // The thread before it may have joined the line for its client.
                self.line.may_stand = !place.ticket().is_head();
                let ended = self.wait_like_others(&place).and_then(|()| self.wait(&place, None));
                (place, ended)
            }
        };
        // The reason for the end of the wait does not matter: a lock that is on its way to this waiter is
        // taken.
        let ended = match ended {
            Ok(Some(granted)) => Ok(Some(granted)),
            Ok(None) | Err(_) => match self.take_back(&place) {
                Some(handoff) => match self.receive(&place, handoff) {
                    Ok(Progress::Granted(granted)) => Ok(Some(granted)),
                    Ok(Progress::Later(_) | Progress::Again) => ended,
                    Err(error) => Err(error),
                },
                None => ended,
            },
        };
        self.leave_line(&place);
        let ticket = Arc::clone(place.ticket());
        // Entered first, place left second: the next head sees a hold to wait for.
        drop(place);
        // The queue is left first, and `is_told` looked at second: a wait is named while it stands in the
        // queue. Pairs with `Ticket::tell`.
        if ticket.is_told() {
            let deadline = engine.one_command().min(self.latest);
            engine.take_out_wait(deadline);
        }
        self.unless_shut_down(ended)
    }

    fn unless_shut_down(&self, ended: Result<Option<Granted>>) -> Result<Option<Granted>> {
        let Some(granted) = ended? else { return Ok(None) };
        self.engine.unless_shut_down(self.call, granted).map(Some)
    }

    /// Waits in the local queue, and at its head for the lock; `first` is what came of an attempt that was
    /// made already.
    fn wait(&mut self, place: &QueuePlace, mut first: Option<Progress>) -> Result<Option<Granted>> {
        loop {
            let progress = match first.take() {
                Some(progress) => progress,
                None => self.step(place)?,
            };
            match progress {
                Progress::Granted(granted) => return Ok(Some(granted)),
                Progress::Later(wake_at) => self.sleep(place, wake_at)?,
                Progress::Again => {}
            }
            if self.call.limit.is_over(self.engine.clock.now()) {
                return std::mem::take(&mut self.retry_budget).give_up();
            }
        }
    }

    fn step(&mut self, place: &QueuePlace) -> Result<Progress> {
        self.check_queue(place)?;
        match self.next_step(place) {
            Step::Receive(handoff) => self.receive(place, handoff),
            Step::Ask => self.ask(),
            Step::Sleep(until) => Ok(Progress::Later(until)),
            Step::Again => Ok(Progress::Again),
        }
    }

    /// An error once the client has ended, the wait is to end for a deadlock, or the head of the queue has
    /// had nothing but failures for too long: those behind it have waited through the same.
    fn check_queue(&self, place: &QueuePlace) -> Result<()> {
        let (engine, call) = (self.engine, self.call);
        engine.open(call.action)?;
        if self.parker.is_none() {
            return Ok(());
        }
        // Woken first, looked second. Pairs with `Ticket::end_for`.
        if let Some(ring) = place.ticket().ends_for() {
            let words = format!("{ring}; this wait was the youngest, and ended so that the others go on");
            return Err(Error::new(ErrorKind::Deadlock, call.action, words));
        }
        let (patience, now) = (engine.options.patience, engine.clock.now());
        call.entry.spent_retry_budget(patience, now).map_or(Ok(()), Err)
    }

    /// The next step. A hand-off comes first; a waiter that need not ask the store sleeps; the offer to be
    /// handed the lock is withdrawn before the store is asked.
    fn next_step(&mut self, place: &QueuePlace) -> Step {
        let engine = self.engine;
        if place.ticket().is_given() {
            return self.take_back(place).map_or(Step::Again, Step::Receive);
        }
        if !self.all_ask && !place.ticket().is_head() {
            return Step::Sleep(Moment::NEVER);
        }
        let now = engine.clock.now();
        if self.asks_for_itself() {
            if self.is_on_its_way(place) {
                // The thread that settles the hand-off wakes this one. Messages until then are no reason to
                // look again.
                self.message_count = self.subscription.as_ref().map(Subscription::message_count);
                return Step::Sleep(self.next_poll());
            }
        } else if let Some(until) = self.held_here_until(now) {
            return Step::Sleep(until);
        }
        if let Some(until) = self.pauses_until.take().filter(|until| now < *until) {
            self.pauses_until = Some(until);
            self.message_count = self.subscription.as_ref().map(Subscription::message_count);
            return Step::Sleep(until);
        }
        if let Some(until) = self.line.stands_by(now) {
            return Step::Sleep(until);
        }
        self.take_back(place).map_or(Step::Ask, Step::Receive)
    }

    /// While a hold of this process stands, its release is the event to wait for: the registry notifies this
    /// waiter. Only the safety poll asks the store then, in case the hold is gone there unknown to this
    /// client.
    fn held_here_until(&mut self, now: Moment) -> Option<Moment> {
        let until = self.call.entry.held_here(now)?;
        let poll = self.next_poll.unwrap_or_else(|| self.next_poll());
        self.next_poll = Some(poll);
        (now < poll).then(|| until.min(poll))
    }

    /// Asks the store once, and notes before that how many messages have come.
    fn ask(&mut self) -> Result<Progress> {
        self.stand_back();
        // Counted first, asked second: a release between the two changes the count, and `sleep` returns at
        // once. Pairs with `Channel::notify`.
        let listened = self.subscription.as_ref().map(|subscription| {
            self.line.note_turns(subscription);
            subscription.is_up().then(|| subscription.message_count())
        });
        self.lookout.note_count();
        let claim = self.next_claim()?;
        let message_count = listened.unwrap_or_else(|| {
            let message_count = self.engine.store.message_count(&claim);
            self.line.note_before(message_count);
            message_count
        });
        self.is_by_message = self.message_count.is_some() && message_count != self.message_count;
        self.message_count = message_count;
        self.next_poll = None;
        self.attempt(claim)
    }

    /// Withdraws the offer to be handed the lock. `Some`: the lock is on its way already.
    fn take_back(&mut self, place: &QueuePlace) -> Option<PendingHandoff> {
        loop {
            match place.ticket().close() {
                ClosedOffer::Unused => return None,
                ClosedOffer::Given(handoff) => return Some(handoff),
                // The releaser has promised the lock and sends the request now. It wakes this thread when
                // that is done.
                ClosedOffer::Promised => {
                    self.parker(place).park(Moment::NEVER, None);
                }
            }
        }
    }

    /// Whether this waiter asks although this process has a hold: that does not show whether the store would
    /// grant another, or the store is to know who waits.
    fn asks_for_itself(&self) -> bool {
        self.all_ask || self.announces || self.call.kind.is_shared()
    }

    /// Whether the lock is on its way from one thread here to another, which wakes this one when that is
    /// settled. Until then nothing may be asked under the releaser's number, which may be this thread's.
    /// Pairs with `receive`.
    fn is_on_its_way(&mut self, place: &QueuePlace) -> bool {
        let Some(head) = self.call.entry.receiving() else { return false };
        head.wake_when_settled(self.parker(place).waker())
    }

    fn parker(&mut self, place: &QueuePlace) -> &Parker {
        let parker = self.parker.get_or_insert_with(|| Parker::new(&self.engine.clock));
        place.ticket().set_waker(parker.waker());
        parker
    }

    fn next_poll(&self) -> Moment {
        self.engine.clock.after(random_between(self.engine.poll_every(self.call.kind)))
    }

    /// One attempt for a caller that will not wait; none while a hold of this process stands.
    fn once(&mut self) -> Result<Option<Granted>> {
        let (engine, call) = (self.engine, self.call);
        let held_here = call.entry.held_here(engine.clock.now());
        if held_here.is_some() && !call.kind.is_shared() {
            return Ok(None);
        }
        let claim = self.next_claim()?;
        let progress = self.attempt(claim)?;
        self.last(progress)
    }

    /// The result of the only attempt.
    fn last(&mut self, progress: Progress) -> Result<Option<Granted>> {
        match progress {
            Progress::Granted(granted) => Ok(Some(granted)),
            Progress::Later(_) | Progress::Again => std::mem::take(&mut self.retry_budget).give_up(),
        }
    }
}

impl Drop for Waiting<'_> {
    /// Leaves the store's queue, on every way out: a waiter without the lock is in nobody's way.
    fn drop(&mut self) {
        if self.is_waiting {
            self.engine.reporter.counters.end_wait();
        }
        self.leave_queue();
        self.end_lookout();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::acquire::call::WaitLimit;
    use crate::engine::acquire::terms::{Backoff, Terms};
    use crate::ident::LockName;
    use crate::seam::PLACE_LASTS;
    use crate::time::Lease;

    #[test]
    fn a_waiter_of_a_fair_lock_that_spins_slowly_keeps_its_place() {
        let hour = Duration::from_secs(3600);
        let engine = crate::LockClient::in_memory().fair_lock("a").engine().clone();
        let name = Arc::new(LockName::new(&Arc::from("a"), "a".to_owned()).unwrap());
        let pause = |kind, backoff| {
            let terms = Terms { backoff: Some(backoff), ..Terms::default() };
            let call = AcquireCall {
                action: "lock",
                kind,
                name: &name,
                entry: &engine.registry.entry(kind, &name),
                lease: Lease::Renewed,
                limit: WaitLimit::Once,
                interrupt: None,
                terms,
                by_thread: true,
            };
            {
                let span = WaitSpan::open("a", "lock");
                Waiting::new(&engine, &call, hour, &ThreadMark::current(), Moment::NEVER, span).pause()
            }
        };
        assert!(pause(Kind::Mutex, Backoff::constant(hour)) >= hour / 2);
        assert!(pause(Kind::Fair, Backoff::constant(hour)) < PLACE_LASTS / 2);
        let soon = Duration::from_millis(1);
        assert!(pause(Kind::Fair, Backoff::constant(soon)) <= soon);
    }
}
