//! One grant of a lock, from its first level to its last: its window in time, its levels, its loss.
//!
//! `phase` is where it stands in its life, `levels` its re-entries, `loss` who is notified of its loss.

pub(crate) mod entry;
mod given_up;
pub(crate) mod grant;
mod keeper;
mod levels;
mod listeners;
mod loss;
mod own_hash;
mod phase;
mod renewal;
pub(crate) mod slot;
pub(crate) mod turn;
pub(crate) mod until_asked;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use crate::engine::hold::entry::Next;
use crate::engine::hold::entry::{Asking as AskingFor, Entry, Found as FoundAs, Held, QueuePlace as PlaceOf};
pub(crate) use crate::engine::hold::grant::{Grant, Holder};
use crate::engine::hold::levels::Levels;
use crate::engine::hold::listeners::Listeners;
use crate::engine::hold::phase::Phase;
pub(crate) use crate::engine::hold::phase::Standing;
pub(crate) use crate::engine::hold::renewal::Outlook;
use crate::engine::hold::slot::AgendaSlot;
use crate::engine::policy::{at_risk, renewal_slack};
use crate::ident::{FencingToken, LockName, Owner};
use crate::observe::reporter::Reporter;
use crate::observe::spans::HoldSpan;
use crate::observe::{Loss, LossReason, event::Event};
use crate::seam::{Bound, Claim, Kind, Releasing};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Clock, Lease, Moment, SHORTEST_LEASE, window};

/// One lock in this process, with its holds.
pub(crate) type LockEntry = Entry<Hold>;
pub(crate) type Asking = AskingFor<Hold>;
pub(crate) type Found = FoundAs<Hold>;
pub(crate) type QueuePlace = PlaceOf<Hold>;

impl Held for Hold {
    fn is_of_thread(&self, thread: u64) -> bool {
        Hold::is_of_thread(self, thread)
    }

    fn stands_until(&self, now: Moment) -> Option<Moment> {
        self.loss_at(now).is_none().then(|| self.until())
    }
}

impl Releasing for Hold {
    fn overtaken(&self) {
        self.retire_owner();
    }
}

/// One grant.
///
/// `phase` and `until` are atomic: each look at a hold reads them. All else that changes is under one mutex,
/// `state`.
pub(crate) struct Hold {
    /// By which the store is asked to renew or release it, but for the lease.
    claim: Claim,
    /// The lock in this process. It has this hold too, until the registry takes it out.
    entry: Arc<LockEntry>,
    pub(crate) holder: Holder,
    pub(crate) span: HoldSpan,
    /// The holder leads, for those who look.
    pub(crate) leads: bool,
    ceiling: Option<Moment>,
    bound: Option<Arc<dyn Bound>>,
    may_be_kept: bool,
    phase: Phase,
    /// End of its own window, as `Moment::nanos`. Only ever raised.
    until: AtomicU64,
    /// Something else than its guard has ended a guard's level.
    has_spent_guard: AtomicBool,
    state: Mutex<State>,
}

/// The part of a hold under its mutex, which is the last that a thread takes: nothing else is called while it
/// is held.
struct State {
    levels: Levels,
    /// When it was asked for; of one that was kept, when it was taken again.
    since: Moment,
    /// The lease that renewals ask for.
    renewed_lease: Duration,
    /// When the store was last asked to keep it; see `needs_keepalive`.
    kept_alive_at: Moment,
    /// The last renewal failed.
    renewal_has_failed: bool,
    /// A renewal has been sent and not been answered.
    is_under_way: bool,
    /// The watchdog has it among those that it renews next.
    is_queued: bool,
    /// A request under its number may still arrive; see `retire_owner_on_end`.
    is_spent: bool,
    /// Its owner reads as well; see `note_reading`.
    is_read_beside: bool,
    /// The end of the holding thread has been reported.
    is_abandoned: bool,
    /// The steps after a loss have been done; see `timer.rs`.
    has_lapsed: bool,
    /// See `note_kept`.
    is_kept: bool,
    /// The present use began by a call that asks for the hold to be kept.
    asks_to_keep: bool,
    /// It is kept until others ask for it, and renewed meanwhile though it has no level.
    until_asked: bool,
    /// The thread that acquires more locks to go with it.
    acquires_more: Option<u64>,
    /// Its place in the registry's agenda. Changed under the agenda's mutex alone.
    slot: AgendaSlot,
    fence: Option<FencingToken>,
    listeners: Listeners,
}

