//! Acquiring a lock: from the caller's request (`call`) to a grant.
//!
//! A thread re-enters its hold, or reuses its cached one. All other calls run the waiting loop (`waiting`).

pub(crate) mod call;
pub(crate) mod waiting;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, interrupted};
use crate::engine::acquire::waiting::Waiting;
use crate::engine::hold::{Hold, Listener};
use crate::engine::lock::Found;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner, ThreadMarker, unbound_number};
use crate::interrupt::Interrupt;
use crate::observe::{Loss, LossReason};
use crate::seam::{Attempt, Capabilities, Claim, Failure, Family, Kind};
use crate::time::{LONGEST_LEASE, Lease, Moment, checked_lease};

impl Engine {
    /// Acquires the lock. `None`: the lock was busy until the call's time limit.
    pub(crate) fn acquire(&self, call: &AcquireCall<'_>) -> Result<Option<Granted>> {
        let begun = self.clock.now();
        // The call is counted before it checks for a shutdown, so `shutdown` refuses or awaits it.
        let _call = self.calls.begin();
        self.find_or_ask(call, begun).map_err(|error| error.during(call.action).on(call.name.given()))
    }

    fn find_or_ask(&self, call: &AcquireCall<'_>, begun: Moment) -> Result<Option<Granted>> {
        let lease = self.lease_to_ask(call)?;
        let thread = ThreadMarker::current();
        let capabilities = &self.store.capabilities;
        let wishes = [call.caches(), asks_first(capabilities, call), begun < call.limit];
        let may_use = |hold: &Hold, is_until_recall| call.may_use(hold, is_until_recall);
        let (found, place) = call.local.find(call.by_thread.then(|| thread.id()), wishes, may_use, begun);
        let (mut number, is_uncontended) = (None, matches!(found, Found::Uncontended));
        match found {
            Found::Cached(hold, level) => {
                return self.reuse_cached(call, Granted { hold, level }, begun).map(Some);
            }
            Found::Own(hold) if hold.is_live(self.clock.now(), &self.reporter) => {
                if !hold.holder.is_this_task() {
                    return self.would_wait_for_itself(call, OTHER_TASK);
                }
                if call.kind.is_token() || call.config.non_reentrant {
                    return self.would_wait_for_itself(call, NOT_REENTRANT);
                }
                if let Some(granted) = self.reenter(call, &hold, lease)? {
                    return Ok(Some(granted));
                }
            }
            Found::Leaving => number = Some(unbound_number()),
            Found::Stale(stale) => self.core.send_cached_release(Some(stale), None),
            // An own hold that is lost is no obstacle: its loss gave the thread a new owner number, so a late
            // request under the old number cannot affect the new hold.
            Found::Own(_) | Found::Used | Found::Uncontended => {}
        }
        if !is_uncontended {
            if !call.by_thread || begun >= call.limit {
                // A cached hold would make the lock busy for this call, although no thread uses it.
                self.core.release_cached(call.local, None);
            }
            if let Some(words) = self.own_hold_in_the_way(call, &thread, None) {
                return self.would_wait_for_itself(call, words);
            }
        }
        let mut waiting = Waiting::new(self, capabilities, call, lease, (&thread, number), begun);
        waiting.run(is_uncontended, place)
    }

    /// Releases the lock and fails if the client was shut down: `shutdown` may have missed this hold.
    pub(crate) fn unless_shut_down(&self, call: &AcquireCall<'_>, granted: Granted) -> Result<Granted> {
        self.open(call.action).inspect_err(|_| self.drop_level(&granted.hold, granted.level))?;
        Ok(granted)
    }

