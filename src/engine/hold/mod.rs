//! One grant of a lock, from its first level to its last: its window in time, its levels, its loss.
//!
//! `phase` is where it stands in its life, `levels` its re-entries, `loss` who is notified of its loss.

pub(crate) mod entry;
pub(crate) mod grant;
mod keeper;
mod levels;
mod loss;
mod phase;
mod renewal;
pub(crate) mod slot;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

pub(crate) use crate::engine::hold::entry::Next;
use crate::engine::hold::entry::{Asking as AskingFor, Entry, Found as FoundAs, Held, QueuePlace as PlaceOf};
pub(crate) use crate::engine::hold::grant::{Grant, Holder};
use crate::engine::hold::levels::Levels;
use crate::engine::hold::loss::LossListeners;
use crate::engine::hold::phase::Phase;
pub(crate) use crate::engine::hold::phase::Standing;
use crate::engine::hold::slot::AgendaSlot;
use crate::engine::policy::{at_risk, renewal_slack};
use crate::ident::{Fence, LockName, Owner};
use crate::observe::reporter::{OnLost, Reporter};
use crate::observe::spans::HoldSpan;
use crate::observe::{Loss, LossReason, event::Event};
use crate::seam::{Bound, Claim, HoldNote, Kind, Turn, Wakeups};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::time::{Clock, Lease, Moment, SHORTEST_LEASE, nanos, window};

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
        (!matches!(self.standing(now), Standing::Lost(_))).then(|| self.until())
    }
}

/// One grant.
pub(crate) struct Hold {
    kind: Kind,
    name: Arc<LockName>,
    /// The lock in this process. It has this hold too, until the registry takes it out.
    entry: Arc<LockEntry>,
    owner: Owner,
    home: u32,
    pub(crate) holder: Holder,
    pub(crate) span: HoldSpan,
    since: Moment,
    /// The lease that renewals ask for, in nanoseconds.
    renewed_lease: AtomicU64,
    units: u32,
    ceiling: Option<Moment>,
    note: Option<HoldNote>,
    bound: Option<Arc<dyn Bound>>,
    phase: Phase,
    /// End of its own window, as `Moment::nanos`. Only ever raised.
    until: AtomicU64,
    /// When the store was last asked to keep it; see `needs_keepalive`.
    kept_alive_at: AtomicU64,
    /// The last renewal failed.
    renewal_has_failed: AtomicBool,
    /// The end of the holding thread has been reported.
    abandoned: AtomicBool,
    /// A request under its number may still arrive; see `retire_owner_on_end`.
    spent: AtomicBool,
    /// A renewal has been sent and not been answered.
    is_under_way: AtomicBool,
    /// The watchdog has it among those that it renews next.
    is_queued: AtomicBool,
    /// The steps after a loss have been done; see `timer.rs`.
    has_lapsed: AtomicBool,
    /// Its place in the registry's agenda.
    slot: Mutex<AgendaSlot>,
    /// Some level has asked for renewals, open or not.
    was_renewed: AtomicBool,
    /// How many open levels asked for renewal: read by the watchdog without `levels`.
    renewed_levels: AtomicU32,
    levels: Mutex<Levels>,
    fence: OnceLock<Fence>,
    listeners: LossListeners,
    /// Its owner reads as well; see `note_reading`.
    read_beside: AtomicBool,
    /// The thread that acquires more locks to go with it; zero: none does.
    acquires_more: AtomicU64,
}

impl Hold {
    /// Makes the hold with its first level; returns that level's id too.
    pub(crate) fn new(grant: Grant, entry: &Arc<LockEntry>) -> (Hold, u64) {
        let hold = Hold {
            kind: grant.kind,
            name: grant.name,
            entry: Arc::clone(entry),
            owner: grant.owner,
            home: grant.home,
            holder: grant.holder,
            span: HoldSpan::none(),
            since: grant.sent,
            renewed_lease: AtomicU64::new(nanos(grant.renewed_lease)),
            units: grant.units,
            ceiling: grant.ceiling,
            note: grant.note,
            bound: grant.bound,
            phase: Phase::live(),
            until: AtomicU64::new(grant.sent.plus(window(grant.asked)).nanos()),
            kept_alive_at: AtomicU64::new(grant.sent.nanos()),
            renewal_has_failed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            spent: AtomicBool::new(false),
            is_under_way: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
            has_lapsed: AtomicBool::new(false),
            slot: Mutex::new(AgendaSlot::Out),
            was_renewed: AtomicBool::new(false),
            renewed_levels: AtomicU32::new(0),
            levels: Mutex::new(Levels::default()),
            fence: OnceLock::new(),
            listeners: LossListeners::default(),
            read_beside: AtomicBool::new(false),
            acquires_more: AtomicU64::new(0),
        };
        hold.set_fence(grant.fence);
        let level = hold.add_level(grant.lease);
        (hold, level)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn name(&self) -> &Arc<LockName> {
        &self.name
    }

    pub(crate) fn entry(&self) -> &Arc<LockEntry> {
        &self.entry
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The home where the store keeps it.
    pub(crate) fn home(&self) -> u32 {
        self.home
    }

    /// Whether the last renewal failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.renewal_has_failed.load(Ordering::Acquire)
    }

    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence.get().copied()
    }

