//! One grant of a lock, from its first level to its last: its window in time, its levels, its loss.
//!
//! Long because whoever changes its phase, its levels or its end has to see the other two.
//!
//! | `phase`     | meaning                                             | who may set it, from what               |
//! |-------------|-----------------------------------------------------|-----------------------------------------|
//! | `LIVE`      | held, as long as `until` is ahead                   | the grant                               |
//! | `RELEASING` | its owner is giving it up; not renewed, not "lost"  | the releasing caller, from `LIVE`       |
//! | `EXPIRED`   | `until` passed unconfirmed                          | whoever sees it first, from `LIVE`      |
//! | `GONE`      | the store said that the owner holds nothing         | whoever hears it first, from `LIVE` or `RELEASING` |
//! | `SHUT_DOWN` | the client ended it                                 | `shutdown`, from `LIVE`                 |
//! | `TOO_LONG`  | `until` passed, and no renewal may move it any more | as `EXPIRED`                            |
//!
//! The last four are lost, and stay so.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::ident::{Fence, LockName, Owner};
use crate::lock::agenda::Slot;
pub(crate) use crate::lock::grant::{Grant, Holder};
use crate::lock::levels::Levels;
use crate::lock::report::Reporter;
use crate::lock::store::{Bound, Claim, Kind, Notice};
use crate::observe::{Loss, LossReason};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::time::{Clock, Lease, Moment, SHORTEST_LEASE, window};

const LIVE: u8 = 0;
const RELEASING: u8 = 1;
const EXPIRED: u8 = 2;
const GONE: u8 = 3;
const SHUT_DOWN: u8 = 4;
const TOO_LONG: u8 = 5;

/// What a caller wants run when a hold is lost.
pub(crate) type OnLost = Box<dyn FnOnce(&Loss) + Send>;

/// One grant.
pub(crate) struct Hold {
    kind: Kind,
    name: Arc<LockName>,
    owner: Owner,
    home: u32,
    holder: Holder,
    since: Moment,
    /// What renewals ask for, in nanoseconds.
    renewed_lease: AtomicU64,
    units: u32,
    ceiling: Option<Moment>,
    notice: Option<Notice>,
    bound: Option<Arc<dyn Bound>>,
    phase: AtomicU8,
    /// End of its own window, as `Moment::nanos`. Only ever raised.
    until: AtomicU64,
    /// When the store was last told that it lasts; see `is_upheld`.
    upheld_at: AtomicU64,
    /// The last renewal failed.
    troubled: AtomicBool,
    /// The end of the holding thread has been reported.
    abandoned: AtomicBool,
    /// What was asked under its number may still come; see `spend_number`.
    spent: AtomicBool,
    /// A renewal has been sent and not been answered.
    is_under_way: AtomicBool,
    /// The watchdog has it among those that it renews next.
    is_queued: AtomicBool,
    /// What follows a loss has been done; see `timer.rs`.
    has_lapsed: AtomicBool,
    /// Where it stands in the table's agenda.
    slot: Mutex<Slot>,
    /// Some level has asked for renewals, open or not.
    was_renewed: AtomicBool,
    /// How many open levels asked for renewal: read by the watchdog without `levels`.
    renewed_levels: AtomicU32,
    levels: Mutex<Levels>,
    fence: OnceLock<Fence>,
    listeners: Mutex<Listeners>,
    /// Its owner reads as well; see `note_reading`.
    read_beside: AtomicBool,
}

#[derive(Default)]
struct Listeners {
    loss: Option<Loss>,
    /// The hold ended by release: there will be no loss.
    released: bool,
    callbacks: Vec<OnLost>,
    senders: Vec<Sender<Loss>>,
}

/// Whether a hold still stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    /// Held until then, but a renewal is overdue.
    AtRisk(Moment),
    Lost(LossReason),
}

