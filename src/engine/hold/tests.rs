use super::*;
use crate::engine::lock::caching::RULES;
use crate::engine::lock::{Found, Next};
use crate::engine::pace::renewal_slack;
use crate::engine::registry::Registry;
use crate::ident::{ClientId, ThreadMarker};
use crate::task::TaskMarker;
use crate::time::ManualClock;

const LEASE: Duration = Duration::from_secs(30);

impl Hold {
    /// A channel that receives the loss, if there is one, and is disconnected when the hold ends.
    pub(crate) fn loss_channel(&self) -> crossbeam_channel::Receiver<crate::observe::Loss> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.listen(Listener::Channel(sender), &Reporter::new(None));
        receiver
    }

    fn add_level(&self, lease: Lease) -> u64 {
        self.with(|own| own.levels.add(lease))
    }

    fn renewal(&self, now: Moment) -> Option<Claim> {
        self.with(|own| own.renewal(now))
    }

    fn due(&self) -> Option<Moment> {
        self.with(|own| Some(own.due()))
    }

    fn is_renewed(&self) -> bool {
        self.with(|own| own.is_renewed())
    }

    pub(crate) fn begin_return(&self) -> bool {
        self.local.state().begin_return(self.serial)
    }

    fn end_level(&self, level: Option<u64>) -> Option<usize> {
        self.with(|own| own.levels.take(level).map(|_| own.levels.open.len()))
    }

    fn note_failed_renewal(&self) {
        self.with(|own| own.renewal_has_failed = true);
    }
}

fn hold(lease: Lease, sent: Moment) -> Arc<Hold> {
    enter(grant(Kind::Mutex, sent), lease, false)
}

/// Returns the moment when a grant with this lease was requested, and the hold of that grant.
fn held(lease: Lease) -> (Moment, Arc<Hold>) {
    let start = ManualClock::new().now();
    (start, hold(lease, start))
}

fn reading(lease: Lease, sent: Moment) -> Arc<Hold> {
    enter(grant(Kind::Read, sent), lease, false)
}

fn grant(kind: Kind, sent: Moment) -> Hold {
    let name = crate::tests::name("a");
    let claim = Claim::new(kind, &name, Owner::new(ClientId::random(), 1), LEASE);
    let local = Registry::default().local(kind, &name);
    Hold::new(&claim, Holder::Guard { taker: None }, sent, LEASE, &local)
}

fn hold_by(grant: Hold) -> Arc<Hold> {
    enter(grant, Lease::Renewed, false)
}

fn enter(grant: Hold, lease: Lease, until_recall: bool) -> Arc<Hold> {
    let (hold, mut own, _level) = grant.begin(lease);
    own.asks_to_cache = hold.may_be_cached;
    if until_recall {
        own.until_recall(0, false, hold.since(), RULES.first_check);
    }
    let _entered = hold.local.state().enter(own);
    hold
}

/// The hold of a thread whose call asks to cache it.
fn cached() -> Hold {
    let mark = ThreadMarker::current();
    let holder = Holder::Thread { id: mark.id(), mark: Arc::downgrade(&mark), task: TaskMarker::current() };
    Hold { holder, may_be_cached: true, ..grant(Kind::Mutex, ManualClock::new().now()) }
}

/// Ends the last level, in a time slice, so that the hold is cached.
fn cache(hold: &Arc<Hold>) {
    let mut state = hold.local.state();
    let at = state.at(hold.since());
    state.caching.begin(1, at);
    state.caching.count_on_return();
    let ended = state.end(hold.serial, None, |_| Some(true), at).unwrap();
    drop(state);
    assert!(matches!(ended.next, Some(Next::Cached(_))));
    assert!(hold.is_cached());
}

fn begin_again(hold: &Arc<Hold>, since: Moment, caches: bool) {
    cache(hold);
    assert!(matches!(find(hold, since, caches), Found::Cached(..)));
}

