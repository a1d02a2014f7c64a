//! One grant of a lock, until its last level ends: its window, its levels, its loss.
//!
//! `local_lock` is the lock in this process, with the state machine of `engine/lock` under its mutex. `phase`
//! is the part of a hold's state that threads read without the mutex.

pub(crate) mod local_lock;
mod loss;
mod phase;
mod renewal;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::config::debug_fields;
pub(crate) use crate::engine::hold::local_lock::{LocalLock, LockState, QueuePlace, free_first, take_free};
pub(crate) use crate::engine::hold::phase::{Listener, OnContended, Standing};
use crate::engine::hold::phase::{Listeners, Phase};
use crate::engine::lock::{Handle, HoldState, Stage};
use crate::ident::{FencingToken, LockName, Owner, ThreadMarker};
use crate::observe::LossReason;
use crate::observe::reporter::Reporter;
use crate::observe::spans::HoldSpan;
use crate::seam::{Bound, Claim, Kind, Releasing};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::task::TaskMarker;
use crate::time::{Clock, Lease, Moment, SHORTEST_LEASE, nanos, window};

pub(crate) type State = HoldState<Arc<Hold>>;

impl Handle for Arc<Hold> {
    fn serial(&self) -> u64 {
        self.serial
    }

    fn retire(&mut self) -> bool {
        let thread = self.holder.thread();
        thread.iter().for_each(|mark| mark.retire(self.claim.owner.number()));
        thread.is_some()
    }

    fn publish(&mut self, stage: Stage) {
        self.phase.publish(stage);
    }

    fn lost(&mut self, reason: LossReason) {
        self.phase.lose(reason);
    }

    fn note_spent_guard(&mut self) {
        self.has_spent_guard.store(true, Ordering::Release);
    }

    fn session_ends(&self) -> Moment {
        self.bound.as_ref().map_or(Moment::NEVER, |bound| bound.until())
    }
}

impl Releasing for Hold {
    fn overtaken(&self) {
        self.retire_owner();
    }
}

/// The part of a hold that threads read without the mutex. The rest is its [`State`], under the lock's mutex;
/// methods that need the state do nothing once the hold was removed from the registry.
pub(crate) struct Hold {
    /// The claim for renewals and releases; its lease is replaced by `renewed_lease`.
    claim: Claim,
    pub(crate) local: Arc<LocalLock>,
    pub(crate) serial: u64,
    pub(crate) holder: Holder,
    pub(crate) span: HoldSpan,
    /// Whether the holder is the leader of an election. Only shown to people who inspect the lock.
    pub(crate) leads: bool,
    pub(crate) ceiling: Option<Moment>,
    pub(crate) bound: Option<Arc<dyn Bound>>,
    /// Whether a time slice may cache the hold.
    pub(crate) may_be_cached: bool,
    phase: Phase,
    /// The end of the window, as `Moment::nanos`. It never moves back.
    until: AtomicU64,
    /// When the grant was requested, or the cached hold last reused.
    since: AtomicU64,
    /// The lease that renewals ask for, in nanoseconds.
    renewed_lease: AtomicU64,
    fence: OnceLock<FencingToken>,
    /// Whether `unlock` has ended a level that has a guard; see `has_ended`.
    has_spent_guard: AtomicBool,
    pub(super) listeners: Listeners,
    /// Whether the program asked to learn of waiters of this hold (`on_contended`, `is_contended`).
    pub(crate) hears: AtomicBool,
}

