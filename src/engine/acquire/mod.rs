//! Acquiring a lock: from the caller's request (`call`) to a grant.
//!
//! A thread that holds the lock re-enters it. All other calls attempt and wait in one loop (`waiting`).

pub(crate) mod call;
pub(crate) mod waiting;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, RETRY_PAUSE, RetryBudget, interrupted};
use crate::engine::acquire::waiting::Waiting;
use crate::engine::hold::{Hold, Listener};
use crate::engine::lock::Found;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, ThreadMarker, unbound_number};
use crate::interrupt::Interrupt;
use crate::observe::{Loss, LossReason};
use crate::park::{Parker, Woken};
use crate::seam::{Attempt, Capabilities, Claim, Failure, Family, Kind};
use crate::time::{LONGEST_LEASE, Lease, Moment, random_between};

impl Engine {
    /// Acquires the lock. `None`: the lock was busy until the call's time limit.
    pub(crate) fn acquire(&self, call: &AcquireCall<'_>) -> Result<Option<Granted>> {
        let begun = self.clock.now();
        // The call is counted before it checks for a shutdown, so `shutdown` refuses or awaits it.
        let _call = self.calls.begin();
        let lease = self.lease_to_ask(call)?;
        let thread = ThreadMarker::current();
        let capabilities = self.store.capabilities();
        let asks = asks_first(&capabilities, call);
        let wishes = [call.caches(), asks, !call.limit.is_over(begun)];
        let may_use = |hold: &Hold, reuse| call.may_use(hold, reuse);
        let waiting = |number| Waiting::new(self, capabilities, call, lease, (&thread, number), begun);
        let (found, place) = call.local.find(call.by_thread.then(|| thread.id()), wishes, may_use, begun);
        let granted = match found {
            Found::Uncontended => waiting(None).run(true, place),
            Found::Cached(hold, level) => self.reuse_cached(call, Granted { hold, level }, begun).map(Some),
            Found::Own(hold) if hold.is_live(self.clock.now(), &self.reporter) => {
                if !hold.holder.is_this_task() {
                    return self.would_wait_for_itself(call, OTHER_TASK);
                }
                if call.kind.is_token() || !call.config.reentrant {
                    return self.would_wait_for_itself(call, NOT_REENTRANT);
                }
                if let Some(granted) = self.reenter(call, &hold, lease)? {
                    return Ok(Some(granted));
                }
                self.wait_for(call, &thread, begun, || waiting(None))
            }
            Found::Leaving => self.wait_for(call, &thread, begun, || waiting(Some(unbound_number()))),
            Found::Stale(hold, next) => {
                self.core.send_cached_release(Some((hold, next)), begun, Vec::new());
                self.wait_for(call, &thread, begun, || waiting(None))
            }
            // A lost hold was found, or the lock is in use. After a loss the new hold has another owner
            // number, so that late requests cannot affect it; see `Hold::lose`.
            Found::Own(_) | Found::Used => self.wait_for(call, &thread, begun, || waiting(None)),
        };
        granted.map_err(|error| error.during(call.action).on(call.name.given()))
    }