    /// The first fence stays: a re-entry must not outdate what the outer level is writing with.
    pub(crate) fn set_fence(&self, fence: Option<Fence>) {
        if let Some(fence) = fence {
            self.fence.get_or_init(|| fence);
        }
    }

    /// The claim by which the store is asked to renew or release this hold.
    pub(crate) fn claim(&self) -> Claim {
        Claim {
            kind: self.kind,
            name: Arc::clone(&self.name),
            owner: self.owner,
            lease: self.renewed_lease(),
            home: self.home,
            waits: false,
            turn: Turn::Barges,
            wakeups: Wakeups::Releases,
            writers_first: false,
            units: self.units,
            note: self.note.clone(),
            levels: 1,
            wants_fence: false,
            is_granted: true,
        }
    }

    /// Whether something that was asked about it may still come.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.spent.load(Ordering::SeqCst) || self.is_under_way.load(Ordering::SeqCst)
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
        !self.read_beside.swap(true, Ordering::AcqRel)
    }

    /// Gives up the owner number for the holding thread's next holds.
    pub(crate) fn retire_owner(&self) {
        if let Holder::Thread { mark, .. } = &self.holder
            && let Some(mark) = mark.upgrade()
        {
            mark.retire(self.owner.number());
        }
    }

    /// A request that concerns this hold alone went without an answer, and may still come: the holding
    /// thread's next hold is not to be under this number. While this hold lives the thread keeps its owner
    /// number, so that a writer can still take the read lock.
    pub(crate) fn retire_owner_on_end(&self) {
        self.spent.store(true, Ordering::SeqCst);
        // Set first, looked second. Pairs with `has_left_live`.
        if !self.phase.is_live() {
            self.retire_owner();
        }
    }

    /// It is live no more. A number under which something may still come is not the thread's next one: a
    /// renewal that is under way would prolong a hold that has a lease of its own. Pairs with
    /// `retire_owner_on_end` and `begin_renewal`.
    fn has_left_live(&self) {
        if self.is_in_doubt() {
            self.retire_owner();
        }
    }

    // ---- levels

    pub(crate) fn add_level(&self, lease: Lease) -> u64 {
        let mut levels = self.levels.lock();
        let id = levels.add(lease);
        if lease.is_renewed() {
            self.was_renewed.store(true, Ordering::Release);
            self.renewed_levels.fetch_add(1, Ordering::AcqRel);
        }
        id
    }

    /// Leaves the end of a level to a guard.
    pub(crate) fn guard_level(&self, id: u64) {
        if let Some(level) = self.levels.lock().get_mut(id) {
            level.guarded = true;
        }
    }

    /// A level that was kept until other locks were acquired ends by itself from now on. Renewals that later
    /// levels ask for are with `renewed_lease`. Pairs with `renewal`.
    pub(crate) fn settle_level(&self, id: u64, renewed_lease: Duration) {
        let mut levels = self.levels.lock();
        if let Some(level) = levels.get_mut(id)
            && let Lease::Kept(lease) = level.lease
        {
            level.lease = Lease::Fixed(lease);
            self.renewed_levels.fetch_sub(1, Ordering::AcqRel);
            self.renewed_lease.store(nanos(renewed_lease), Ordering::Release);
        }
    }

    /// The leases that the levels asked for, from the outermost in, and which of them is `own`; `None` if a
    /// guard has another.
    pub(crate) fn levels_beside(&self, own: u64) -> Option<Vec<(bool, Lease)>> {
        let levels = self.levels.lock();
        let is_free = levels.open.iter().all(|level| level.id == own || !level.guarded);
        is_free.then(|| levels.open.iter().map(|level| (level.id == own, level.lease)).collect())
    }

    /// Ends a level; if none is named, the innermost that no guard ends, or else the innermost. Returns how
    /// many are left. `None`: there is no such level.
    pub(crate) fn end_level(&self, level: Option<u64>) -> Option<u32> {
        let mut levels = self.levels.lock();
        if levels.take(level)?.lease.is_renewed() {
            self.renewed_levels.fetch_sub(1, Ordering::AcqRel);
        }
        u32::try_from(levels.open.len()).ok()
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.levels.lock().open.len()).unwrap_or(u32::MAX)
    }

    /// Whether a renewal is wanted, and can still move the end of the window.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed_levels.load(Ordering::Acquire) > 0 && !self.is_at_ceiling()
    }

    pub(crate) fn renewed_lease(&self) -> Duration {
        Duration::from_nanos(self.renewed_lease.load(Ordering::Acquire))
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
    fn is_at_ceiling(&self) -> bool {
        self.ceiling.is_some_and(|ceiling| self.window_end() >= ceiling.minus(self.renewed_lease() / 100))
    }

    // ---- window

    /// When the hold ends unless it is confirmed: its window's end, or that of what it is bound to.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

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
        self.renewal_has_failed.store(false, Ordering::Release);
        if lease >= self.renewed_lease() {
            self.kept_alive_at.fetch_max(sent.nanos(), Ordering::AcqRel);
        }
        // Raised first, the time read second: a thread that reads a later time sees the new end.
        clock.now().nanos() < before
    }

    // ---- the agenda

    /// Whether any of its levels, open or not, was to be renewed: then its end was not meant to come by
    /// itself.
    pub(crate) fn was_renewed(&self) -> bool {
        self.was_renewed.load(Ordering::Acquire)
    }

    /// Whether this call is the first to see to what follows its loss.
    pub(crate) fn note_lapsed(&self) -> bool {
        !self.has_lapsed.swap(true, Ordering::AcqRel)
    }

    /// The watchdog has it now, or has it no more; whether that is new.
    pub(crate) fn set_queued(&self, is_queued: bool) -> bool {
        self.is_queued.swap(is_queued, Ordering::AcqRel) != is_queued
    }

    pub(crate) fn slot(&self) -> AgendaSlot {
        *self.slot.lock()
    }

    /// For the agenda.
    pub(crate) fn replace_slot(&self, slot: AgendaSlot) -> AgendaSlot {
        std::mem::replace(&mut *self.slot.lock(), slot)
    }

    /// Whether what follows a loss has been done.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.has_lapsed.load(Ordering::Acquire)
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Acquire)
    }

    /// The phase by what is known at `now`, without changing anything.
    pub(crate) fn standing(&self, now: Moment) -> Standing {
        if let Some(reason) = self.phase.loss() {
            return Standing::Lost(reason);
        }
        let until = self.until();
        if now >= until {
            return Standing::Lost(if self.bound.as_ref().is_some_and(|bound| bound.is_gone()) {
                LossReason::Gone
            } else if self.is_at_ceiling() {
                LossReason::HeldTooLong
            } else {
                LossReason::Expired
            });
        }
        let is_overdue = until.since(now) < at_risk(self.renewed_lease());
        if self.is_renewed() && (self.has_failed() || is_overdue) {
            return Standing::AtRisk(until);
        }
        Standing::Held
    }

    /// Whether the hold stands at `now`; one that has run out becomes lost by this look.
    pub(crate) fn is_live(&self, now: Moment, reporter: &Reporter) -> bool {
        match self.standing(now) {
            Standing::Held | Standing::AtRisk(_) => true,
            Standing::Lost(reason) => {
                self.lose(reason, now, reporter);
                false
            }
        }
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.phase.is_releasing()
    }

    /// Begins the full release; `false` if the hold is lost already, or another call releases it.
    pub(crate) fn begin_release(&self) -> bool {
        let has_begun = self.phase.begin_release();
        if has_begun {
            self.has_left_live();
        }
        has_begun
    }

    /// Records the loss and notifies all listeners, once. Returns whether this call did it.
    pub(crate) fn lose(&self, reason: LossReason, now: Moment, reporter: &Reporter) -> bool {
        if reason != LossReason::Gone && self.read_beside.load(Ordering::Acquire) {
            // It is ended in the store from here on, again and again: first of all, the thread's next hold is
            // another's.
            self.retire_owner();
        }
        if self.phase.lose(reason) {
            self.has_left_live();
        } else if !self.phase.lose_while_releasing(reason) {
            return false;
        }
        let loss = Loss { name: self.name.given().to_owned(), owner: self.owner, reason };
        self.listeners.notify(&loss, reporter);
        reporter.counters.note_loss(reason);
        let (kind, is_abandoned) = (self.kind.label(), self.abandoned.load(Ordering::Acquire));
        let overdue = if self.is_renewed() { now.since(self.due()) } else { Duration::ZERO };
        let (held, span) = (now.since(self.since), self.span.end(reason.end(is_abandoned)));
        reporter.observe_later(move |observer| {
            span(&|| observer.event(&Event::Lost { loss: &loss, kind, held, overdue, is_abandoned }));
        });
        true
    }

    /// Has `callback` run when the hold is lost: soon, if it is lost already.
    pub(crate) fn on_lost(&self, callback: OnLost, reporter: &Reporter) {
        self.listeners.add_callback(callback, reporter);
    }

    /// A channel that gets the loss, if there is one, and is disconnected when the hold ends.
    pub(crate) fn loss_channel(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        self.send_loss(sender);
        receiver
    }

    /// Has `sender` get the loss, if there is one, and dropped when the hold ends.
    pub(crate) fn send_loss(&self, sender: Sender<Loss>) {
        self.listeners.add_sender(sender);
    }

    pub(crate) fn listeners(&self) -> &LossListeners {
        &self.listeners
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name.given())
            .field("owner", &self.owner)
            .field("phase", &self.phase)
            .field("until", &self.until())
            .finish_non_exhaustive()
    }
}