fn find(hold: &Arc<Hold>, since: Moment, caches: bool) -> Found<Arc<Hold>> {
    let Holder::Thread { id, .. } = hold.holder else { panic!("the holder is not a thread") };
    hold.local.find(Some(id), [caches, true, false], |_, _| true, since).0
}

fn can_be_cached(hold: &Hold, is_dropped: bool) -> Option<bool> {
    hold.with(|state| hold.can_be_cached(state, is_dropped))
}

fn confirm(hold: &Hold, sent: Moment, lease: Duration) {
    assert!(hold.confirm(sent, lease, &Clock::Manual(ManualClock::new())));
}

#[test]
fn unlock_caches_only_if_the_last_acquire_asked_for_it() {
    let hold = hold_by(cached());
    let now = hold.since();
    assert_eq!([false, true].map(|is_dropped| can_be_cached(&hold, is_dropped)), [Some(true), Some(true)]);
    begin_again(&hold, now, false);
    assert_eq!([false, true].map(|is_dropped| can_be_cached(&hold, is_dropped)), [None, Some(true)]);
    begin_again(&hold, now, true);
    assert_eq!(can_be_cached(&hold, false), Some(true));
}

#[test]
fn a_renewal_confirmed_after_the_window_does_not_save_the_hold() {
    let clock = ManualClock::new();
    let hold = hold(Lease::Fixed(LEASE), clock.now());
    clock.advance(LEASE * 99 / 100);
    assert!(!hold.confirm(clock.now(), LEASE, &Clock::Manual(clock.clone())));
}

#[test]
fn the_window_is_one_percent_shorter_than_the_lease() {
    let (start, hold) = held(Lease::Fixed(LEASE));
    let at = |millis| hold.standing(start.plus(Duration::from_millis(millis)));
    assert_eq!(at(29_699), Standing::Held);
    assert_eq!(at(29_700), Standing::Lost(LossReason::Expired));
}

#[test]
fn a_loss_is_permanent_and_reported_once() {
    let (start, hold) = held(Lease::Renewed);
    let reporter = Reporter::new(None);
    let channel = hold.loss_channel();
    assert!(hold.lose(LossReason::Gone, start, &reporter));
    assert!(!hold.lose(LossReason::Expired, start, &reporter));
    confirm(&hold, start.plus(LEASE), LEASE);
    assert_eq!(hold.standing(start), Standing::Lost(LossReason::Gone));
    assert_eq!(channel.recv().unwrap().reason, LossReason::Gone);
    assert_eq!(hold.loss_channel().recv().unwrap().reason, LossReason::Gone);
}

fn of_thread(mark: &Arc<ThreadMarker>) -> Arc<Hold> {
    let holder = Holder::Thread { id: mark.id(), mark: Arc::downgrade(mark), task: TaskMarker::current() };
    let grant = grant(Kind::Mutex, ManualClock::new().now());
    let owner = Owner::new(ClientId::random(), mark.number());
    hold_by(Hold { holder, claim: Claim { owner, ..grant.claim.clone() }, ..grant })
}

#[test]
fn after_an_unanswered_request_a_release_changes_the_owner_number() {
    let mark = ThreadMarker::current();
    let (hold, number) = (of_thread(&mark), mark.number());
    hold.retire_owner_on_end();
    assert_eq!(mark.number(), number);
    assert!(hold.begin_return());
    assert_ne!(mark.number(), number);
    // The number also changes if the request goes unanswered only after the release has begun.
    let number = mark.number();
    let other = of_thread(&mark);
    assert!(other.begin_return());
    assert_eq!(mark.number(), number);
    other.retire_owner_on_end();
    assert_ne!(mark.number(), number);
}

#[test]
fn a_release_during_a_renewal_changes_the_owner_number() {
    let mark = ThreadMarker::current();
    let (hold, number) = (of_thread(&mark), mark.number());
    assert!(hold.begin_renewal(hold.since()).is_some());
    assert!(hold.begin_return());
    assert_ne!(mark.number(), number);
    let (hold, number) = (of_thread(&mark), mark.number());
    assert!(hold.begin_renewal(hold.since()).is_some());
    hold.end_renewal();
    assert!(hold.begin_return());
    assert!(hold.begin_renewal(hold.since()).is_none());
    assert_eq!(mark.number(), number);
}