    /// Why the call would wait for its own thread, if it would. `owner`: the owner in the call's claim;
    /// `None` before that is made. A read waits for its thread's write hold if their owners differ.
    fn own_hold_in_the_way(
        &self,
        call: &AcquireCall<'_>,
        thread: &ThreadMarker,
        owner: Option<Owner>,
    ) -> Option<&'static str> {
        let live = |kind| self.live_hold(kind, call.name, thread.id());
        if call.kind == Kind::Write && live(Kind::Read).is_some() {
            return Some(READS_ALREADY);
        }
        if call.kind == Kind::Read
            && let Some(writing) = live(Kind::Write)
        {
            if !call.by_thread {
                return Some(WRITES_ALREADY);
            }
            // The store sees one owner for all tasks of a thread, so it would let this task read.
            if !writing.holder.is_this_task() {
                return Some(OTHER_TASK);
            }
            return owner.filter(|owner| writing.owner() != *owner).map(|_| WROTE_AS_ANOTHER);
        }
        (!call.by_thread && !call.kind.is_shared() && live(call.kind).is_some()).then_some(HOLDS_ALREADY)
    }

    /// The result of a call that would wait for its own thread: an error, or `None` for a try.
    fn would_wait_for_itself(&self, call: &AcquireCall<'_>, words: &str) -> Result<Option<Granted>> {
        if self.clock.now() >= call.limit {
            return Ok(None);
        }
        Err(Error::new(ErrorKind::WouldDeadlock, call.action, words))
    }

    pub(super) fn live_hold(&self, kind: Kind, name: &Arc<LockName>, thread: u64) -> Option<Arc<Hold>> {
        let hold = self.registry.of_thread(kind, name, thread);
        hold.filter(|hold| hold.is_live(self.clock.now(), &self.reporter))
    }

    /// Checks everything that needs no I/O, and returns the lease to request.
    pub(crate) fn lease_to_ask(&self, call: &AcquireCall<'_>) -> Result<Duration> {
        self.usable_for(call.action, call.kind, call.name)?;
        let config = call.config.checked(call.action)?;
        Error::require(call.action, call.units > 0, || "the number of permits must be at least 1")?;
        let asked = match call.lease {
            Lease::Renewed => self.options.lease,
            Lease::Fixed(lease) | Lease::Kept(lease) => checked_lease(call.action, lease)?,
        };
        if config.cached {
            self.can_cache(call)?;
        }
        // A condition's call, with a `number`, goes on: it is in a queue, which only its `Waiting` leaves.
        if call.number.is_none() && call.interrupt.is_some_and(Interrupt::is_interrupted) {
            return Err(interrupted(call.action));
        }
        let asked = config.max_hold.map_or(asked, |most| asked.min(most));
        Ok(if call.kind.is_leased() { asked } else { LONGEST_LEASE })
    }

    /// Whether a request for several locks may include this one: no thread of this process has or wants it,
    /// and no other process wanted it lately.
    pub(crate) fn can_ask_ahead(&self, call: &AcquireCall<'_>) -> bool {
        let thread = ThreadMarker::current();
        let is_own = |kind| self.registry.of_thread(kind, call.name, thread.id()).is_some();
        let has_other_half = call.by_thread && call.kind.other_half().is_some_and(is_own);
        !has_other_half && call.local.on(self.clock.now(), |lock, at| lock.is_uncontended(at))
    }

    /// Makes the watchdog end this thread's write hold in the store once that hold expires. The thread also
    /// reads, and in the store both holds may share one expiry, which renewals of the read hold extend.
    fn end_writing_in_time(&self, call: &AcquireCall<'_>, thread: &ThreadMarker, reading: &Arc<Hold>) {
        let writing = self.registry.of_thread(Kind::Write, call.name, thread.id());
        let Some(writing) = writing.filter(|writing| writing.is_first(|own| &mut own.is_read_beside)) else {
            return;
        };
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

/// Whether a call for an uncontended lock may attempt at once.
fn asks_first(capabilities: &Capabilities, call: &AcquireCall<'_>) -> bool {
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
const WRITES_ALREADY: &str = "this thread holds the write lock, and an owned guard is another owner, whose \
    read lock would wait for it: use a guard of this thread, or release the write lock first";
const WROTE_AS_ANOTHER: &str = "this thread holds the write lock, but one of its requests had no answer, so it \
    cannot read as the same owner any more: release the write lock first";
const HOLDS_ALREADY: &str = "this thread holds the lock, and an owned guard would wait for it as another owner: release the lock first";

impl Engine {
    /// Adds a level to a live hold; `None` if it turned out to be lost.
    ///
    /// The request names the new count, so it can be repeated after an unknown outcome. A grant counts only
    /// if the window that the hold had before is still open when the answer is read: otherwise the loss may
    /// have been reported, and another owner may have held the lock meanwhile.
    pub(crate) fn reenter(
        &self,
        call: &AcquireCall<'_>,
        hold: &Arc<Hold>,
        asked: Duration,
    ) -> Result<Option<Granted>> {
        let count = hold.count().saturating_add(1);
        let wants_fence = call.wants_fence() && hold.fencing_token().is_none();
        let mut claim = Claim { kind: call.kind, wants_fence, ..hold.claim() };
        if call.lease != Lease::Renewed {
            hold.with(|own| own.recallable = None); // so the hold is not cached with this level's lease
        }
        let (begun, timeout) = (self.clock.now(), self.options.command_timeout);
        let mut sent = begun;
        let ask = || {
            self.open(call.action).map_err(Failure::Refused)?;
            sent = self.clock.now();
            claim.lease = hold.within_ceiling(asked, sent);
            let answer = self.store.attempt(&claim, count, sent.plus(timeout));
            answer.inspect_err(|failure| {
                self.reporter.report_request("acquire", sent, &self.clock, Some(failure.error()));
            })
        };
        let give_up = call.limit.min(begun.plus(self.options.retry_timeout));
        let stands = || hold.is_live(self.clock.now(), &self.reporter);
        let answered = self.repeat(give_up, call.interrupt, ask, |_| stands());
        let is_granted = matches!(answered, Ok((Attempt::Granted { .. }, _)));
        // `_report` reports on drop, after the level was entered: before, an observer could end the hold.
        let _report =
            answered.as_ref().ok().map(|_| self.reporter.request_report("acquire", sent, &self.clock, None));
        let mut stands = stands();
        if stands && is_granted && !hold.confirm(sent, claim.lease, &self.clock) {
            self.lose(hold, LossReason::Expired);
            stands = false;
        }
        let in_doubt = answered.as_ref().map_or_else(Error::outcome_unknown, |(_, in_doubt)| *in_doubt);
        if in_doubt {
            hold.retire_owner_on_end(); // the late request must not change the next hold's count
        }
        // Without an answer, or after a late grant, the store may count this level, so the client cleans up.
        if !stands && (in_doubt || is_granted) {
            self.clean_up(claim, sent.plus(asked).plus(timeout), self.clock.now());
        }
        match answered? {
            (Attempt::Granted { fence, .. }, _) if stands => {
                hold.set_fence(fence);
                // `Kept` makes the client renew a new hold until a multi-lock has all its locks. For a
                // re-entry, only the hold's earlier levels decide whether the client renews the hold.
                let lease = match call.lease {
                    Lease::Kept(lease) => Lease::Fixed(lease),
                    other => other,
                };
                let level = hold.with(|own| own.levels.add(lease));
                self.watch(hold);
                Ok(Some(Granted { hold: Arc::clone(hold), level }))
            }
            (Attempt::Granted { .. }, _) => Ok(None),
            (Attempt::Lost | Attempt::Busy { .. } | Attempt::InWaitQueue { .. }, _) => {
                self.lose(hold, LossReason::Gone);
                Ok(None)
            }
        }
    }
}