    /// Waits for a lock that a thread here has or wants, or that another process wanted lately.
    #[cold]
    fn wait_for<'a>(
        &self,
        call: &AcquireCall<'_>,
        thread: &ThreadMarker,
        begun: Moment,
        waiting: impl FnOnce() -> Waiting<'a>,
    ) -> Result<Option<Granted>> {
        if !call.by_thread || call.limit.is_over(begun) {
            self.release_cached(call.local); // the call would find the lock busy, although no thread holds it
        }
        if let Some(words) = self.own_hold_in_the_way(call, thread) {
            return self.would_wait_for_itself(call, words);
        }
        waiting().run(false, None)
    }

    /// Releases the lock and fails if the client was shut down: `shutdown` may have missed this hold.
    pub(crate) fn unless_shut_down(&self, call: &AcquireCall<'_>, granted: Granted) -> Result<Granted> {
        if let Err(error) = self.open(call.action) {
            self.drop_level(&granted.hold, granted.level);
            return Err(error);
        }
        Ok(granted)
    }

    fn own_hold_in_the_way(&self, call: &AcquireCall<'_>, thread: &ThreadMarker) -> Option<&'static str> {
        let live = |kind| self.live_hold(kind, call.name, thread);
        let holds = |kind| live(kind).is_some();
        if call.kind == Kind::Write && holds(Kind::Read) {
            return Some(READS_ALREADY);
        }
        if call.kind == Kind::Read
            && let Some(writing) = live(Kind::Write)
        {
            if !call.by_thread {
                return Some(WRITES_ALREADY);
            }
            // The store counts all tasks of a thread as one owner, and would let both in.
            if !writing.holder.is_this_task() {
                return Some(OTHER_TASK);
            }
        }
        (!call.by_thread && !call.kind.is_shared() && holds(call.kind)).then_some(HOLDS_ALREADY)
    }

    /// The result of a call that would wait for its own thread: an error, or `None` for a try.
    fn would_wait_for_itself(&self, call: &AcquireCall<'_>, words: &str) -> Result<Option<Granted>> {
        if call.limit.is_over(self.clock.now()) {
            return Ok(None);
        }
        Err(Error::new(ErrorKind::WouldDeadlock, call.action, words).on(call.name.given()))
    }

    pub(super) fn live_hold(
        &self,
        kind: Kind,
        name: &Arc<LockName>,
        thread: &ThreadMarker,
    ) -> Option<Arc<Hold>> {
        let hold = self.registry.of_thread(kind, name, thread.id());
        hold.filter(|hold| hold.is_live(self.clock.now(), &self.reporter))
    }

    /// Checks everything that needs no I/O, and returns the lease to request.
    pub(crate) fn lease_to_ask(&self, call: &AcquireCall<'_>) -> Result<Duration> {
        let on_this = |error: Error| error.on(call.name.given());
        self.usable_for(call.action, call.kind, call.name).map_err(on_this)?;
        let config = call.config.checked(call.action).map_err(on_this)?;
        if call.units == 0 {
            return Err(on_this(Error::invalid(call.action, "the number of permits must be at least 1")));
        }
        let asked = self.asked(call.action, call.lease).map_err(on_this)?;
        if config.cached {
            self.can_cache(call).map_err(on_this)?;
        }
        let asked = config.max_hold.map_or(asked, |most| asked.min(most));
        let asked = if call.kind.is_leased() { asked } else { LONGEST_LEASE };
        // An interrupted caller with a place in the store's queue goes on, to leave the queue.
        if call.number.is_none() && call.interrupt.is_some_and(Interrupt::is_interrupted) {
            return Err(interrupted(call));
        }
        Ok(asked)
    }

    /// Whether a request for several locks may include this one: no thread of this process has or wants it,
    /// and no other process wanted it lately.
    pub(crate) fn can_ask_ahead(&self, call: &AcquireCall<'_>) -> bool {
        let thread = ThreadMarker::current();
        let is_own = |kind| self.registry.of_thread(kind, call.name, thread.id()).is_some();
        let touches_own = call.by_thread && (is_own(call.kind) || call.kind.other_half().is_some_and(is_own));
        !touches_own && call.local.on(self.clock.now(), |lock, at| lock.is_uncontended(at))
    }

    /// Fails if the thread would wait for its own write lock. A thread that writes can read, because both
    /// holds have one owner, but not if this owner number was retired meanwhile.
    fn would_wait_for_own_writing(
        &self,
        call: &AcquireCall<'_>,
        thread: &ThreadMarker,
        claim: &Claim,
    ) -> Result<()> {
        if !call.by_thread || call.kind != Kind::Read || call.limit.is_over(self.clock.now()) {
            return Ok(());
        }
        match self.registry.of_thread(Kind::Write, call.name, thread.id()) {
            Some(hold) if hold.owner() != claim.owner && hold.is_live(self.clock.now(), &self.reporter) => {
                let words = "this thread holds the write lock, but one of its requests had no answer, so \
                    it cannot read as the same owner any more: release the write lock first";
                Err(Error::new(ErrorKind::WouldDeadlock, call.action, words))
            }
            _ => Ok(()),
        }
    }

    /// Makes the store end an expired write hold: the two holds of one thread may share one expiry, and the
    /// read hold's renewals would keep the write hold alive too.
    fn end_writing_in_time(&self, call: &AcquireCall<'_>, thread: &ThreadMarker, reading: &Arc<Hold>) {
        let Some(writing) = self.registry.of_thread(Kind::Write, call.name, thread.id()) else {
            return;
        };
        if !writing.is_first(|own| &mut own.is_read_beside) {
            return;
        }
        // The core owns the hold, and the hold owns this callback, so a strong reference would be a cycle.
        let (claim, reading, core) = (writing.claim(), Arc::clone(reading), Arc::downgrade(&self.core));
        let end = move |loss: &Loss| {
            if let (LossReason::Expired | LossReason::HeldTooLong, Some(core)) = (loss.reason, core.upgrade())
            {
                let now = core.clock.now();
                let until = now.plus(core.options.lease).max(reading.until());
                core.clean_up(claim, until, now);
            }
        };
        writing.listen(Listener::OnLost(Box::new(end)), &self.reporter);
        self.watch(&writing);
    }

    /// Whether this thread wants to read under its own write lock. The store grants such a read at once. The
    /// thread must not queue behind other readers, because these wait for its write lock.
    fn writes_here(&self, call: &AcquireCall<'_>, thread: &ThreadMarker) -> bool {
        call.kind == Kind::Read
            && call.by_thread
            && self.registry.of_thread(Kind::Write, call.name, thread.id()).is_some()
    }
}