impl Hold {
    /// Makes the hold with its first level; returns that level's id too.
    pub(crate) fn new(grant: Grant) -> (Hold, u64) {
        let hold = Hold {
            kind: grant.kind,
            name: grant.name,
            owner: grant.owner,
            home: grant.home,
            holder: grant.holder,
            since: grant.sent,
            renewed_lease: AtomicU64::new(nanos(grant.renewed_lease)),
            units: grant.units,
            ceiling: grant.ceiling,
            notice: grant.notice,
            bound: grant.bound,
            phase: AtomicU8::new(LIVE),
            until: AtomicU64::new(grant.sent.plus(window(grant.asked)).nanos()),
            upheld_at: AtomicU64::new(grant.sent.nanos()),
            troubled: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            spent: AtomicBool::new(false),
            is_under_way: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
            has_lapsed: AtomicBool::new(false),
            slot: Mutex::new(Slot::Out),
            was_renewed: AtomicBool::new(false),
            renewed_levels: AtomicU32::new(0),
            levels: Mutex::new(Levels::default()),
            fence: OnceLock::new(),
            listeners: Mutex::new(Listeners::default()),
            read_beside: AtomicBool::new(false),
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

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Where the store keeps it.
    pub(crate) fn home(&self) -> u32 {
        self.home
    }

    /// Whether the last renewal failed.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
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
            writers_first: false,
            units: self.units,
            notice: self.notice.clone(),
            is_granted: true,
        }
    }

    /// As [`renewal`](Self::renewal), for what is sent at once; [`end_renewal`](Self::end_renewal) follows. `None` also if
    /// it is not to be renewed any more.
    pub(crate) fn begin_renewal(&self, now: Moment) -> Option<Claim> {
        self.is_under_way.store(true, Ordering::SeqCst);
        // Said first, looked second. Pairs with `leave_live`.
        let claim = if self.phase.load(Ordering::SeqCst) == LIVE { self.renewal(now) } else { None };
        if claim.is_none() {
            self.end_renewal();
        }
        claim
    }

    /// It was answered, or failed.
    pub(crate) fn end_renewal(&self) {
        self.is_under_way.store(false, Ordering::SeqCst);
    }