static SERIALS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl Hold {
    /// The hold of a grant that was requested at `sent`, when its window begins.
    pub(crate) fn new(
        claim: &Claim,
        holder: Holder,
        sent: Moment,
        renewed_lease: Duration,
        local: &Arc<LocalLock>,
    ) -> Hold {
        Hold {
            claim: claim.clone().of_hold(),
            local: Arc::clone(local),
            serial: SERIALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            holder,
            span: HoldSpan::none(),
            leads: false,
            ceiling: None,
            bound: None,
            may_be_cached: false,
            phase: Phase::default(),
            until: AtomicU64::new(sent.plus(window(claim.lease)).nanos()),
            since: AtomicU64::new(sent.nanos()),
            renewed_lease: AtomicU64::new(nanos(renewed_lease)),
            fence: OnceLock::new(),
            has_spent_guard: AtomicBool::new(false),
            listeners: Listeners::default(),
            hears: AtomicBool::new(false),
        }
    }

    /// Returns the hold, its state for the lock's machine, and the id of its first level.
    pub(crate) fn begin(self, lease: Lease) -> (Arc<Hold>, State, u64) {
        let (sent, until, number) = (self.since(), self.window_end(), self.claim.owner.number());
        let thread = match self.holder {
            Holder::Thread { id, .. } => Some(id),
            Holder::Guard { .. } => None,
        };
        let hold = Arc::new(self);
        let mut state = HoldState::new(Arc::clone(&hold), thread, number, sent, until);
        let level = state.levels.add(lease);
        (hold, state, level)
    }

    /// Reads or changes the hold's state. Returns the default if the hold was removed.
    pub(crate) fn with<R: Default>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.local.state().state_of(self.serial).map(act).unwrap_or_default()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.claim.kind
    }

    pub(crate) fn name(&self) -> &Arc<LockName> {
        &self.claim.name
    }

    pub(crate) fn owner(&self) -> Owner {
        self.claim.owner
    }

    pub(crate) fn home(&self) -> u32 {
        self.claim.home
    }

    pub(crate) fn since(&self) -> Moment {
        Moment::from_nanos(self.since.load(Ordering::Relaxed))
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.fence.get().copied()
    }

    /// Sets the hold's fencing token, unless it has one: the outer level may have written with the first
    /// token, and a resource that sees a newer token rejects the older one.
    pub(crate) fn set_fence(&self, fence: Option<FencingToken>) {
        if let Some(fence) = fence {
            self.fence.get_or_init(|| fence);
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim { lease: self.renewed_lease(), hears: self.hears(), ..self.claim.clone() }
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        matches!(&self.holder, Holder::Thread { mark, .. } if mark.strong_count() == 0)
    }

    pub(crate) fn is_first(&self, noted: impl FnOnce(&mut State) -> &mut bool) -> bool {
        self.with(|state| !std::mem::replace(noted(state), true))
    }

    pub(crate) fn retire_owner(&self) {
        self.retire_owner_in(&mut self.local.state());
    }

    /// Retires the owner number, even after the hold was removed.
    fn retire_owner_in(&self, state: &mut LockState) {
        if let Some(mark) = self.holder.thread() {
            state.retired.add(self.claim.owner.number());
            mark.retire(self.claim.owner.number());
        }
    }

    /// Makes the end of this hold retire its owner number: see `Machine::spend`.
    pub(crate) fn retire_owner_on_end(&self) {
        let mut state = self.local.state();
        match state.state_of(self.serial) {
            Some(_) => state.spend(self.serial),
            None => self.retire_owner_in(&mut state),
        }
    }

    /// Whether the hold can be cached: as [`HoldState::can_stay`], but `None` also if the next use would
    /// inherit something, such as a listener.
    pub(crate) fn can_be_cached(&self, state: &State, is_dropped: bool) -> Option<bool> {
        let is_plain = self.fence.get().is_none() && self.bound.is_none();
        let is_nobodys = !self.listeners.are_there.load(Ordering::SeqCst) && !self.span.is_open();
        state.can_stay(self.may_be_cached && is_plain, is_dropped).filter(|_| is_nobodys)
    }

    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    /// Whether the hold is cached, or was when its release or loss began.
    pub(crate) fn is_cached(&self) -> bool {
        self.phase.unused() != 0
    }

    pub(crate) fn guard_level(&self, id: u64) {
        self.with(|state| state.levels.get_mut(id).into_iter().for_each(|level| level.guarded = true));
    }

    /// Ends the renewals of a multi-lock's level with an explicit lease, because all locks are acquired.
    pub(crate) fn settle_level(&self, id: u64, renewed_lease: Duration) {
        self.with(|state| {
            if state.levels.settle(id) {
                self.renewed_lease.store(nanos(renewed_lease), Ordering::Relaxed);
            }
        });
    }

    /// The leases of all levels, outermost first; the flag marks the level `own`. `None`: another level has a
    /// guard.
    pub(crate) fn levels_beside(&self, own: u64) -> Option<Vec<(bool, Lease)>> {
        let levels: Vec<_> = self.with(|state| {
            let open = state.levels.open.iter();
            open.map(|level| (level.id == own, level.lease, level.guarded)).collect()
        });
        let is_free = levels.iter().all(|(is_own, _, guarded)| *is_own || !guarded);
        is_free.then(|| levels.into_iter().map(|(is_own, lease, _)| (is_own, lease)).collect())
    }

    /// Whether `unlock` has ended this `level`, which has a guard.
    pub(crate) fn has_ended(&self, level: u64) -> bool {
        let is_open = |state: &mut State| state.levels.get_mut(level).is_some();
        self.has_spent_guard.load(Ordering::Acquire) && !self.with(is_open)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.with(|state| state.levels.open.len())).unwrap_or(u32::MAX)
    }

    pub(crate) fn renewed_lease(&self) -> Duration {
        Duration::from_nanos(self.renewed_lease.load(Ordering::Relaxed))
    }

    pub(crate) fn within_ceiling(&self, lease: Duration, now: Moment) -> Duration {
        match self.ceiling {
            Some(ceiling) => lease.min(ceiling.since(now)).max(SHORTEST_LEASE),
            None => lease,
        }
    }

    /// Whether the lease reaches to the end of `max_hold`; the window, 1 % shorter, ends a little before.
    fn is_at_ceiling(&self) -> bool {
        let drift = self.renewed_lease() / 100;
        self.ceiling.is_some_and(|ceiling| self.window_end() >= ceiling.minus(drift))
    }

    /// When the hold ends without a further renewal: with its window, or with its session.
    pub(crate) fn until(&self) -> Moment {
        let bound = self.bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        self.window_end().min(bound)
    }

    fn window_end(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// Extends the window, because the store confirmed a request that was sent at `sent` and set `lease`. The
    /// window never gets shorter.
    /// `false`: the window had ended, and a thread may have seen that, so the hold is lost, though the store
    /// renewed it.
    #[must_use = "a hold whose window had ended is lost"]
    pub(crate) fn confirm(&self, sent: Moment, lease: Duration, clock: &Clock) -> bool {
        let until = sent.plus(window(lease));
        let mut state = self.local.state();
        let before = self.until.fetch_max(until.nanos(), Ordering::AcqRel);
        // The end is moved before the clock is read: a thread that reads the clock later sees the new end.
        let now = clock.now();
        let Some(own) = state.state_of(self.serial) else { return now.nanos() < before };
        if lease >= self.renewed_lease() {
            own.kept_alive_at = own.kept_alive_at.max(sent);
        }
        own.confirm(until, now)
    }

    /// Why the hold is lost at `now`, if it is. Records nothing, and mostly reads two atomics.
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
        Some(if self.is_at_ceiling() { LossReason::HeldTooLong } else { LossReason::Expired })
    }

    pub(crate) fn standing(&self, now: Moment) -> Standing {
        if let Some(reason) = self.loss_at(now) {
            return Standing::Lost(reason);
        }
        let until = self.until();
        let is_at_risk = self.with(|state| {
            // Only a late renewal leaves less than half a lease.
            let is_late = state.renewal_has_failed || until.since(now) < self.renewed_lease() / 2;
            is_late && state.is_renewed()
        });
        if is_at_risk { Standing::AtRisk(until) } else { Standing::Held }
    }

    /// Whether the hold is valid at `now`. If its window has ended, records the loss.
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

    pub(crate) fn stands(&self, now: Moment) -> bool {
        !self.is_releasing() && self.loss_at(now).is_none()
    }
}

debug_fields!(Hold, |it| name: it.name().given(), owner: it.owner(), phase: it.phase, until: it.until());

#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// A thread, and the task that it ran. `mark` cannot be upgraded after the thread has ended.
    Thread { id: u64, mark: Weak<ThreadMarker>, task: TaskMarker },
    /// A transferable guard. `taker`: the thread that acquired it and will probably release it; `None` if the
    /// thread ran a task, because the thread may run other tasks meanwhile.
    Guard { taker: Option<Weak<ThreadMarker>> },
}

impl Holder {
    pub(crate) fn thread(&self) -> Option<Arc<ThreadMarker>> {
        match self {
            Holder::Thread { mark, .. } => mark.upgrade(),
            Holder::Guard { .. } => None,
        }
    }

    pub(crate) fn taker(&self) -> Option<u64> {
        match self {
            Holder::Thread { .. } => None,
            Holder::Guard { taker } => Some(taker.as_ref()?.upgrade()?.id()),
        }
    }

    /// Whether the calling thread runs the same task as at the grant. Always true for guards.
    pub(crate) fn is_this_task(&self) -> bool {
        match self {
            Holder::Thread { task, .. } => *task == TaskMarker::current(),
            Holder::Guard { .. } => true,
        }
    }
}