impl State {
    /// Whether something that was asked about it may still come.
    fn is_in_doubt(&self) -> bool {
        self.is_spent || self.is_under_way
    }
}

impl Hold {
    /// Makes the hold with its first level; returns that level's id too.
    pub(crate) fn new(grant: Grant, entry: &Arc<LockEntry>) -> (Hold, u64) {
        let mut levels = Levels::default();
        let level = levels.add(grant.lease);
        let until = grant.sent.plus(window(grant.claim.lease));
        let hold = Hold {
            claim: grant.claim.of_hold(),
            entry: Arc::clone(entry),
            holder: grant.holder,
            span: HoldSpan::none(),
            leads: grant.leads,
            ceiling: grant.ceiling,
            bound: grant.bound,
            may_be_kept: grant.may_be_kept,
            phase: Phase::live(),
            until: AtomicU64::new(until.nanos()),
            has_spent_guard: AtomicBool::new(false),
            state: Mutex::new(State {
                levels,
                since: grant.sent,
                renewed_lease: grant.renewed_lease,
                kept_alive_at: grant.sent,
                renewal_has_failed: false,
                is_under_way: false,
                is_queued: false,
                is_spent: false,
                is_read_beside: false,
                is_abandoned: false,
                has_lapsed: false,
                is_kept: false,
                asks_to_keep: grant.asks_to_keep,
                until_asked: grant.until_asked,
                acquires_more: None,
                slot: AgendaSlot::Out,
                fence: grant.fence,
                listeners: Listeners::default(),
            }),
        };
        (hold, level)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.claim.kind
    }

    pub(crate) fn name(&self) -> &Arc<LockName> {
        &self.claim.name
    }

    pub(crate) fn entry(&self) -> &Arc<LockEntry> {
        &self.entry
    }

    pub(crate) fn owner(&self) -> Owner {
        self.claim.owner
    }

    /// The home where the store keeps it.
    pub(crate) fn home(&self) -> u32 {
        self.claim.home
    }

    pub(crate) fn units(&self) -> u32 {
        self.claim.units
    }

    pub(crate) fn since(&self) -> Moment {
        self.state.lock().since
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.state.lock().fence
    }

    /// The first fence stays: a re-entry must not outdate what the outer level is writing with.
    pub(crate) fn set_fence(&self, fence: Option<FencingToken>) {
        let mut state = self.state.lock();
        state.fence = state.fence.or(fence);
    }

    /// The claim by which the store is asked to renew or release this hold.
    pub(crate) fn claim(&self) -> Claim {
        Claim { lease: self.renewed_lease(), ..self.claim.clone() }
    }