/// Each loss but a shutdown's retires the number, even an expiry that only `is_live` notices.
#[test]
fn a_lost_hold_gives_its_thread_a_new_owner_number() {
    let (mark, reporter) = (ThreadMarker::current(), Reporter::new(None));
    for reason in [LossReason::Expired, LossReason::Gone, LossReason::HeldTooLong] {
        let (hold, number) = (of_thread(&mark), mark.number());
        assert!(hold.lose(reason, hold.since(), &reporter));
        assert_ne!(mark.number(), number, "{reason:?}");
        let number = mark.number();
        assert!(!hold.lose(LossReason::Gone, hold.since(), &reporter));
        assert_eq!(mark.number(), number, "once");
    }
    let (hold, number) = (of_thread(&mark), mark.number());
    assert!(!hold.is_live(hold.since().plus(LEASE), &reporter));
    assert_ne!(mark.number(), number);
}

/// The thread may hold locks of other clients under its number, so a shutdown must not retire it.
#[test]
fn a_shutdown_changes_only_owner_numbers_with_unanswered_requests() {
    let (mark, reporter) = (ThreadMarker::current(), Reporter::new(None));
    let (hold, number) = (of_thread(&mark), mark.number());
    assert!(hold.lose(LossReason::ShutDown, hold.since(), &reporter));
    assert_eq!(mark.number(), number);
    let hold = of_thread(&mark);
    assert!(hold.begin_renewal(hold.since()).is_some());
    assert!(hold.lose(LossReason::ShutDown, hold.since(), &reporter));
    assert_ne!(mark.number(), number);
}

#[test]
fn a_hold_being_released_is_not_reported_as_expired() {
    let hold = hold(Lease::Renewed, ManualClock::new().now());
    let reporter = Reporter::new(None);
    assert!(hold.begin_return());
    assert!(!hold.begin_return());
    assert!(!hold.lose(LossReason::Expired, hold.since(), &reporter));
    assert!(hold.lose(LossReason::Gone, hold.since(), &reporter));
}

