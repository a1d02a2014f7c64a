//! Taking a lock: the crate's only waiting loop, and re-entry.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, ThreadMark, unbound_number};
use crate::lock::engine::Engine;
use crate::lock::hold::{Grant, Hold, Holder};
use crate::lock::interrupt::Interrupt;
use crate::lock::park::{Parker, Woken};
use crate::lock::store::{Answer, Attempt, Claim, Kind};
use crate::lock::table::Place;
use crate::lock::topic::Listening;
use crate::observe::LossReason;
use crate::time::{Lease, Moment, window};

/// What a caller asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want<'a> {
    pub(crate) action: &'static str,
    pub(crate) kind: Kind,
    pub(crate) name: &'a Arc<LockName>,
    pub(crate) lease: Lease,
    pub(crate) until: Until,
    pub(crate) interrupt: Option<&'a Interrupt>,
    /// Whether the calling thread is to be the owner, or the guard is.
    pub(crate) by_thread: bool,
}

/// How long a caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// One attempt.
    Once,
    /// Until then, or without end.
    Deadline(Moment),
}

impl Until {
    fn is_over(self, now: Moment) -> bool {
        match self {
            Until::Once => true,
            Until::Deadline(deadline) => now >= deadline,
        }
    }

    fn moment(self, now: Moment) -> Moment {
        match self {
            Until::Once => now,
            Until::Deadline(deadline) => deadline,
        }
    }
}

/// A level of a hold that the caller now has.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: u64,
}

/// Between failed requests a caller pauses for a random part of this.
const TROUBLE_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

impl Engine {
    /// Takes the lock for the caller; `None` if it stayed busy for as long as the caller would wait.
    pub(crate) fn acquire(&self, want: &Want<'_>) -> Result<Option<Entered>> {
        self.usable(want.action)?;
        let asked = self.asked(want.action, want.lease).map_err(|error| error.on(want.name.given()))?;
        if want.interrupt.is_some_and(Interrupt::is_interrupted) {
            return Err(interrupted(want));
        }
        let thread = ThreadMark::current();
        if want.by_thread
            && let Some(hold) = self.table.of_thread(want.kind, want.name, thread.id())
        {
            if hold.is_live(self.clock.now(), &self.reporter) {
                if want.kind.is_token() {
                    return self.reenter_token(want);
                }
                if let Some(entered) = self.reenter(want, &hold, asked)? {
                    return Ok(Some(entered));
                }
            }
            // It was lost. What follows is a new hold, under a number that nothing late can be under.
            thread.retire(hold.owner().number());
        }
        let entered = Waiting::new(self, want, asked, &thread).run();
        entered.map_err(|error| error.during(want.action).on(want.name.given()))
    }

    /// A token lock is not reentrant: waiting for it would be waiting for oneself.
    fn reenter_token(&self, want: &Want<'_>) -> Result<Option<Entered>> {
        if want.until.is_over(self.clock.now()) {
            return Ok(None);
        }
        let detail = "this thread holds it, and a token lock is not reentrant";
        Err(Error::new(ErrorKind::WouldDeadlock, want.action, detail).on(want.name.given()))
    }

    /// Adds a level to a live hold; `None` if it turned out to be lost.
    ///
    /// The count is absolute, so a request of unknown outcome is simply repeated.
    fn reenter(&self, want: &Want<'_>, hold: &Arc<Hold>, asked: Duration) -> Result<Option<Entered>> {
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
                    self.lose(hold, LossReason::Gone);
                    return Ok(None);
                }
                Answer::Refused(error) | Answer::Unknown(error) => {
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

    /// Has the watchdog look in time for this hold.
    pub(crate) fn watch(&self, hold: &Hold) {
        if hold.is_renewed() {
            self.watchdog.look_by(hold.due().min(hold.until()));
        } else if hold.is_listened() {
            self.watchdog.look_by(hold.until());
        }
    }
}

/// More re-entries than any program means; what Redisson's counter holds.
const MOST_HOLDS: u32 = i32::MAX as u32;

/// One caller's wait for a lock that its owner does not hold yet.
struct Waiting<'a> {
    engine: &'a Engine,
    want: &'a Want<'a>,
    asked: Duration,
    thread: &'a Arc<ThreadMark>,
    started: Moment,
    /// The owner number, where the owner is not the thread.
    unbound: Option<u64>,
    attempts: u32,
    trouble: Trouble,
    parker: Option<Parker>,
    listening: Option<Listening>,
}

/// What an attempt came to, for the loop.
enum Tried {
    Granted(Entered),
    /// Try again when this time has come, if nothing wakes before.
    Later(Moment),
    /// Try again at once, unless the deadline has passed.
    Again,
}

