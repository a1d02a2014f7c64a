//! Taking a lock: the crate's only waiting loop.
//!
//! Long because there is one: what it waits for, how it gives up, and what it leaves behind are one thought.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, ThreadMark, unbound_number};
use crate::inspection::Whereabouts;
use crate::lock::engine::Engine;
use crate::lock::hand::Handed;
use crate::lock::hold::{Grant, Hold, Holder};
use crate::lock::interrupt::Interrupt;
use crate::lock::park::{Parker, Woken};
use crate::lock::queue::{Taken, Wish};
use crate::lock::store::{Answer, Attempt, Bound, Claim, Kind, Notice, PLACE_LASTS, REQUEST_LASTS};
use crate::lock::table::Place;
use crate::lock::terms::Terms;
use crate::lock::topic::Listening;
use crate::lock::trouble::Trouble;
use crate::lock::verdict::Verdict;
use crate::observe::{Loss, LossReason};
use crate::time::{LONGEST_LEASE, Lease, Moment, random_between, window};

/// What a caller asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want<'a> {
    pub(crate) action: &'static str,
    pub(crate) kind: Kind,
    pub(crate) name: &'a Arc<LockName>,
    pub(crate) lease: Lease,
    pub(crate) until: Until,
    pub(crate) interrupt: Option<&'a Interrupt>,
    pub(crate) terms: Terms,
    /// Whether the calling thread is to be the owner, or the guard is.
    pub(crate) by_thread: bool,
}

impl Want<'_> {
    pub(crate) fn wants_fence(&self) -> bool {
        self.kind == Kind::Fenced || self.terms.fenced
    }
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
        let begun = self.clock.now();
        // Counted in first: if the client has not ended by the next line, its end waits for us.
        let _call = self.calls.begin();
        let asked = self.lease_to_ask(want)?;
        let thread = ThreadMark::current();
        if want.by_thread
            && let Some(hold) = self.table.of_thread(want.kind, want.name, thread.id())
        {
            if hold.is_live(self.clock.now(), &self.reporter) {
                if want.kind.is_token() || !want.terms.reentrant {
                    return self.would_wait_for_itself(
                        want,
                        "this thread holds it already, and this lock is not reentrant",
                    );
                }
                if let Some(entered) = self.reenter(want, &hold, asked)? {
                    return Ok(Some(entered));
                }
            }
            // It was lost. What follows is a new hold, under a number that nothing late can be under.
            thread.retire(hold.owner().number());
        }
        if want.kind == Kind::Write && self.has_live(Kind::Read, want.name, &thread) {
            let words =
                "this thread holds the read lock, which cannot become the write lock: release it first";
            return self.would_wait_for_itself(want, words);
        }
        if want.kind == Kind::Read && !want.by_thread && self.has_live(Kind::Write, want.name, &thread) {
            let words = "this thread holds the write lock, and an owned guard reads as another owner: take the read lock as this \
                         thread, or release the write lock first";
            return self.would_wait_for_itself(want, words);
        }
        if !want.by_thread && !want.kind.is_shared() && self.has_live(want.kind, want.name, &thread) {
            let words = "this thread holds it, and an owned guard is another owner: release it first";
            return self.would_wait_for_itself(want, words);
        }
        let entered = Waiting::new(self, want, asked, &thread, begun).run();
        entered.map_err(|error| error.during(want.action).on(want.name.given()))
    }

    /// The lease to ask for, once all is checked that can be without I/O.
    pub(super) fn lease_to_ask(&self, want: &Want<'_>) -> Result<Duration> {
        let on_this = |error: Error| error.on(want.name.given());
        self.usable(want.action).map_err(on_this)?;
        let terms = want.terms.checked(want.action).map_err(on_this)?;
        let asked = self.asked(want.action, want.lease).map_err(on_this)?;
        let asked = terms.max_hold.map_or(asked, |most| asked.min(most));
        let asked = if want.kind.is_leased() { asked } else { LONGEST_LEASE };
        // Not who has a place already, which is to be left.
        if want.terms.number.is_none() && want.interrupt.is_some_and(Interrupt::is_interrupted) {
            return Err(interrupted(want));
        }
        Ok(asked)
    }

    /// Whether this lock can be asked for along with others, not in its turn: nobody of this process has it or waits for
    /// it, nor was it fought over a moment ago.
    pub(crate) fn can_ask_ahead(&self, want: &Want<'_>) -> bool {
        let thread = ThreadMark::current();
        let is_own = |kind| self.table.of_thread(kind, want.name, thread.id()).is_some();
        let touches_own = want.by_thread
            && (is_own(want.kind)
                || want.kind == Kind::Write && is_own(Kind::Read)
                || want.kind == Kind::Read && is_own(Kind::Write));
        !touches_own && self.table.is_calm(want.kind, want.name)
    }

    /// Whether this thread writes what it wants to read: then it is granted at once, and those who wait to read wait for it.
    /// Stood it behind them, all would wait for ever.
    fn writes_here(&self, want: &Want<'_>, thread: &ThreadMark) -> bool {
        want.kind == Kind::Read
            && want.by_thread
            && self.table.of_thread(Kind::Write, want.name, thread.id()).is_some()
    }

    /// Has this hold be looked at in time, whatever has changed about it.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.watchdog.watch(hold);
    }
}