#[test]
fn a_hold_is_renewed_while_any_reentry_asks_for_renewal() {
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
fn explicit_leases_are_renewed_until_a_multi_lock_is_acquired() {
    let start = ManualClock::new().now();
    let short = LEASE / 30;
    let cached = hold(Lease::Kept(short), start);
    cached.renewed_lease.store(nanos(short), Ordering::Relaxed);
    assert_eq!(cached.renewal(start).map(|claim| claim.lease), Some(short));
    assert!(renewal_slack(cached.renewed_lease()) < short / 3, "a renewal is due at once");
    cached.settle_level(1, LEASE);
    assert!(cached.renewal(start).is_none());
    cached.add_level(Lease::Renewed);
    assert_eq!(cached.renewal(start).map(|claim| claim.lease), Some(LEASE));
}

/// If the time to end a level grew with the number of levels, this would take many minutes.
#[test]
fn releasing_many_levels_is_quick_in_either_order() {
    const LEVELS: usize = 200_000;
    let deadline = Clock::System.after(LEASE);
    let hold = hold(Lease::Renewed, ManualClock::new().now());
    for from_outside in [true, false] {
        let ids: Vec<u64> = (1..LEVELS).map(|_| hold.add_level(Lease::Renewed)).collect();
        for n in 0..ids.len() {
            let id = ids[if from_outside { n } else { ids.len() - 1 - n }];
            hold.guard_level(id);
            assert!(hold.end_level(Some(id)).is_some() && Clock::System.now() < deadline, "{n} of {LEVELS}");
        }
        assert_eq!(hold.count(), 1);
    }
}

#[test]
fn reentries_with_short_leases_do_not_postpone_the_renewal() {
    let start = ManualClock::new().now().plus(LEASE);
    let hold = hold(Lease::Renewed, start);
    let due = hold.due();
    assert_eq!(due, Some(start.plus(LEASE / 3)));
    for seconds in [5, 9] {
        confirm(&hold, start.plus(Duration::from_secs(seconds)), Duration::from_secs(1));
    }
    assert_eq!(hold.due(), due);
}

/// Readers share one key in the store, and another reader may have shortened the key's time to live.
#[test]
fn a_read_hold_is_renewed_for_its_longest_lease() {
    let start = ManualClock::new().now();
    let hold = reading(Lease::Renewed, start);
    let third = start.plus(LEASE / 3);
    assert_eq!(hold.due(), Some(third));
    hold.add_level(Lease::Fixed(LEASE * 4));
    confirm(&hold, start, LEASE * 4);
    assert_eq!(hold.due(), Some(third));
    let asked = hold.renewal(third).unwrap().lease;
    assert_eq!(third.plus(asked), hold.until());
    confirm(&hold, third, asked);
    assert_eq!(hold.due(), Some(third.plus(LEASE / 3)));
    confirm(&hold, third.plus(LEASE / 6), LEASE / 30);
    assert_eq!(hold.due(), Some(third.plus(LEASE / 3)));
}

#[test]
fn a_failed_or_overdue_renewal_is_shown_as_at_risk() {
    let (start, hold) = held(Lease::Renewed);
    assert_eq!(hold.standing(start), Standing::Held);
    hold.note_failed_renewal();
    assert_eq!(hold.standing(start), Standing::AtRisk(hold.until()));
    confirm(&hold, start.plus(Duration::from_secs(10)), LEASE);
    assert_eq!(hold.standing(start.plus(Duration::from_secs(10))), Standing::Held);
    assert!(matches!(hold.standing(start.plus(Duration::from_secs(26))), Standing::AtRisk(_)));
}

#[test]
fn a_read_hold_with_an_explicit_lease_is_renewed_only_up_to_its_end() {
    let start = ManualClock::new().now();
    let third = start.plus(LEASE / 3);
    assert!(hold(Lease::Fixed(LEASE), start).renewal(third).is_none());
    // A reader of Redisson may shorten the expiry that all readers share. So even a read hold with a fixed
    // lease is renewed, but only up to its own end.
    let hold = reading(Lease::Fixed(LEASE), start);
    assert_eq!(hold.due(), Some(third));
    assert_eq!(third.plus(hold.renewal(third).unwrap().lease), hold.until());
    hold.with(|own| own.kept_alive_at = third);
    assert_eq!(hold.due(), Some(third.plus(LEASE / 3)));
    assert_eq!(hold.until(), start.plus(window(LEASE)), "the renewal prolonged the hold");
}

#[test]
fn a_loss_channel_opened_on_a_released_hold_is_disconnected() {
    let start = ManualClock::new().now();
    let (hold, reporter) = (hold(Lease::Renewed, start), Reporter::new(None));
    let before = hold.loss_channel();
    assert!(hold.begin_return());
    hold.forget_listeners(&reporter);
    for channel in [before, hold.loss_channel()] {
        assert_eq!(channel.try_recv(), Err(crossbeam_channel::TryRecvError::Disconnected));
    }
}

#[derive(Debug)]
struct Session;

impl Bound for Session {
    fn until(&self) -> Moment {
        Moment::NEVER
    }

    fn is_gone(&self) -> bool {
        false
    }
}

/// A hold with, for example, a listener or a request in doubt is not cached: the next use would inherit that.
#[test]
fn a_hold_with_listeners_or_unanswered_requests_is_not_cached() {
    let hold = || hold_by(cached());
    let is_cached = |change: &dyn Fn(&Hold)| {
        let hold = hold();
        change(&hold);
        can_be_cached(&hold, false).is_some()
    };
    assert!(is_cached(&|_| ()));
    assert!(!is_cached(&|hold| hold.set_fence(Some(FencingToken::new(1)))), "a fencing token");
    let bound = hold_by(Hold { bound: Some(Arc::new(Session)), ..cached() });
    assert!(can_be_cached(&bound, false).is_none(), "a session");
    assert!(!is_cached(&|hold| hold.note_failed_renewal()), "a failed renewal");
    assert!(!is_cached(&|hold| hold.retire_owner_on_end()), "an owner number to be retired");
    assert!(!is_cached(&|hold| drop(hold.begin_renewal(hold.since()))), "a renewal under way");
    let (held, reporter) = (hold(), Reporter::new(None));
    let listens = held.loss_channel();
    assert!(can_be_cached(&held, false).is_none(), "a listener for the loss");
    held.forget_listeners(&reporter);
    drop(listens);
    assert!(can_be_cached(&held, false).is_some());
}

#[test]
fn a_recallable_hold_with_a_request_in_doubt_is_not_cached() {
    let hold = enter(cached(), Lease::Renewed, true);
    assert!(hold.begin_renewal(hold.since()).is_some());
    assert!(can_be_cached(&hold, false).is_some(), "a renewal that is under way concerns no other hold");
    assert!(
        hold.end_level(None) == Some(0) && hold.is_renewed(),
        "the next use of the hold has the client's lease"
    );
    hold.retire_owner_on_end();
    assert!(can_be_cached(&hold, false).is_none());
}

#[test]
fn a_reused_cached_hold_counts_as_acquired_at_the_reuse() {
    let start = ManualClock::new().now();
    let hold = hold_by(Hold { since: AtomicU64::new(start.nanos()), ..cached() });
    begin_again(&hold, start.plus(LEASE / 2), true);
    assert_eq!((hold.since(), hold.is_cached(), hold.count()), (start.plus(LEASE / 2), false, 1));
}

#[test]
fn a_hold_lost_while_cached_is_not_reused() {
    let (hold, reporter) = (hold_by(cached()), Reporter::new(None));
    cache(&hold);
    assert!(hold.lose(LossReason::Gone, hold.since(), &reporter) && hold.is_cached());
    assert!(matches!(find(&hold, hold.since(), true), Found::Own(_)), "the lost hold is found");
    assert_eq!(reporter.counters.stats().lost_gone, 0);
}

#[test]
fn a_hold_keeps_its_first_fence() {
    let hold = hold(Lease::Renewed, ManualClock::new().now());
    for fence in [None, Some(FencingToken::new(7)), Some(FencingToken::new(9))] {
        hold.set_fence(fence);
    }
    assert_eq!(hold.fencing_token(), Some(FencingToken::new(7)));
}

/// Waits until queued callbacks have run; returns how often the hold's callback did.
#[cfg(not(leasehold_shuttle))]
fn called(calls: &AtomicU64, reporter: &Reporter) -> u64 {
    let (sender, done) = crossbeam_channel::bounded(1);
    reporter.run_later(move || sender.send(()).unwrap());
    done.recv().unwrap();
    calls.load(Ordering::SeqCst)
}

#[cfg(not(leasehold_shuttle))]
#[test]
fn a_contention_callback_is_not_called_again_while_it_runs() {
    let (time, reporter) = (ManualClock::new(), Reporter::new(None));
    let (hold, clock) = (hold(Lease::Renewed, time.now()), Clock::Manual(time));
    let (go_on, waits) = crossbeam_channel::unbounded::<()>();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let callback = move || {
        waits.recv().unwrap_or_default();
        counted.fetch_add(1, Ordering::SeqCst);
    };
    hold.listen(Listener::OnContended(Arc::new(callback)), &reporter);
    for _ in 0..5 {
        hold.call_back(&reporter, &clock);
    }
    drop(go_on);
    assert_eq!(called(&calls, &reporter), 1, "a slow callback was called again while it ran");
    hold.call_back(&reporter, &clock);
    assert_eq!(called(&calls, &reporter), 2);
    assert!(hold.begin_return());
    hold.call_back(&reporter, &clock);
    assert_eq!(called(&calls, &reporter), 2, "the hold's release has begun");
}