    /// Whether something that was asked about it may still come.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.spent.load(Ordering::SeqCst) || self.is_under_way.load(Ordering::SeqCst)
    }

    /// The claim by which the store is asked at `now` to prolong it; `None` if it is to end by itself.
    pub(crate) fn renewal(&self, now: Moment) -> Option<Claim> {
        // Whether and for how long, as of one moment: prolonged for the lease of later levels, a hold that has just come to
        // end by itself would be kept far too long. Pairs with `settle_level`.
        let _levels = self.levels.lock();
        let lease = if self.is_upheld() {
            self.window_end().since(now).max(SHORTEST_LEASE)
        } else if self.is_renewed() {
            let lease = self.within_ceiling(self.renewed_lease(), now);
            // As `is_upheld` says: of a level with a longer lease, too.
            if self.kind == Kind::Read { lease.max(self.window_end().since(now)) } else { lease }
        } else {
            return None;
        };
        Some(Claim { lease, ..self.claim() })
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

    /// Whether the holding thread has ended.
    pub(crate) fn is_orphaned(&self) -> bool {
        matches!(&self.holder, Holder::Thread { mark, .. } if mark.strong_count() == 0)
    }

    /// Whether this call is the first to say that the holding thread has ended.
    pub(crate) fn note_abandoned(&self) -> bool {
        !self.abandoned.swap(true, Ordering::AcqRel)
    }

    /// Whether this call is the first to say that the owner of a write hold reads as well. See `Waiting::end_writing_in_time`.
    pub(crate) fn note_reading(&self) -> bool {
        !self.read_beside.swap(true, Ordering::AcqRel)
    }

    /// Gives up the owner number for the holding thread's next holds.
    pub(crate) fn retire_number(&self) {
        if let Holder::Thread { mark, .. } = &self.holder
            && let Some(mark) = mark.upgrade()
        {
            mark.retire(self.owner.number());
        }
    }

    /// A request that concerns this hold alone went without an answer, and may still come: the holding thread's next hold
    /// is not to be under this number. What the thread takes as the same owner while this one stands is: who writes may
    /// still read.
    pub(crate) fn spend_number(&self) {
        self.spent.store(true, Ordering::SeqCst);
        // Said first, looked second. Pairs with `leave_live`.
        if self.phase.load(Ordering::SeqCst) != LIVE {
            self.retire_number();
        }
    }

    /// Moves from `LIVE` to another phase; whether this call did. A number under which something may still come is not the
    /// thread's next one: a renewal that is under way would prolong what has a lease of its own. Pairs with `spend_number`
    /// and `begin_renewal`.
    fn leave_live(&self, phase: u8) -> bool {
        let has_left = self.phase.compare_exchange(LIVE, phase, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if has_left && self.is_in_doubt() {
            self.retire_number();
        }
        has_left
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

    /// What was kept only until others were had as well ends by itself from now on. Renewals that later levels ask for
    /// are with `renewed_lease`. Pairs with `renewal`.
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

    /// The leases that the levels asked for, from the outermost in; `None` if a guard has one of them.
    pub(crate) fn unguarded_levels(&self) -> Option<Vec<Lease>> {
        let levels = self.levels.lock();
        let is_free = levels.open.iter().all(|level| !level.guarded);
        is_free.then(|| levels.open.iter().map(|level| level.lease).collect())
    }

    /// Ends a level; if none is named, the innermost that no guard ends, or else the innermost. Returns how many are
    /// left. `None`: there is no such level.
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

    pub(super) fn renewed_lease(&self) -> Duration {
        Duration::from_nanos(self.renewed_lease.load(Ordering::Acquire))
    }

    /// A renewal that would fall due this soon goes along with others, so that many holds make few rounds.
    pub(crate) fn slack(&self) -> Duration {
        self.renewed_lease() / 30
    }

    /// What may be asked for at `now`, when `lease` is wanted: the hold is not to outlast its ceiling.
    pub(crate) fn within_ceiling(&self, lease: Duration, now: Moment) -> Duration {
        match self.ceiling {
            Some(ceiling) => lease.min(ceiling.since(now)).max(SHORTEST_LEASE),
            None => lease,
        }
    }

    /// Whether the window ends where the ceiling wants it, less the drift of a lease that was cut short by it.
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

    /// A request sent at `sent`, by which the store set `lease`, was confirmed. Never shortens the window. `false`: that had
    /// ended before this was known, and may have been seen to end. Then the hold is lost, although the store has prolonged it.
    #[must_use = "a hold whose window had ended is lost"]
    pub(crate) fn confirm(&self, sent: Moment, lease: Duration, clock: &Clock) -> bool {
        let before = self.until.fetch_max(sent.plus(window(lease)).nanos(), Ordering::AcqRel);
        self.troubled.store(false, Ordering::Release);
        if lease >= self.renewed_lease() {
            self.upheld_at.fetch_max(sent.nanos(), Ordering::AcqRel);
        }
        // Raised first, the time read second: whoever reads a later time sees the new end.
        clock.now().nanos() < before
    }

    /// When the watchdog should renew next: when a third of a renewed window has passed. Counted from the window's
    /// end, since a level with a short lease of its own is confirmed without moving that.
    pub(crate) fn due(&self) -> Moment {
        let lease = self.renewed_lease(); // once: `settle_level` may change it meanwhile
        let upheld = Moment::from_nanos(self.upheld_at.load(Ordering::Acquire));
        if self.is_upheld() {
            return upheld.plus(lease / 3);
        }
        let due = self.window_end().minus(window(lease) - lease / 3);
        if self.kind == Kind::Read { due.min(upheld.plus(lease / 3)) } else { due }
    }

    /// Whether the store is to be told now and then that the hold lasts, although its lease is its own. A read hold shares
    /// its key's time with readers of other languages, whose renewals cut it to their own; ours raises it again.
    pub(crate) fn is_upheld(&self) -> bool {
        self.kind == Kind::Read && self.renewed_levels.load(Ordering::Acquire) == 0
    }

    pub(crate) fn note_upheld(&self, sent: Moment) {
        self.upheld_at.store(sent.nanos(), Ordering::Release);
    }

    pub(crate) fn note_failed_renewal(&self) {
        self.troubled.store(true, Ordering::Release);
    }

    // ---- the agenda

    /// Whether the watchdog is to tell the store now and then that it lasts.
    pub(crate) fn is_renewable(&self) -> bool {
        // Of what has no lease the store knows nothing to prolong, and would say that it is not held.
        self.kind().is_leased() && (self.is_renewed() || self.is_upheld())
    }

    /// Whether any of its levels, open or not, was to be renewed: then its end was not meant to come by itself.
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

    pub(crate) fn slot(&self) -> Slot {
        *self.slot.lock()
    }

    /// For the agenda.
    pub(crate) fn replace_slot(&self, slot: Slot) -> Slot {
        std::mem::replace(&mut *self.slot.lock(), slot)
    }

    /// Whether what follows a loss has been done.
    pub(super) fn has_lapsed(&self) -> bool {
        self.has_lapsed.load(Ordering::Acquire)
    }

    pub(super) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Acquire)
    }

    /// The phase by what is known at `now`, without changing anything.
    pub(crate) fn standing(&self, now: Moment) -> Standing {
        match self.phase.load(Ordering::Acquire) {
            EXPIRED => Standing::Lost(LossReason::Expired),
            GONE => Standing::Lost(LossReason::Gone),
            SHUT_DOWN => Standing::Lost(LossReason::ShutDown),
            TOO_LONG => Standing::Lost(LossReason::HeldTooLong),
            _live_or_releasing => {
                let until = self.until();
                if now >= until {
                    Standing::Lost(if self.bound.as_ref().is_some_and(|bound| bound.is_gone()) {
                        LossReason::Gone
                    } else if self.is_at_ceiling() {
                        LossReason::HeldTooLong
                    } else {
                        LossReason::Expired
                    })
                } else if self.is_renewed()
                    && (self.is_troubled() || until.since(now) < self.renewed_lease() / 2)
                {
                    Standing::AtRisk(until)
                } else {
                    Standing::Held
                }
            }
        }
    }

    /// Whether the hold stands at `now`; one that has run out becomes lost by this look.
    pub(crate) fn is_live(&self, now: Moment, reporter: &Reporter) -> bool {
        match self.standing(now) {
            Standing::Held | Standing::AtRisk(_) => true,
            Standing::Lost(reason) => {
                self.lose(reason, reporter);
                false
            }
        }
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.phase.load(Ordering::Acquire) == RELEASING
    }

    /// Begins the full release; `false` if the hold is lost already, or another call releases it.
    pub(crate) fn begin_release(&self) -> bool {
        self.leave_live(RELEASING)
    }

    /// Records the loss and tells everyone who asked, once. Returns whether this call was the one.
    pub(crate) fn lose(&self, reason: LossReason, reporter: &Reporter) -> bool {
        let (phase, from_releasing) = match reason {
            LossReason::Expired => (EXPIRED, false),
            LossReason::Gone => (GONE, true),
            LossReason::ShutDown => (SHUT_DOWN, false),
            LossReason::HeldTooLong => (TOO_LONG, false),
        };
        if !from_releasing && self.read_beside.load(Ordering::Acquire) {
            // It is ended in the store from here on, again and again: first of all, the thread's next hold is another's.
            self.retire_number();
        }
        let leave_releasing =
            || self.phase.compare_exchange(RELEASING, phase, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !(self.leave_live(phase) || from_releasing && leave_releasing()) {
            return false;
        }
        let loss = Loss { name: self.name.given().to_owned(), owner: self.owner, reason };
        let (callbacks, senders) = {
            let mut listeners = self.listeners.lock();
            listeners.loss = Some(loss.clone());
            (std::mem::take(&mut listeners.callbacks), std::mem::take(&mut listeners.senders))
        };
        for sender in senders {
            drop(sender.try_send(loss.clone())); // room for one; nobody may be listening any more
        }
        for callback in callbacks {
            let loss = loss.clone();
            reporter.run_later(move || callback(&loss));
        }
        reporter.tell_later(move |observer| observer.lost(&loss));
        true
    }

    /// Has `callback` run when the hold is lost: soon, if it is lost already.
    pub(crate) fn on_lost(&self, callback: OnLost, reporter: &Reporter) {
        let mut listeners = self.listeners.lock();
        match listeners.loss.clone() {
            Some(loss) => {
                drop(listeners);
                reporter.run_later(move || callback(&loss));
            }
            None if listeners.released => {}
            None => listeners.callbacks.push(callback),
        }
    }

    /// A channel that gets the loss, if there is one, and is disconnected when the hold ends.
    pub(crate) fn loss_channel(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        self.send_loss(sender);
        receiver
    }

    /// Has `sender` get the loss, if there is one, and dropped when the hold ends.
    pub(crate) fn send_loss(&self, sender: Sender<Loss>) {
        let mut listeners = self.listeners.lock();
        match listeners.loss.clone() {
            Some(loss) => drop(sender.try_send(loss)),
            None if listeners.released => {}
            None => listeners.senders.push(sender),
        }
    }

    /// The hold ended by release: nobody will be told of a loss any more.
    pub(crate) fn forget_listeners(&self, reporter: &Reporter) {
        let (callbacks, senders) = {
            let mut listeners = self.listeners.lock();
            listeners.released = true;
            (std::mem::take(&mut listeners.callbacks), std::mem::take(&mut listeners.senders))
        };
        drop(senders);
        if !callbacks.is_empty() {
            reporter.drop_later(callbacks);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{ClientId, ThreadMark};
    use crate::time::ManualClock;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(lease: Lease, sent: Moment) -> Hold {
        Hold::new(Grant {
            kind: Kind::Mutex,
            name: Arc::new(LockName::new(&Arc::from("a"), "a".to_owned()).unwrap()),
            owner: Owner::new(ClientId::random(), 1),
            home: 0,
            holder: Holder::Guard,
            sent,
            lease,
            asked: LEASE,
            ceiling: None,
            notice: None,
            renewed_lease: LEASE,
            fence: None,
            units: 1,
            bound: None,
        })
        .0
    }

    /// A confirmation that comes at once.
    fn confirm(hold: &Hold, sent: Moment, lease: Duration) {
        assert!(hold.confirm(sent, lease, &Clock::Manual(ManualClock::new())));
    }

    #[test]
    fn a_confirmation_that_is_read_after_the_window_has_ended_confirms_nothing() {
        let clock = ManualClock::new();
        let hold = hold(Lease::Fixed(LEASE), clock.now());
        clock.advance(LEASE * 99 / 100);
        assert!(!hold.confirm(clock.now(), LEASE, &Clock::Manual(clock.clone())));
    }

    #[test]
    fn the_window_closes_one_percent_before_the_lease_counted_from_sending() {
        let start = ManualClock::new().now();
        let hold = hold(Lease::Fixed(LEASE), start);
        let at = |millis| hold.standing(start.plus(Duration::from_millis(millis)));
        assert_eq!(at(29_699), Standing::Held);
        assert_eq!(at(29_700), Standing::Lost(LossReason::Expired));
    }

    #[test]
    fn a_loss_is_told_once_and_stays() {
        let start = ManualClock::new().now();
        let hold = hold(Lease::Renewed, start);
        let reporter = Reporter::new(None);
        let channel = hold.loss_channel();
        assert!(hold.lose(LossReason::Gone, &reporter));
        assert!(!hold.lose(LossReason::Expired, &reporter));
        confirm(&hold, start.plus(LEASE), LEASE);
        assert_eq!(hold.standing(start), Standing::Lost(LossReason::Gone));
        assert_eq!(channel.recv().unwrap().reason, LossReason::Gone);
        assert_eq!(hold.loss_channel().recv().unwrap().reason, LossReason::Gone);
    }

    #[test]
    fn a_number_that_was_spent_is_the_threads_until_the_hold_ends() {
        let mark = ThreadMark::current();
        let of_thread = || {
            let holder = Holder::Thread { id: mark.id(), mark: Arc::downgrade(&mark) };
            let owner = Owner::new(ClientId::random(), mark.number());
            Hold { holder, owner, ..hold(Lease::Renewed, ManualClock::new().now()) }
        };
        let reporter = Reporter::new(None);
        let ends: [fn(&Hold, &Reporter) -> bool; 2] =
            [|hold, _| hold.begin_release(), |hold, reporter| hold.lose(LossReason::Expired, reporter)];
        for end in ends {
            let (hold, other, number) = (of_thread(), of_thread(), mark.number());
            hold.spend_number();
            assert_eq!(mark.number(), number);
            assert!(end(&hold, &reporter));
            assert_ne!(mark.number(), number);
            // The other way round: it had ended already.
            let (other, number) =
                (Hold { owner: Owner::new(ClientId::random(), mark.number()), ..other }, mark.number());
            assert!(end(&other, &reporter));
            assert_eq!(mark.number(), number);
            other.spend_number();
            assert_ne!(mark.number(), number);
        }
    }

    #[test]
    fn a_hold_that_is_being_released_does_not_expire_but_can_turn_out_gone() {
        let hold = hold(Lease::Renewed, ManualClock::new().now());
        let reporter = Reporter::new(None);
        assert!(hold.begin_release());
        assert!(!hold.begin_release());
        assert!(!hold.lose(LossReason::Expired, &reporter));
        assert!(hold.lose(LossReason::Gone, &reporter));
    }

    #[test]
    fn it_is_renewed_while_a_level_that_asked_for_it_is_open() {
        let hold = hold(Lease::Fixed(LEASE), ManualClock::new().now());
        assert!(!hold.is_renewed());
        let inner = hold.add_level(Lease::Renewed);
        assert!(hold.is_renewed());
        assert_eq!(hold.end_level(Some(inner)), Some(1));
        assert!(!hold.is_renewed());
        assert_eq!(hold.end_level(Some(inner)), None);
        assert_eq!(hold.end_level(None), Some(0));
        assert_eq!(hold.end_level(None), None);
    }

    #[test]
    fn what_was_kept_is_renewed_for_its_own_lease_and_not_at_all_once_it_is_settled() {
        let start = ManualClock::new().now();
        let short = LEASE / 30;
        let kept = Hold { renewed_lease: AtomicU64::new(nanos(short)), ..hold(Lease::Kept(short), start) };
        assert_eq!(kept.renewal(start).map(|claim| claim.lease), Some(short));
        assert!(kept.slack() < short / 3, "it is not due as soon as it is had");
        kept.settle_level(1, LEASE);
        assert!(kept.renewal(start).is_none());
        // A later level that asks for renewals is kept for the client's.
        kept.add_level(Lease::Renewed);
        assert_eq!(kept.renewal(start).map(|claim| claim.lease), Some(LEASE));
    }

    /// Each of these took time by the number of levels: this, many minutes.
    #[test]
    fn many_levels_can_be_left_from_either_end() {
        const LEVELS: usize = 200_000;
        let by = Clock::System.after(LEASE);
        let hold = hold(Lease::Renewed, ManualClock::new().now());
        for from_outside in [true, false] {
            let ids: Vec<u64> = (1..LEVELS).map(|_| hold.add_level(Lease::Renewed)).collect();
            for n in 0..ids.len() {
                let id = ids[if from_outside { n } else { ids.len() - 1 - n }];
                hold.guard_level(id);
                assert!(hold.end_level(Some(id)).is_some() && Clock::System.now() < by, "{n} of {LEVELS}");
            }
            assert_eq!(hold.count(), 1);
        }
    }

    #[test]
    fn short_leased_levels_do_not_put_off_the_renewal() {
        let start = ManualClock::new().now().plus(LEASE);
        let hold = hold(Lease::Renewed, start);
        let due = hold.due();
        assert_eq!(due, start.plus(LEASE / 3));
        for seconds in [5, 9] {
            confirm(&hold, start.plus(Duration::from_secs(seconds)), Duration::from_secs(1));
        }
        assert_eq!(hold.due(), due);
    }

    /// Whoever else reads may have cut what the store has of its time.
    #[test]
    fn a_read_hold_is_renewed_as_often_with_a_longer_level_and_for_as_long_as_that() {
        let start = ManualClock::new().now();
        let mut hold = hold(Lease::Renewed, start);
        hold.kind = Kind::Read;
        let third = start.plus(LEASE / 3);
        assert_eq!(hold.due(), third);
        hold.add_level(Lease::Fixed(LEASE * 4));
        confirm(&hold, start, LEASE * 4);
        assert_eq!(hold.due(), third);
        let asked = hold.renewal(third).unwrap().lease;
        assert_eq!(third.plus(asked), hold.until());
        confirm(&hold, third, asked);
        assert_eq!(hold.due(), third.plus(LEASE / 3));
        // A level that is short puts it off no more than it does with other holds.
        confirm(&hold, third.plus(LEASE / 6), LEASE / 30);
        assert_eq!(hold.due(), third.plus(LEASE / 3));
    }

    #[test]
    fn an_overdue_renewal_puts_it_at_risk() {
        let start = ManualClock::new().now();
        let hold = hold(Lease::Renewed, start);
        assert_eq!(hold.standing(start), Standing::Held);
        hold.note_failed_renewal();
        assert_eq!(hold.standing(start), Standing::AtRisk(hold.until()));
        confirm(&hold, start.plus(Duration::from_secs(10)), LEASE);
        assert_eq!(hold.standing(start.plus(Duration::from_secs(10))), Standing::Held);
        assert!(matches!(hold.standing(start.plus(Duration::from_secs(26))), Standing::AtRisk(_)));
    }
}