/// Whether a call for an uncontended lock can begin with one plain attempt.
fn asks_first(capabilities: &Capabilities<'_>, call: &AcquireCall<'_>) -> bool {
    let is_plain = matches!(call.kind.family(), Family::Lock | Family::Token);
    is_plain
        && call.config.backoff.is_none()
        && call.config.max_hold.is_none()
        && capabilities.majority.is_none()
        && capabilities.sessions.is_none()
        && !(capabilities.queues)(call.kind)
}

const OTHER_TASK: &str = "another task of this thread holds the lock, and cannot release it while this \
    task blocks the thread: use an owned guard, or spawn_blocking";
const NOT_REENTRANT: &str = "this thread already holds the lock, which is not reentrant";
const READS_ALREADY: &str =
    "this thread holds the read lock, which cannot become the write lock: release it first";
const WRITES_ALREADY: &str = "this thread holds the write lock, and an owned guard would read as another \
    owner: use a guard of this thread, or release the write lock first";
const HOLDS_ALREADY: &str = "this thread holds the lock, and an owned guard would wait for it as another owner: release the lock first";

/// Maximum number of levels: the range of Redisson's counter.
const MOST_HOLDS: u32 = i32::MAX as u32;

impl Engine {
    /// Adds a level to a live hold; `None` if it turned out to be lost.
    ///
    /// The request names the new count, so it can be repeated after an unknown outcome. A grant counts only
    /// if the window before the request is still open when the answer is read: otherwise the loss may have
    /// been reported, and another owner may have held the lock meanwhile.
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
            hold.end_until_recall(); // a cached hold must not get this level's lease
        }
        let mut retry_budget = RetryBudget::default();
        let parker = Parker::new(&self.clock);
        // Set after a request of unknown outcome: until then it may hold the lock.
        let mut in_doubt: Option<Moment> = None;
        loop {
            self.open(call.action)?;
            let sent = self.clock.now();
            claim.lease = hold.within_ceiling(asked, sent);
            let timeout = self.options.command_timeout;
            let answer = self.store.attempt(&claim, count, sent.plus(timeout));
            // Reported after the level is entered: an observer may drop a guard of this hold.
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
            // The store may count this level after no answer, or after a grant that came too late.
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
                    // Whether the hold is renewed while a group is acquired depends on its outer level.
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
                        hold.retire_owner_on_end(); // the late request must not change the next hold's count
                    }
                    let error =
                        retry_budget.note(self.options.retry_timeout, error, now, call.limit.is_over(now))?;
                    if !stands {
                        return Err(error.during(call.action).on(call.name.given()));
                    }
                    drop(report); // reports now, before the pause
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
