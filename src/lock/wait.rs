//! Taking a lock: the crate's only waiting loop, and re-entry.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, ThreadMark, unbound_number};
use crate::lock::engine::Engine;
use crate::lock::hand::Handed;
use crate::lock::hold::{Grant, Hold, Holder};
use crate::lock::interrupt::Interrupt;
use crate::lock::park::{Parker, Woken};
use crate::lock::queue::{Taken, Wish};
use crate::lock::store::{Answer, Attempt, Claim, HandOver, Kind};
use crate::lock::table::Place;
use crate::lock::topic::Listening;
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
    pub(crate) fn is_over(self, now: Moment) -> bool {
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
pub(crate) const TROUBLE_PAUSE: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(100));

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

    /// Has the watchdog look in time for this hold.
    pub(crate) fn watch(&self, hold: &Hold) {
        if hold.is_renewed() {
            self.watchdog.look_by(hold.due().min(hold.until()));
        } else if hold.is_listened() {
            self.watchdog.look_by(hold.until());
        }
    }
}

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

/// Other processes listen for the lock that this process has just released: they first, for so long.
const STAND_BACK: Duration = Duration::from_micros(500);
/// On a message, a process that held the lock a moment ago lets others go first, less so the longer ago it was.
const FRESH: Duration = Duration::from_millis(8);

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
            let ended = self.once();
            return self.unless_shut_down(ended);
        }
        let place = engine.table.join(want.kind, want.name);
        let ended = self.wait(&place);
        // Whatever ended the wait: a lock that is on its way to us is taken.
        let ended = match ended {
            Ok(Some(entered)) => Ok(Some(entered)),
            Ok(None) | Err(_) => match self.take_back(&place) {
                Some(handed) => match self.receive(&place, handed)? {
                    Tried::Granted(entered) => Ok(Some(entered)),
                    Tried::Later(_) | Tried::Again => ended,
                },
                None => ended,
            },
        };
        // Entered first, place left second: the next head sees a hold to wait for.
        drop(place);
        self.unless_shut_down(ended)
    }

    /// Gives back what was granted while the client was shut down: it may have come too late for `shutdown` to see.
    fn unless_shut_down(&self, ended: Result<Option<Entered>>) -> Result<Option<Entered>> {
        if let (Ok(Some(entered)), Err(error)) = (&ended, self.engine.usable(self.want.action)) {
            self.engine.drop_level(&entered.hold, entered.level);
            return Err(error);
        }
        ended
    }

    /// Waits in the local queue, and at its head for the lock.
    fn wait(&mut self, place: &Place) -> Result<Option<Entered>> {
        let (engine, want) = (self.engine, self.want);
        let mut next_poll = self.next_poll();
        let mut heard = None;
        loop {
            engine.usable(want.action)?;
            let now = engine.clock.now();
            if self.parker.is_some()
                && let Some(error) =
                    engine.table.lost_patience(want.kind, want.name, engine.options.patience, now)
            {
                return Err(error);
            }
            let tried = if place.ticket().is_given() {
                match self.take_back(place) {
                    Some(handed) => self.receive(place, handed)?,
                    None => Tried::Again,
                }
            } else if !place.ticket().is_head() {
                Tried::Later(Moment::NEVER)
            } else if let Some(until) = engine.table.held_here(want.kind, want.name, now)
                && now < next_poll
            {
                // While a hold of this process stands, its release is what we wait for: the table tells us. Until
                // then only the safety poll asks the store, in case the hold is gone there without our knowing.
                Tried::Later(until.min(next_poll))
            } else if let Some(handed) = self.take_back(place) {
                self.receive(place, handed)?
            } else {
                self.stand_back();
                // Count first, attempt second: a release between the two moves the count, and we look again. Pairs
                // with `Topic::deliver`.
                heard = match &self.listening {
                    Some(listening) => listening.is_up().then(|| listening.seen()),
                    None => engine.store.heard(want.kind, want.name),
                };
                let tried = self.attempt()?;
                next_poll = self.next_poll();
                tried
            };
            match tried {
                Tried::Granted(entered) => return Ok(Some(entered)),
                Tried::Again => {}
                Tried::Later(wake_at) => self.sleep(place, wake_at, heard)?,
            }
            if want.until.is_over(engine.clock.now()) {
                return std::mem::take(&mut self.trouble).give_up();
            }
        }
    }

    /// Takes the offer to be given the lock back; `Some`: it is on its way already.
    fn take_back(&mut self, place: &Place) -> Option<Handed> {
        loop {
            match place.ticket().close() {
                Taken::Back => return None,
                Taken::Given(handed) => return Some(handed),
                // The releaser is between its promise and its word, and wakes us with the latter.
                Taken::NotYet => {
                    self.parker(place).park(Moment::NEVER, None);
                }
            }
        }
    }

    fn parker(&mut self, place: &Place) -> &Parker {
        let parker = self.parker.get_or_insert_with(|| Parker::new(&self.engine.clock));
        place.ticket().set_waker(parker.waker());
        parker
    }

    fn next_poll(&self) -> Moment {
        self.engine.clock.after(random_between(self.engine.store.poll_every(self.want.kind)))
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

    /// What this caller asks for. Made anew for each request: the number may have been given up since the last.
    fn wish(&self) -> Wish {
        let number = self.unbound.unwrap_or_else(|| self.thread.number());
        Wish {
            claim: self.engine.claim(self.want.kind, self.want.name, number, self.asked),
            wants_fence: self.want.kind == Kind::Fenced,
        }
    }

    fn attempt(&mut self) -> Result<Tried> {
        let (engine, want) = (self.engine, self.want);
        let Wish { claim, wants_fence } = self.wish();
        self.attempts = self.attempts.saturating_add(1);
        let sent = engine.clock.now();
        match engine.store.attempt(&claim, 1, wants_fence, sent.plus(engine.options.command_timeout)) {
            Answer::Done(Attempt::Granted { fence }) => {
                self.trouble_is_over();
                Ok(self.granted(claim, sent, fence))
            }
            Answer::Done(Attempt::Busy { retry_after }) => {
                self.trouble_is_over();
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

    /// Takes what was granted, unless it cannot be counted on.
    fn granted(&mut self, claim: Claim, sent: Moment, fence: Option<Fence>) -> Tried {
        let is_late = self.engine.clock.now() >= sent.plus(window(self.asked));
        // A release under this number failed meanwhile, and will be repeated: it must not find us here.
        let is_given_up = self.unbound.is_none() && self.thread.number() != claim.owner.number();
        if is_late || is_given_up {
            self.leave_behind(claim, sent);
            return Tried::Again;
        }
        Tried::Granted(self.enter(&claim, sent, fence))
    }

    /// Reads what came of a hand-over to this thread.
    fn receive(&mut self, place: &Place, handed: Handed) -> Result<Tried> {
        let (claim, sent) = (handed.to.clone(), handed.sent);
        let tried = match handed.receive() {
            Answer::Done(HandOver::Granted { fence }) => Ok(self.granted(claim, sent, fence)),
            Answer::Done(HandOver::Lost) => Ok(Tried::Again),
            Answer::Refused(error) => self.pause_after(error),
            Answer::Unknown(error) => {
                self.leave_behind(claim, sent);
                self.pause_after(error)
            }
        };
        // Last: by now the hold is in the table, or the releaser's number is given up if it had to be. Before that
        // the releaser's thread may not ask under it again. Pairs with `Table::held_here`.
        place.ticket().received();
        tried
    }

    /// Hands an attempt that may have been, or may yet be, carried out to the watchdog, and goes on under a number
    /// that it cannot touch.
    fn leave_behind(&mut self, claim: Claim, sent: Moment) {
        let until = sent.plus(self.asked).plus(self.engine.options.command_timeout);
        match &mut self.unbound {
            Some(number) => *number = unbound_number(),
            None => self.thread.retire(claim.owner.number()),
        }
        self.engine.watchdog.clean_ups().add(claim, until, self.engine.clock.now());
    }

    fn pause_after(&mut self, error: Error) -> Result<Tried> {
        let (engine, want) = (self.engine, self.want);
        let now = engine.clock.now();
        let noted = error.copy();
        let outcome = self.trouble.note(engine, error, now, want.until);
        // Those behind in the queue have waited through the same: they lose patience when this one does. A caller whose
        // time is over, or who never waited, has been through nothing that concerns them.
        if !want.until.is_over(now) {
            engine.table.note_trouble(want.kind, want.name, self.trouble.since.map(|since| (since, noted)));
            if outcome.is_err() {
                engine.table.wake_queue(want.kind, want.name);
            }
        }
        self.trouble.last = Some(outcome?);
        Ok(Tried::Later(now.plus(random_between(TROUBLE_PAUSE))))
    }

    /// The store answers (again).
    fn trouble_is_over(&mut self) {
        if self.trouble.since.is_some() || self.parker.is_some() {
            self.trouble = Trouble::default();
            self.engine.table.note_trouble(self.want.kind, self.want.name, None);
        }
    }

    fn enter(&self, claim: &Claim, sent: Moment, fence: Option<Fence>) -> Entered {
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

    /// Sleeps until there may be something to do: the turn in the queue, the lock given, a release here, a message, or
    /// `wake_at`. May end for no reason.
    ///
    /// Subscribes first, the first time it waits for another process; unless the subscription stood before the
    /// attempt, and nothing has been heard since, that is reason to try again as soon as it stands.
    fn sleep(&mut self, place: &Place, wake_at: Moment, heard: Option<u64>) -> Result<()> {
        let (engine, want, ticket) = (self.engine, self.want, place.ticket());
        let wish = (!want.kind.is_token()).then(|| self.wish());
        let until = wake_at.min(want.until.moment(engine.clock.now()));
        self.parker(place);
        // All that follows is looked at after the waker is set: what happened before found nobody to wake.
        if let Some(wish) = wish {
            ticket.open(wish);
        }
        let is_held_here = || engine.table.held_here(want.kind, want.name, engine.clock.now()).is_some();
        if ticket.is_head() && !is_held_here() {
            let parker = self.parker.get_or_insert_with(|| Parker::new(&engine.clock));
            if self.listening.is_none() {
                self.listening = engine.store.listen(want.kind, want.name, parker.waker());
            }
            let moved = |at: &Listening| at.is_up() && Some(at.seen()) != heard;
            if self.listening.as_ref().is_some_and(moved) {
                return Ok(());
            }
        }
        if ticket.is_given() || ticket.take_nudge() {
            return Ok(());
        }
        match self.parker(place).park(until, want.interrupt) {
            Woken::Signal | Woken::Time => Ok(()),
            Woken::Interrupted => Err(interrupted(want)),
        }
    }

    /// Lets other processes go first that wait for what this one has just had. Redis tells its subscribers in the
    /// same order every time; without this the same process would win every time.
    fn stand_back(&self) {
        let (engine, want) = (self.engine, self.want);
        let Some((since, others)) = engine.table.contended_since(want.kind, want.name) else { return };
        if others == 1 && self.attempts > 0 {
            return; // the one other process has had it since: it is ours now
        }
        let age = engine.clock.now().since(since);
        if age < FRESH {
            let part = 1.0 - age.as_secs_f64() / FRESH.as_secs_f64();
            Parker::new(&engine.clock).park(engine.clock.after(STAND_BACK.mul_f64(part)), want.interrupt);
        }
    }
}

/// What a caller has been through since its last good answer.
#[derive(Default)]
pub(crate) struct Trouble {
    since: Option<Moment>,
    last: Option<Error>,
}

impl Trouble {
    /// Takes note of a failure. `Err`: it is final, or has lasted as long as the caller waits for such.
    pub(crate) fn note(&mut self, engine: &Engine, error: Error, now: Moment, until: Until) -> Result<Error> {
        let since = *self.since.get_or_insert(now);
        let is_enough = now.since(since) >= engine.options.patience || until.is_over(now);
        if is_enough || !error.is_retryable() { Err(error) } else { Ok(error) }
    }

    /// The caller's time is over: busy all along is no error, but a failed last attempt is.
    fn give_up(self) -> Result<Option<Entered>> {
        self.last.map_or(Ok(None), Err)
    }
}

pub(crate) fn interrupted(want: &Want<'_>) -> Error {
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