    /// Whether something that was asked about it may still come.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.lock().is_in_doubt()
    }

    pub(crate) fn is_of_thread(&self, thread: u64) -> bool {
        matches!(self.holder, Holder::Thread { id, .. } if id == thread)
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Whether it belongs to a thread, not to a guard that may change threads.
    pub(crate) fn is_of_any_thread(&self) -> bool {
        matches!(self.holder, Holder::Thread { .. })
    }

    /// Whether this call is the first to say that the owner of a write hold reads as well. See
    /// `Waiting::end_writing_in_time`.
    pub(crate) fn note_reading(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_read_beside, true)
    }

    /// Gives up the owner number for the holding thread's next holds. A loss does it by itself: see
    /// [`lose`](Self::lose).
    pub(crate) fn retire_owner(&self) {
        if let Some(mark) = self.holder.thread() {
            // Noted first, given up second: see `Request::judge`.
            self.entry.given_up.add(self.claim.owner.number());
            mark.retire(self.claim.owner.number());
        }
    }

    /// A request that concerns this hold alone went without an answer, and may still come: the holding
    /// thread's next hold is not to be under this number. While this hold lives the thread keeps its owner
    /// number, so that a writer can still take the read lock.
    pub(crate) fn retire_owner_on_end(&self) {
        self.state.lock().is_spent = true;
        // Set first, looked second. Pairs with `begin_release`.
        if !self.phase.is_live() {
            self.retire_owner();
        }
    }

    // ---- levels

    pub(crate) fn add_level(&self, lease: Lease) -> u64 {
        self.state.lock().levels.add(lease)
    }

    /// Whether it can be kept, and be had again as if it were granted anew: nothing is left of its levels. `Some`:
    /// whether for a turn too. `unlock` promises that the lock is free, where `keep` was not asked for.
    pub(crate) fn can_be_kept(&self, is_dropped: bool) -> Option<bool> {
        let state = self.state.lock();
        // One that is kept until others ask has the same fence throughout, as by re-entries, and a renewal that is
        // under way concerns no other hold than this.
        // A hold that a session bounds may stay as well: `until` is the end of both.
        let by_turn = self.may_be_kept
            && (is_dropped || state.asks_to_keep)
            && state.fence.is_none()
            && self.bound.is_none();
        let is_sound = !state.renewal_has_failed
            && if state.until_asked { !state.is_spent } else { !state.is_in_doubt() };
        let is_nobodys = state.listeners.is_empty() && !self.span.is_open();
        ((state.until_asked || by_turn) && is_sound && is_nobodys).then_some(by_turn)
    }

    /// Whether it is one that is kept until others ask for it.
    pub(crate) fn is_until_asked(&self) -> bool {
        self.state.lock().until_asked
    }

    /// From now on it is given back with its last level, as any other.
    pub(crate) fn end_until_asked(&self) {
        self.state.lock().until_asked = false;
    }

    /// It is kept: it was told to have ended, and nobody is to hear of it until it
    /// [begins again](Self::begin_again). Or it is not, after all.
    pub(crate) fn note_kept(&self, is_kept: bool) {
        self.state.lock().is_kept = is_kept;
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.state.lock().is_kept
    }

    /// The first level of a hold that was kept, for a thread that asked at `since`, and asks to keep it or not.
    pub(crate) fn begin_again(&self, since: Moment, asks_to_keep: bool) -> u64 {
        let mut state = self.state.lock();
        (state.since, state.is_kept, state.asks_to_keep) = (since, false, asks_to_keep);
        state.levels.add(Lease::Renewed)
    }

    /// Leaves the end of a level to a guard.
    pub(crate) fn guard_level(&self, id: u64) {
        if let Some(level) = self.state.lock().levels.get_mut(id) {
            level.guarded = true;
        }
    }

    /// A level that was kept until other locks were acquired ends by itself from now on. Renewals that later
    /// levels ask for are with `renewed_lease`.
    pub(crate) fn settle_level(&self, id: u64, renewed_lease: Duration) {
        let mut state = self.state.lock();
        if state.levels.settle(id) {
            state.renewed_lease = renewed_lease;
        }
    }

    /// The leases that the levels asked for, from the outermost in, and which of them is `own`; `None` if a
    /// guard has another.
    pub(crate) fn levels_beside(&self, own: u64) -> Option<Vec<(bool, Lease)>> {
        let state = self.state.lock();
        let open = &state.levels.open;
        let is_free = open.iter().all(|level| level.id == own || !level.guarded);
        is_free.then(|| open.iter().map(|level| (level.id == own, level.lease)).collect())
    }

    /// Ends a level; if none is named, the innermost that no guard ends, or else the innermost. Returns how
    /// many are left. `None`: there is no such level.
    pub(crate) fn end_level(&self, level: Option<u64>) -> Option<u32> {
        let mut state = self.state.lock();
        let ended = state.levels.take(level)?;
        if level.is_none() && ended.guarded {
            self.has_spent_guard.store(true, Ordering::Release);
        }
        u32::try_from(state.levels.open.len()).ok()
    }

    /// Whether this level of a guard has ended. Without the mutex, unless `unlock` has ended a guard's.
    pub(crate) fn has_ended(&self, level: u64) -> bool {
        self.has_spent_guard.load(Ordering::Acquire) && self.state.lock().levels.get_mut(level).is_none()
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.state.lock().levels.open.len()).unwrap_or(u32::MAX)
    }

    /// Whether a renewal is wanted, and can still move the end of the window.
    pub(crate) fn is_renewed(&self) -> bool {
        self.is_renewed_in(&self.state.lock())
    }

    fn is_renewed_in(&self, state: &State) -> bool {
        (state.levels.renewed > 0 || state.until_asked) && !self.is_at_ceiling(state)
    }

    pub(crate) fn renewed_lease(&self) -> Duration {
        self.state.lock().renewed_lease
    }

    /// A renewal that would fall due this soon goes along with others, so that many holds make few rounds.
    pub(crate) fn slack(&self) -> Duration {
        renewal_slack(self.renewed_lease())
    }

    /// The lease to ask for at `now`, when `lease` is wanted: the hold is not to outlast its ceiling.
    pub(crate) fn within_ceiling(&self, lease: Duration, now: Moment) -> Duration {
        match self.ceiling {
            Some(ceiling) => lease.min(ceiling.since(now)).max(SHORTEST_LEASE),
            None => lease,
        }
    }

    /// Whether the window ends where the ceiling wants it, less the drift of a lease that was cut short by
    /// it.
    fn is_at_ceiling(&self, state: &State) -> bool {
        self.ceiling.is_some_and(|ceiling| self.window_end() >= ceiling.minus(state.renewed_lease / 100))
    }

    // ---- window

    /// When the hold ends unless it is confirmed: its window's end, or that of what it is bound to.
    pub(crate) fn until(&self) -> Moment {
        let bound = self.bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        self.window_end().min(bound)
    }

    fn window_end(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// A request sent at `sent`, by which the store set `lease`, was confirmed. Never shortens the window.
    /// `false`: that had ended before this was known, and may have been seen to end. Then the hold is lost,
    /// although the store has prolonged it.
    #[must_use = "a hold whose window had ended is lost"]
    pub(crate) fn confirm(&self, sent: Moment, lease: Duration, clock: &Clock) -> bool {
        let before = self.until.fetch_max(sent.plus(window(lease)).nanos(), Ordering::AcqRel);
        let mut state = self.state.lock();
        state.renewal_has_failed = false;
        if lease >= state.renewed_lease {
            state.kept_alive_at = state.kept_alive_at.max(sent);
        }
        drop(state);
        // Raised first, the time read second: a thread that reads a later time sees the new end.
        clock.now().nanos() < before
    }

    // ---- the agenda

    /// Whether any of its levels, open or not, was to be renewed: then its end was not meant to come by
    /// itself.
    pub(crate) fn was_renewed(&self) -> bool {
        self.state.lock().levels.was_renewed
    }

    /// Whether this call is the first to see to what follows its loss.
    pub(crate) fn note_lapsed(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().has_lapsed, true)
    }

    /// The watchdog has it now, or has it no more; whether that is new.
    pub(crate) fn set_queued(&self, is_queued: bool) -> bool {
        std::mem::replace(&mut self.state.lock().is_queued, is_queued) != is_queued
    }

    pub(crate) fn slot(&self) -> AgendaSlot {
        self.state.lock().slot
    }

    /// For the agenda.
    pub(crate) fn replace_slot(&self, slot: AgendaSlot) -> AgendaSlot {
        std::mem::replace(&mut self.state.lock().slot, slot)
    }

    /// The reason for which it is lost by what is known at `now`, without changing anything. One that stands is
    /// seen to by the two atomics alone.
    pub(crate) fn loss_at(&self, now: Moment) -> Option<LossReason> {
        if let Some(reason) = self.phase.loss() {
            return Some(reason);
        }
        if now < self.until() {
            return None;
        }
        if self.bound.as_ref().is_some_and(|bound| bound.is_gone()) {
            return Some(LossReason::Gone);
        }
        let is_meant = self.is_at_ceiling(&self.state.lock());
        Some(if is_meant { LossReason::HeldTooLong } else { LossReason::Expired })
    }

    /// The same, and whether one that stands may soon be lost.
    pub(crate) fn standing(&self, now: Moment) -> Standing {
        if let Some(reason) = self.loss_at(now) {
            return Standing::Lost(reason);
        }
        let until = self.until();
        let state = self.state.lock();
        let is_late = state.renewal_has_failed || until.since(now) < at_risk(state.renewed_lease);
        if is_late && self.is_renewed_in(&state) { Standing::AtRisk(until) } else { Standing::Held }
    }

    /// Whether the hold stands at `now`; one that has run out becomes lost by this look.
    pub(crate) fn is_live(&self, now: Moment, reporter: &Reporter) -> bool {
        match self.loss_at(now) {
            None => true,
            Some(reason) => {
                self.lose(reason, now, reporter);
                false
            }
        }
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.phase.is_releasing()
    }

    /// Begins the full release; `false` if the hold is lost already, or another call releases it.
    ///
    /// A number under which something may still come is not the thread's next one: a renewal that is under
    /// way would prolong a hold that has a lease of its own.
    pub(crate) fn begin_release(&self) -> bool {
        let has_begun = self.phase.begin_release();
        // Changed first, looked second. Pairs with `retire_owner_on_end` and `begin_renewal`.
        if has_begun && self.is_in_doubt() {
            self.retire_owner();
        }
        has_begun
    }

    /// Records the loss, gives up the owner's number, and notifies all listeners, once. Returns whether this
    /// call did it.
    ///
    /// The number, as a request under it may be on its way, and the old guard may still try to release. A
    /// write hold whose owner reads is ended in the store from here on, again and again.
    pub(crate) fn lose(&self, reason: LossReason, now: Moment, reporter: &Reporter) -> bool {
        if self.phase.loss().is_some() {
            return false;
        }
        // Given up first, lost second: a thread that sees the loss has another number for what it acquires next.
        // Also of one that is being released: its window has ended, and the release may come later. Not at the
        // end of its client, which releases it: a thread has the same number in all clients.
        if reason != LossReason::ShutDown {
            self.retire_owner();
        }
        if !self.phase.lose(reason) && !self.phase.lose_while_releasing(reason) {
            return false;
        }
        // Changed first, looked second, as by `begin_release`.
        if self.is_in_doubt() {
            self.retire_owner();
        }
        // Changed first, looked second. Pairs with `Engine::take_again`.
        if self.is_kept() {
            return true; // nobody held it
        }
        let loss = Loss { name: self.name().given().to_owned(), owner: self.owner(), reason };
        let is_abandoned = self.notify(&loss, reporter);
        reporter.counters.note_loss(reason);
        let kind = self.kind().label();
        let overdue = if self.is_renewed() { now.since(self.due()) } else { Duration::ZERO };
        let (held, span) = (now.since(self.since()), self.span.end(reason.end(is_abandoned)));
        reporter.observe_later(move |observer| {
            span(&|| observer.event(&Event::Lost { loss: &loss, kind, held, overdue, is_abandoned }));
        });
        true
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name().given())
            .field("owner", &self.owner())
            .field("phase", &self.phase)
            .field("until", &self.until())
            .finish_non_exhaustive()
    }
}