impl<'a> Waiting<'a> {
    fn new(
        engine: &'a Engine,
        want: &'a Want<'a>,
        asked: Duration,
        thread: &'a Arc<ThreadMark>,
    ) -> Waiting<'a> {
        // A token is compared, not counted: were it reused, a late release could free the next hold.
        let own_number = want.by_thread && !want.kind.is_token();
        Waiting {
            engine,
            want,
            asked,
            thread,
            started: engine.clock.now(),
            unbound: (!own_number).then(unbound_number),
            attempts: 0,
            trouble: Trouble::default(),
            parker: None,
            listening: None,
        }
    }

    fn run(mut self) -> Result<Option<Entered>> {
        let (engine, want) = (self.engine, self.want);
        if want.until.is_over(engine.clock.now()) {
            return self.once();
        }
        let place = engine.table.join(want.kind, want.name);
        if !self.wait_for_turn(&place)? {
            return Ok(None);
        }
        let mut next_poll = engine.clock.after(random_between(engine.store.poll_every(want.kind)));
        loop {
            engine.usable(want.action)?;
            let now = engine.clock.now();
            // While a hold of this process stands, its release is what we wait for: the table tells us. Until then
            // only the safety poll asks the store, in case the hold is gone there without our knowing.
            let (tried, heard) = match engine.table.held_here(want.kind, want.name, now) {
                Some(until) if now < next_poll => (Tried::Later(until.min(next_poll)), None),
                _ => {
                    // Count first, attempt second: a release between the two moves the count, and we look again.
                    // Pairs with `Topic::deliver`.
                    let heard = match &self.listening {
                        Some(listening) => listening.is_up().then(|| listening.seen()),
                        None => engine.store.heard(want.kind, want.name),
                    };
                    let tried = self.attempt()?;
                    next_poll = engine.clock.after(random_between(engine.store.poll_every(want.kind)));
                    (tried, heard)
                }
            };
            let wake_at = match tried {
                Tried::Granted(entered) => {
                    if let Err(error) = engine.usable(want.action) {
                        engine.drop_level(&entered.hold, entered.level); // shut down while the grant was on its way
                        return Err(error);
                    }
                    // Entered first, place left second: the next head sees a hold to wait for.
                    drop(place);
                    return Ok(Some(entered));
                }
                Tried::Again => engine.clock.now(),
                Tried::Later(wake_at) => wake_at,
            };
            if want.until.is_over(engine.clock.now()) {
                return self.trouble.give_up();
            }
            if !self.sleep(&place, wake_at, heard)? {
                return self.trouble.give_up();
            }
        }
    }

    /// One attempt for a caller that will not wait; none while a hold of this process stands.
    fn once(&mut self) -> Result<Option<Entered>> {
        let (engine, want) = (self.engine, self.want);
        if engine.table.held_here(want.kind, want.name, engine.clock.now()).is_some() {
            return Ok(None);
        }
        match self.attempt()? {
            Tried::Granted(entered) => Ok(Some(entered)),
            Tried::Later(_) | Tried::Again => std::mem::take(&mut self.trouble).give_up(),
        }
    }

    fn attempt(&mut self) -> Result<Tried> {
        let (engine, want) = (self.engine, self.want);
        // Read anew for each attempt: the number may have been given up since the last.
        let number = self.unbound.unwrap_or_else(|| self.thread.number());
        let claim = engine.claim(want.kind, want.name, number, self.asked);
        let wants_fence = want.kind == Kind::Fenced;
        self.attempts = self.attempts.saturating_add(1);
        let sent = engine.clock.now();
        match engine.store.attempt(&claim, 1, wants_fence, sent.plus(engine.options.command_timeout)) {
            Answer::Done(Attempt::Granted { fence }) => {
                let now = engine.clock.now();
                if now >= sent.plus(window(self.asked)) {
                    // Granted, but the answer came when it could already have ended: as good as not granted.
                    self.leave_behind(claim, sent);
                    return Ok(Tried::Again);
                }
                Ok(Tried::Granted(self.enter(&claim, sent, fence)))
            }
            Answer::Done(Attempt::Busy { retry_after }) => {
                self.trouble = Trouble::default();
                let now = engine.clock.now();
                let poll = now.plus(random_between(engine.store.poll_every(want.kind)));
                // Not before the holder's lease can have ended, nor in a hot loop when it is about to.
                let ends =
                    retry_after.map_or(Moment::NEVER, |left| now.plus(left + Duration::from_millis(1)));
                Ok(Tried::Later(poll.min(ends)))
            }
            Answer::Done(Attempt::Lost) => {
                Err(Error::new(ErrorKind::Protocol, want.action, "a first hold was answered like a re-entry"))
            }
            Answer::Refused(error) => self.pause_after(error),
            Answer::Unknown(error) => {
                self.leave_behind(claim, sent);
                self.pause_after(error)
            }
        }
    }

    /// Hands an attempt that may have been, or may yet be, carried out to the watchdog, and goes on under a number
    /// that it cannot touch.
    fn leave_behind(&mut self, claim: Claim, sent: Moment) {
        let until = sent.plus(self.asked).plus(self.engine.options.command_timeout);
        match &mut self.unbound {
            Some(number) => *number = unbound_number(),
            None => self.thread.retire(claim.owner.number()),
        }
        self.engine.watchdog.clean_up(claim, until, self.engine.clock.now());
    }

    fn pause_after(&mut self, error: Error) -> Result<Tried> {
        let now = self.engine.clock.now();
        let error = self.trouble.note(self.engine, error, now, self.want.until)?;
        self.trouble.last = Some(error);
        Ok(Tried::Later(now.plus(random_between(TROUBLE_PAUSE))))
    }

    fn enter(&self, claim: &Claim, sent: Moment, fence: Option<crate::ident::Fence>) -> Entered {
        let (engine, want) = (self.engine, self.want);
        let holder = if want.by_thread {
            Holder::Thread { id: self.thread.id(), mark: Arc::downgrade(self.thread) }
        } else {
            Holder::Guard
        };
        let (hold, level) = Hold::new(Grant {
            kind: claim.kind,
            name: Arc::clone(&claim.name),
            owner: claim.owner,
            holder,
            sent,
            lease: want.lease,
            asked: self.asked,
            renewed_lease: engine.options.lease,
            fence,
        });
        let hold = Arc::new(hold);
        engine.table.insert(&hold, want.by_thread.then(|| self.thread.id()));
        engine.watch(&hold);
        let (owner, waited) = (hold.owner(), engine.clock.now().since(self.started));
        engine.reporter.tell(|observer| observer.acquired(want.name.given(), owner, waited, self.attempts));
        Entered { hold, level }
    }

    // ---- sleeping

    /// Waits until the caller is at the head of the local queue; `false` if its time is over before.
    fn wait_for_turn(&mut self, place: &Place) -> Result<bool> {
        let (engine, want) = (self.engine, self.want);
        while !place.ticket().is_head() {
            let parker = self.parker.get_or_insert_with(|| Parker::new(&engine.clock));
            place.ticket().set_waker(parker.waker());
            if place.ticket().is_head() {
                break;
            }
            match parker.park(want.until.moment(engine.clock.now()), want.interrupt) {
                Woken::Signal => engine.usable(want.action)?,
                Woken::Time => return Ok(false),
                Woken::Interrupted => return Err(interrupted(want)),
            }
        }
        Ok(true)
    }

    /// Sleeps until it is worth trying again: a message, a release here, or `wake_at`. `false`: the caller's time is
    /// over. Subscribes first, the first time; unless the subscription stood before the attempt, and nothing has been
    /// heard since, that is reason to try again as soon as it stands.
    fn sleep(&mut self, place: &Place, wake_at: Moment, heard: Option<u64>) -> Result<bool> {
        let (engine, want) = (self.engine, self.want);
        let parker = self.parker.get_or_insert_with(|| Parker::new(&engine.clock));
        place.ticket().set_waker(parker.waker());
        let held_here = engine.table.held_here(want.kind, want.name, engine.clock.now()).is_some();
        if self.listening.is_none() && !held_here {
            self.listening = engine.store.listen(want.kind, want.name, parker.waker());
        }
        let deadline = want.until.moment(engine.clock.now());
        loop {
            // A nudge may have found no waker, and a message no listener: look before sleeping.
            if place.ticket().take_nudge() {
                return Ok(true);
            }
            let held_here = engine.table.held_here(want.kind, want.name, engine.clock.now()).is_some();
            if !held_here && self.listening.as_ref().is_some_and(|at| at.is_up() && Some(at.seen()) != heard)
            {
                return Ok(true);
            }
            match parker.park(wake_at.min(deadline), want.interrupt) {
                Woken::Signal => engine.usable(want.action)?,
                Woken::Time => return Ok(engine.clock.now() < deadline),
                Woken::Interrupted => return Err(interrupted(want)),
            }
        }
    }
}