/// One caller's wait for a lock that its owner does not hold yet.
pub(super) struct Waiting<'a> {
    engine: &'a Engine,
    want: &'a Want<'a>,
    asked: Duration,
    thread: &'a Arc<ThreadMark>,
    started: Moment,
    /// The owner number, where the owner is not the thread.
    unbound: Option<u64>,
    /// Whether the order in which waiters are served is the store's.
    store_queues: bool,
    /// Whether all who wait here ask, not only the first.
    all_ask: bool,
    /// Whether the store is to know that this writer waits, so that readers let it go first.
    announces: bool,
    /// By when the call is to return: a command time-out after the caller's time.
    latest: Moment,
    /// Whether the last request was answered.
    is_answered: bool,
    attempts: u32,
    /// Where the last attempt went.
    home: u32,
    trouble: Trouble,
    /// What ends the hold that was just granted, besides its lease.
    bound: Option<Arc<dyn Bound>>,
    parker: Option<Parker>,
    listening: Option<Listening>,
    /// Whether the store is to give this caller a place, where it queues.
    waits: bool,
    /// Under which claim this caller may stand in the store's queue, or as a writer that waits.
    queued: Option<Claim>,
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
    pub(super) fn new(
        engine: &'a Engine,
        want: &'a Want<'a>,
        asked: Duration,
        thread: &'a Arc<ThreadMark>,
        begun: Moment,
    ) -> Waiting<'a> {
        // A token is compared, not counted: were it reused, a late release could free the next hold.
        let own_number = want.by_thread && !want.kind.is_token();
        Waiting {
            engine,
            want,
            asked,
            thread,
            started: begun,
            unbound: (!own_number).then(|| want.terms.number.unwrap_or_else(unbound_number)),
            store_queues: engine.store.queues(want.kind),
            all_ask: engine.store.queues(want.kind)
                || want.kind.is_counted()
                || engine.writes_here(want, thread),
            announces: want.kind == Kind::Write && want.terms.writers_first,
            latest: want.until.moment(begun).max(begun).plus(engine.options.command_timeout),
            is_answered: true,
            attempts: 0,
            home: 0,
            trouble: Trouble::default(),
            bound: None,
            parker: None,
            listening: None,
            waits: true,
            queued: None,
        }
    }

    /// The same under a number of its own, although the owner is the thread: what is asked by another way than the thread's
    /// other requests about the lock could come before them, and is not to meet what they are about.
    pub(super) fn under(mut self, number: u64) -> Waiting<'a> {
        self.unbound = Some(number);
        self
    }

    /// The same, leaving no place behind where it is busy: who waits for it comes again.
    pub(super) fn asking_once(mut self) -> Waiting<'a> {
        self.waits = false;
        self
    }

    fn run(mut self) -> Result<Option<Entered>> {
        let (engine, want) = (self.engine, self.want);
        if want.until.is_over(engine.clock.now()) {
            // Who has a place already is to leave it.
            self.waits = want.terms.number.is_some();
            let ended = self.once();
            return self.unless_shut_down(ended);
        }
        let place = engine.table.join(want.kind, want.name, want.terms.backoff.is_some());
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
        if let (Ok(Some(entered)), Err(error)) = (&ended, self.engine.open(self.want.action)) {
            self.engine.drop_level(&entered.hold, entered.level);
            return Err(error);
        }
        ended
    }

    /// Waits in the local queue, and at its head for the lock.
    fn wait(&mut self, place: &Place) -> Result<Option<Entered>> {
        let (engine, want) = (self.engine, self.want);
        // Not known before there is somebody to wait for.
        let mut next_poll = None;
        let mut heard = None;
        loop {
            engine.open(want.action)?;
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
            } else if !self.all_ask && !place.ticket().is_head() {
                Tried::Later(Moment::NEVER)
            } else if self.asks_for_itself() && self.is_on_its_way(place) {
                // Whoever settles that wakes us; what was heard before is no reason to look again at once.
                heard = self.listening.as_ref().map(Listening::seen);
                Tried::Later(self.next_poll())
            } else if !self.asks_for_itself()
                && let Some(until) = engine.table.held_here(want.kind, want.name, now)
                && now < *next_poll.get_or_insert_with(|| self.next_poll())
            {
                // While a hold of this process stands, its release is what we wait for: the table tells us. Until
                // then only the safety poll asks the store, in case the hold is gone there without our knowing.
                Tried::Later(next_poll.map_or(until, |poll| until.min(poll)))
            } else if let Some(handed) = self.take_back(place) {
                self.receive(place, handed)?
            } else {
                self.stand_back();
                // Count first, attempt second: a release between the two moves the count, and we look again. Pairs
                // with `Topic::deliver`.
                heard = match &self.listening {
                    Some(listening) => listening.is_up().then(|| listening.seen()),
                    None => engine.store.heard(&self.wish().claim),
                };
                next_poll = None;
                self.attempt()?
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

    /// Whether a hold of this process is no reason not to ask: it tells nothing about whether the store would grant
    /// another, or the store is to know who waits.
    fn asks_for_itself(&self) -> bool {
        self.all_ask || self.announces || self.want.kind.is_shared()
    }

    /// Whether the lock is on its way from one thread here to another, which wakes this one when that is settled. Until
    /// then nothing may be asked under the releaser's number, which may be this thread's. Pairs with `receive`.
    fn is_on_its_way(&mut self, place: &Place) -> bool {
        let (engine, want) = (self.engine, self.want);
        let Some(head) = engine.table.receiving(want.kind, want.name) else { return false };
        head.tell_when_settled(self.parker(place).waker())
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
        let held_here = engine.table.held_here(want.kind, want.name, engine.clock.now());
        if held_here.is_some() && !want.kind.is_shared() {
            return Ok(None);
        }
        let tried = self.attempt()?;
        self.last(tried)
    }

    /// What the only attempt comes to.
    fn last(&mut self, tried: Tried) -> Result<Option<Entered>> {
        match tried {
            Tried::Granted(entered) => Ok(Some(entered)),
            Tried::Later(_) | Tried::Again => std::mem::take(&mut self.trouble).give_up(),
        }
    }

    /// What this caller asks for. Made anew for each request: the number may have been given up since the last.
    fn wish(&mut self) -> Wish {
        let number = self.engine.next_number(self.thread, &mut self.unbound);
        let claim = self.engine.claim(self.want.kind, self.want.name, number, self.asked);
        let Terms { units, writers_first, max_hold, .. } = self.want.terms;
        let place = || Arc::new(Whereabouts::here());
        let notice = max_hold.map(|max_hold| Notice { max_hold, place: place() });
        let claim = Claim { waits: self.waits, units, writers_first, notice, ..claim };
        Wish { claim, wants_fence: self.want.wants_fence() }
    }

    fn attempt(&mut self) -> Result<Tried> {
        let engine = self.engine;
        let Wish { claim, wants_fence } = self.next_wish()?;
        let sent = engine.clock.now();
        if let Some(left) = engine.store.held_off(&claim) {
            return Ok(Tried::Later(sent.plus(left + Duration::from_millis(1))));
        }
        let by = engine.one_command().min(self.latest);
        let answer = engine.store.attempt(&claim, 1, wants_fence, by);
        self.answered(claim, sent, answer)
    }

    /// Reads what came of an attempt that was sent at `sent` for a caller that will not wait.
    pub(super) fn came(
        &mut self,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Option<Entered>> {
        let ended = self.answered(claim, sent, answer).and_then(|tried| self.last(tried));
        let ended = self.unless_shut_down(ended);
        ended.map_err(|error| error.during(self.want.action).on(self.want.name.given()))
    }

    /// What is asked for next.
    pub(super) fn next_wish(&mut self) -> Result<Wish> {
        let wish = self.wish();
        let claim = &wish.claim;
        self.would_wait_for_own_writing(claim)?;
        if std::mem::replace(&mut self.home, claim.home) != claim.home {
            self.listening = None; // it is released elsewhere from now on
        }
        if (self.store_queues || self.announces) && claim.waits {
            self.queue_as(claim);
        }
        Ok(wish)
    }

    /// What the answer to an attempt comes to.
    fn answered(&mut self, claim: Claim, sent: Moment, answer: Answer<Attempt>) -> Result<Tried> {
        let want = self.want;
        self.attempts = self.attempts.saturating_add(1);
        self.is_answered = matches!(answer, Answer::Done(_));
        if self.is_answered {
            self.trouble_is_over();
        }
        match self.verdict(&claim, sent, answer) {
            Verdict::Gone => {
                Err(Error::new(ErrorKind::Protocol, want.action, "a first hold was answered like a re-entry"))
            }
            verdict => self.follow(claim, sent, verdict),
        }
    }

    /// What an answer means that was read just now.
    fn verdict(&mut self, claim: &Claim, sent: Moment, answer: Answer<Attempt>) -> Verdict {
        let engine = self.engine;
        let is_granted = matches!(answer, Answer::Done(Attempt::Granted { .. }));
        // Not asked of a claim that has nothing, and asked once for each grant: the hold has what is answered.
        self.bound = is_granted.then(|| engine.store.bound(claim)).flatten();
        let bound = self.bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        let ends = bound.min(sent.plus(window(self.asked)));
        // A release under this number failed meanwhile, and will be repeated: it must not find us here.
        let is_given_up = self.unbound.is_none() && self.thread.number() != claim.owner.number();
        Verdict::of(answer, engine.clock.now() < ends && !is_given_up)
    }

    /// Acts on what an answer means.
    fn follow(&mut self, claim: Claim, sent: Moment, verdict: Verdict) -> Result<Tried> {
        let engine = self.engine;
        match verdict {
            Verdict::Had { fence } => {
                self.queued = None;
                Ok(Tried::Granted(self.enter(&claim, sent, fence)))
            }
            Verdict::TooLate => {
                self.leave_behind(claim, sent);
                Ok(Tried::Again)
            }
            Verdict::Busy { retry_after } => {
                let now = engine.clock.now();
                let poll = now.plus(self.pause());
                // Not before the holder's lease can have ended, nor in a hot loop when it is about to.
                let ends =
                    retry_after.map_or(Moment::NEVER, |left| now.plus(left + Duration::from_millis(1)));
                Ok(Tried::Later(poll.min(ends)))
            }
            Verdict::Gone => Ok(Tried::Again),
            Verdict::Failed(error) => self.pause_after(error),
            Verdict::InDoubt(error) => {
                self.leave_behind(claim, sent);
                self.pause_after(error)
            }
        }
    }

    /// How long after an attempt the next one is made at the latest.
    fn pause(&self) -> Duration {
        let poll = random_between(self.engine.store.poll_every(self.want.kind));
        match self.want.terms.backoff {
            // A place in the store's queue does not last longer.
            Some(backoff) if self.store_queues => backoff.pause(self.attempts).min(poll),
            Some(backoff) => backoff.pause(self.attempts),
            None => poll,
        }
    }

    /// A thread that writes may read, as the same owner. Under a number that it had to give up meanwhile it is another,
    /// and would wait for itself.
    fn would_wait_for_own_writing(&self, claim: &Claim) -> Result<()> {
        let (engine, want) = (self.engine, self.want);
        if !want.by_thread || want.kind != Kind::Read || want.until.is_over(engine.clock.now()) {
            return Ok(());
        }
        match engine.table.of_thread(Kind::Write, want.name, self.thread.id()) {
            Some(hold)
                if hold.owner() != claim.owner && hold.is_live(engine.clock.now(), &engine.reporter) =>
            {
                let words = "this thread holds the write lock, but a request of it had no answer, so it cannot read as \
                             the same owner any more: release the write lock first";
                Err(Error::new(ErrorKind::WouldDeadlock, want.action, words))
            }
            _ => Ok(()),
        }
    }

    /// Reads what came of a hand-over to this thread.
    fn receive(&mut self, place: &Place, handed: Handed) -> Result<Tried> {
        let (claim, sent) = (handed.to.clone(), handed.sent);
        let answer = handed.receive().into();
        let verdict = self.verdict(&claim, sent, answer);
        let tried = self.follow(claim, sent, verdict);
        // Last: by now the hold is in the table, or the releaser's number is given up if it had to be. Before that
        // the releaser's thread may not ask under it again. Pairs with `Table::held_here`.
        place.ticket().received();
        tried
    }

    /// Hands an attempt that may have been, or may yet be, carried out to the watchdog, and goes on under a number
    /// that it cannot touch.
    fn leave_behind(&mut self, claim: Claim, sent: Moment) {
        self.queued = None;
        self.listening = self.listening.take().filter(|_| !self.store_queues);
        let lasts = match claim.kind.is_leased() {
            // A place in the store's queue may last longer than a short lease.
            true if self.store_queues => self.asked.max(PLACE_LASTS),
            true => self.asked,
            false => REQUEST_LASTS / 2,
        };
        let until = sent.plus(lasts).plus(self.engine.options.command_timeout);
        match &mut self.unbound {
            Some(number) => *number = unbound_number(),
            None => self.thread.retire(claim.owner.number()),
        }
        if claim.kind != Kind::Latch {
            // To ask whether a latch is open changes nothing.
            self.engine.watchdog.clean_ups().add(claim, until, self.engine.clock.now());
        }
    }

    /// Notes that the store may have this caller among those who wait, and has it forget the place under a number, or at a
    /// home, that was given up: nobody would come for that, and the lock would wait for it.
    fn queue_as(&mut self, claim: &Claim) {
        match &self.queued {
            Some(queued) if (queued.owner, queued.home) == (claim.owner, claim.home) => return,
            Some(_) => self.leave_queue(),
            None => {}
        }
        self.queued = Some(claim.clone());
    }

    /// Waits no more for the store. That takes none of the caller's time when there is none left, nor where the last
    /// request failed: then, and if it fails itself, the watchdog sees to it.
    fn leave_queue(&mut self) {
        let Some(claim) = self.queued.take() else { return };
        self.listening = None;
        let sent = self.engine.clock.now();
        let by = self.engine.one_command().min(self.latest);
        let left = if self.is_answered && sent < by {
            self.engine.store.abandon(std::slice::from_ref(&claim), by).pop()
        } else {
            None
        };
        if !matches!(left, Some(Answer::Done(_))) {
            self.leave_behind(claim, sent);
        }
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

    fn enter(&mut self, claim: &Claim, sent: Moment, fence: Option<Fence>) -> Entered {
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
            home: claim.home,
            holder,
            sent,
            lease: want.lease,
            asked: self.asked,
            ceiling: want.terms.max_hold.map(|most| sent.plus(most)),
            renewed_lease: if let Lease::Kept(_) = want.lease { self.asked } else { engine.options.lease },
            fence,
            units: claim.units,
            notice: claim.notice.clone(),
            bound: self.bound.take(),
        });
        let hold = Arc::new(hold);
        engine.table.insert(&hold, want.by_thread.then(|| self.thread.id()));
        engine.watch(&hold);
        if engine.writes_here(want, self.thread) {
            self.end_writing_in_time(&hold);
        }
        let (owner, waited) = (hold.owner(), engine.clock.now().since(self.started));
        engine.reporter.tell(|observer| observer.acquired(want.name.given(), owner, waited, self.attempts));
        Entered { hold, level }
    }

    /// Sees to it that what this thread writes ends in the store when its own time is over, not with its reading: the two
    /// may share what has the time.
    fn end_writing_in_time(&self, reading: &Arc<Hold>) {
        let engine = self.engine;
        let Some(writing) = engine.table.of_thread(Kind::Write, self.want.name, self.thread.id()) else {
            return;
        };
        if !writing.note_reading() {
            return;
        }
        let (claim, reading, aftermath) =
            (writing.claim(), Arc::clone(reading), Arc::clone(&engine.aftermath));
        let end = move |loss: &Loss| {
            if matches!(loss.reason, LossReason::Expired | LossReason::HeldTooLong) {
                let now = aftermath.clock.now();
                let until = now.plus(aftermath.lease).max(reading.until());
                aftermath.clean_ups.add(claim, until, now);
            }
        };
        writing.on_lost(Box::new(end), &engine.reporter);
        engine.watch(&writing);
    }

    // ---- sleeping

    /// Sleeps until there may be something to do: the turn in the queue, the lock given, a release here, a message, or
    /// `wake_at`. May end for no reason.
    ///
    /// Subscribes first, the first time it waits for another process; unless the subscription stood before the
    /// attempt, and nothing has been heard since, that is reason to try again as soon as it stands.
    fn sleep(&mut self, place: &Place, wake_at: Moment, heard: Option<u64>) -> Result<()> {
        let (engine, want, ticket) = (self.engine, self.want, place.ticket());
        let wish = want.kind.is_handed_over().then(|| self.wish());
        let until = wake_at.min(want.until.moment(engine.clock.now()));
        self.parker(place);
        // All that follows is looked at after the waker is set: what happened before found nobody to wake. First the end
        // of the client, which wakes everyone once. Pairs with `Engine::shutdown`.
        engine.usable(want.action)?;
        if let Some(wish) = wish {
            ticket.open(wish);
        }
        let is_held_here = || {
            !self.asks_for_itself()
                && engine.table.held_here(want.kind, want.name, engine.clock.now()).is_some()
        };
        let is_told = want.terms.backoff.is_none();
        if is_told && (self.all_ask || ticket.is_head() && !is_held_here()) {
            if self.listening.is_none() {
                let claim = self.wish().claim;
                let parker = self.parker.get_or_insert_with(|| Parker::new(&engine.clock));
                self.listening = engine.store.listen(&claim, parker.waker());
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

impl Drop for Waiting<'_> {
    /// However the wait ended: who has not got the lock stands in nobody's way.
    fn drop(&mut self) {
        self.leave_queue();
    }
}

pub(crate) fn interrupted(want: &Want<'_>) -> Error {
    Error::new(ErrorKind::Interrupted, want.action, "the wait was interrupted").on(want.name.given())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::terms::Backoff;

    #[test]
    fn who_spins_slowly_for_a_fair_lock_keeps_its_place_alive() {
        let hour = Duration::from_secs(3600);
        let engine = crate::LockClient::in_memory().fair_lock("a").engine().clone();
        let name = Arc::new(LockName::new(&Arc::from("a"), "a".to_owned()).unwrap());
        let pause = |kind, backoff| {
            let terms = Terms { backoff: Some(backoff), ..Terms::default() };
            let want = Want {
                action: "lock",
                kind,
                name: &name,
                lease: Lease::Renewed,
                until: Until::Once,
                interrupt: None,
                terms,
                by_thread: true,
            };
            Waiting::new(&engine, &want, hour, &ThreadMark::current(), Moment::NEVER).pause()
        };
        assert!(pause(Kind::Mutex, Backoff::constant(hour)) >= hour / 2);
        assert!(pause(Kind::Fair, Backoff::constant(hour)) < PLACE_LASTS / 2);
        let soon = Duration::from_millis(1);
        assert!(pause(Kind::Fair, Backoff::constant(soon)) <= soon);
    }
}