/// What a caller has been through since its last good answer.
#[derive(Default)]
struct Trouble {
    since: Option<Moment>,
    last: Option<Error>,
}

impl Trouble {
    /// Takes note of a failure. `Err`: it is final, or has lasted as long as the caller waits for such.
    fn note(&mut self, engine: &Engine, error: Error, now: Moment, until: Until) -> Result<Error> {
        let since = *self.since.get_or_insert(now);
        let is_enough = now.since(since) >= engine.options.patience || until.is_over(now);
        if is_enough || !error.is_retryable() { Err(error) } else { Ok(error) }
    }

    /// The caller's time is over: busy all along is no error, but a failed last attempt is.
    fn give_up(self) -> Result<Option<Entered>> {
        self.last.map_or(Ok(None), Err)
    }
}

fn interrupted(want: &Want<'_>) -> Error {
    Error::new(ErrorKind::Interrupted, want.action, "the wait was interrupted").on(want.name.given())
}

/// A random duration between the two, so that waiters that began together do not go on together.
pub(crate) fn random_between((least, most): (Duration, Duration)) -> Duration {
    let random = RandomState::new().hash_one(0_u8);
    let span = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
    least + Duration::from_nanos(random.checked_rem(span).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_pauses_stay_within_their_bounds_and_differ() {
        let bounds = (Duration::from_millis(1_000), Duration::from_millis(1_200));
        let drawn: Vec<_> = (0..1_000).map(|_| random_between(bounds)).collect();
        assert!(drawn.iter().all(|pause| (bounds.0..bounds.1).contains(pause)));
        assert!(drawn.iter().collect::<std::collections::HashSet<_>>().len() > 900);
        assert_eq!(random_between((bounds.0, bounds.0)), bounds.0);
    }
}
